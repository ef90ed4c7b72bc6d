"""The metrics of a comparison on its page: an overview of all, and each with its seeds and paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolkit.document.blocks import Block, Cell, Folded, Table, Text
from toolkit.lab.compare.table import DIFFERENCE, SPREAD, differences, spread

PAIRED = (
    "Differences from the baseline are paired: each run is compared with the baseline's run of the same seed. The 95 % "
    "interval is that of a paired t test, widened by the chance of the evaluated rows (bootstrap); a difference whose "
    "interval contains 0 could be chance. sd is the standard deviation over seeds."
)


def scores(found: Mapping[str, Any], measured: Sequence[tuple[int, Mapping[str, Any]]]) -> Iterator[Block]:
    """Yields the tables of all metrics, the main metric first.

    Args:
        found: contents of `comparison.json`.
        measured: the variants that ran, with their numbers.
    """
    main = found["metric"]["name"]
    names = list(dict.fromkeys(name for _, variant in measured for name in variant["metrics"]))
    names.sort(key=lambda name: name != main)
    several = len(found["seeds"]) > 1
    rows = [
        [number, variant["name"], *(_overview(variant["metrics"].get(name)) for name in names)]
        for number, variant in measured
    ]
    yield Table(["#", "variant", *(name.removeprefix("eval_") for name in names)], rows, sortable=True)
    if not several:
        return
    yield Text(PAIRED)
    for name in names:
        table = _by_seed(name, found["seeds"], measured)
        title = name.removeprefix("eval_")
        if name == main:
            yield table
        else:
            yield Folded(f"{title} by seed", [table])


def _overview(metric: Mapping[str, Any] | None) -> Cell | None:
    if metric is None:
        return None
    value, deviation, _ = spread(metric)
    return Cell(f"{value} ± {deviation}" if deviation else value, metric["value"])


def _by_seed(name: str, seeds: Sequence[int], measured: Sequence[tuple[int, Mapping[str, Any]]]) -> Table:
    rows = []
    for number, variant in measured:
        metric = variant["metrics"].get(name)
        if metric is None:
            rows.append([number, variant["name"], *[None] * (len(SPREAD) + len(DIFFERENCE) + len(seeds))])
            continue
        change = metric["difference"]
        mean, deviation, runs = spread(metric)
        value, interval = differences(change)
        rows.append([
            number, variant["name"], Cell(mean, metric["value"]), Cell(deviation, metric["deviation"]), int(runs),
            Cell(value, change["value"]) if change else None,
            interval.replace(" ", "\u00a0") or None,
            *(metric["values"].get(str(seed)) for seed in seeds),
        ])  # fmt: skip
    titles = ["#", "variant", *SPREAD, *DIFFERENCE, *(f"seed {seed}" for seed in seeds)]
    return Table(titles, rows, sortable=True, caption=name.removeprefix("eval_"))
