"""Builds the page of a comparison, as sections that are written as Markdown and as HTML."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.base.console import format_bytes
from toolkit.config.keys import to_yaml
from toolkit.document.blocks import Block, Cell, Code, Figure, Folded, Gallery, Section, Table, Text
from toolkit.lab.compare import costs, pictures, strategies
from toolkit.lab.compare.metric_blocks import scores
from toolkit.lab.compare.notes import kept, notes
from toolkit.lab.compare.table import columns, compared, excuse, interval, legend, rows_differ, shown

Found = Mapping[str, Any]
"""Contents of `comparison.json`."""


def title_and_lead(found: Found) -> tuple[str, str]:
    """Returns the title, and a paragraph on the settings, the machine and the number of runs."""
    hardware = found["hardware"] or {}
    gpus = hardware.get("gpus", []) if found["device"] == "cuda" else []
    device = ", ".join(gpus) or (f"{hardware['cpus']} CPUs" if hardware else "this machine")
    several, runs = found["num_processes"] > 1, len(found["seeds"])
    processes = f"{found['num_processes']} processes" if several else "one process"
    keys = dict.fromkeys(key for variant in found["variants"] for key in variant["settings"])
    what = f"What {', '.join(keys)} do{'' if len(keys) > 1 else 'es'}"
    if strategies.is_of_strategies(found):
        what = "What parallel strategies hold and send, with the same rows in each step"
    lead = f"{what}: {processes} on {device}; {runs} run{'s' if runs > 1 else ''} of each variant, in turn."
    return f"Comparison of {found['config']}", f"{lead} {legend(found)}"


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    numbered = [(number, variant) for number, variant in enumerate(found["variants"], start=1)]
    measured = [(number, variant) for number, variant in numbered if "figures" in variant]
    said: list[Block] = [Text(note) for note in notes(found)]
    if best := kept(found):
        said += [Text(best[0]), Code(best[1], "bash")]
    parts = [Section("Variants", [*said, *_figures(found, numbered), *_pictures(found, measured)])]
    parts += strategies.strategy_sections(found)
    if any(variant["metrics"] for _, variant in measured):
        parts.append(Section("Metrics", list(scores(found, measured))))
    parts += [part for part in [costs.section(found)] if part.blocks]
    if measured:
        parts.append(Section("Memory by part", [_memory(measured)]))
        parts.append(Section("Intervals", [_intervals(found, measured)]))
    parts.append(Section("Commands and settings", list(_commands(numbered))))
    facts = {"command": shlex.join(found["command"]), "seeds": ", ".join(map(str, found["seeds"])),
             **(found["hardware"] or {}), **(found["versions"] or {})}  # fmt: skip
    rows = [[name, to_yaml(value) if isinstance(value, list) else str(value)] for name, value in facts.items()]
    return [*parts, Section("Environment", [Table(["what", "value"], rows)])]


def _figures(found: Found, numbered: list[tuple[int, Any]]) -> Iterator[Block]:
    """Yields the table of all variants, and the reasons why some did not run."""
    names, with_rows = columns(found), rows_differ(found)
    several = found["num_processes"] > 1
    rows = []
    for number, variant in numbered:
        start = [number, variant["name"], *([variant.get("rows_per_step")] if with_rows else [])]
        if "figures" not in variant:
            rows.append([*start, *[None] * (len(names) + 2 + 2 * several)])
            continue
        peak, *others = (_cell(name, variant) for name in names)
        exchange = variant["exchange"]
        sent: list[Any] = [None, None]
        if exchange:
            sent = [Cell(format_bytes(exchange["bytes"]), exchange["bytes"]), round(exchange["collectives"], 2)]
        state, padding = variant["memory"]["optimizer_state"], variant["padding"]
        rows.append([
            *start, peak, Cell(format_bytes(state), state), *others,
            Cell(f"{padding:.0%}", padding), *(sent if several else []),
        ])  # fmt: skip
    first, *rest = names.values()
    sent = ["sent per step", "collectives per step"] if several else []
    start = ["#", "variant", *(["rows per step"] if with_rows else [])]
    yield Table([*start, first, "optimizer state", *rest, "padding", *sent], rows, sortable=True, stacked=True)
    for number, variant in numbered:
        if text := excuse(found, variant):
            reason, _, log = text.partition("\n")
            yield Text(f"{number} {reason}")
            if log:
                yield Code(log)
    if "figures" not in found["variants"][0]:
        yield Text("The baseline did not run, so there are no ratios.")


def _cell(name: str, variant: Mapping[str, Any]) -> Cell | None:
    figure = variant["figures"].get(name)
    if figure is None:
        return None
    against = compared(name, variant)
    return Cell(shown(name, figure["value"]) + (f" ({against})" if against else ""), figure["value"])


def _pictures(found: Found, measured: list[tuple[int, Any]]) -> Iterator[Block]:
    if not measured:
        return
    numbers, variants = zip(*measured, strict=True)
    drawn = pictures.draw(variants, numbers, found["metric"])
    titles = dict(pictures.TITLES)
    if any(variant["losses"] for variant in variants):
        titles["loss"] += ": mean, and each seed as a thin line"
    yield Gallery([Figure(title, drawn[name], file=f"{name}.svg") for name, title in titles.items()])


def _memory(measured: list[tuple[int, Any]]) -> Table:
    rows = [
        [number, variant["name"], *(Cell(format_bytes(value), value) for value in variant["memory"].values()),
         round(variant["optimizer_state_bytes_per_parameter"], 2)]
        for number, variant in measured
    ]  # fmt: skip
    header = ["#", "variant", *pictures.PARTS.values(), "optimizer B/parameter"]
    return Table(header, rows, sortable=True, stacked=True)


def _intervals(found: Found, measured: list[tuple[int, Any]]) -> Table:
    rows = []
    for number, variant in measured:
        spans = [interval(name, figure) if (figure := variant["figures"].get(name)) else "" for name in columns(found)]
        spans.append(" to ".join(shown("step_seconds", value) for value in variant["spread"]))
        # Non-breaking spaces keep each interval on one line.
        rows.append([number, variant["name"], *(Cell(span.replace(" ", "\u00a0")) if span else None for span in spans)])
    caption = (
        "Peak memory (and a loss as metric): smallest and largest run. The others: 95 % of bootstrap draws of runs, "
        "and of their steps or evaluated rows. A single run has no interval. Quartiles are over single steps."
    )
    return Table(["#", "variant", *columns(found).values(), "quartiles of a step"], rows, stacked=True, caption=caption)


def _commands(numbered: list[tuple[int, Any]]) -> Iterator[Block]:
    for number, variant in numbered:
        if variant.get("technique", {}).get("refused"):
            continue  # no command trains it
        blocks: list[Block] = [Code(variant["command"], "bash")]
        if differs := variant.get("differs"):
            rows = [[key, *(to_yaml(value) for value in pair)] for key, pair in differs.items()]
            blocks.append(Table(["setting", "baseline", "here"], rows))
        yield Folded(f"{number} {variant['name']}", blocks)
