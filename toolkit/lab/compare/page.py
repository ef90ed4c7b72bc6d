"""The page of a comparison, and what the terminal shows of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.base.console import counted, format_bytes, format_duration, format_value, shorten
from toolkit.config.keys import to_yaml
from toolkit.document.blocks import MISSING, Block, Cell, Code, Figure, Folded, Gallery, Page, Section, Table, Text
from toolkit.lab.compare import pictures
from toolkit.lab.compare.runs import is_busy
from toolkit.lab.compare.statistics import PARTS
from toolkit.report.sections import bytes_cell
from toolkit.system.memory import MEMORY

Found = Mapping[str, Any]
"""Contents of `comparison.json`, or of one of its variants."""
NAME_LETTERS = 26
"""Maximum length of a variant's name in a table of the terminal, which otherwise has only their numbers."""
SAME, UNKNOWN = "~", "?"
"""Marks of a difference that could be chance, and of one without an interval."""


def legend(found: Found) -> str:
    """Returns a sentence on each mark that a comparison can have."""
    runs = [variant["runs"] for variant in found["variants"] if variant["runs"]]
    parts = []
    if not runs or max(runs) > 1:
        parts.append(f"{SAME} the difference from the baseline could be chance.")
    if runs and min(runs) == 1:
        parts.append(f"{UNKNOWN} a single run does not show how much runs differ by chance; use --seeds 3 or more.")
    return " ".join(parts)


def rows_differ(found: Found) -> bool:
    """Returns whether variants have different numbers of rows per step."""
    return len({variant["rows_per_step"] for variant in found["variants"] if "rows_per_step" in variant}) > 1


def columns(found: Found) -> dict[str, str]:
    """Returns the titles of the figures that tables show, in order, by their names in `figures`."""
    metrics = {name for variant in found["variants"] for name in variant.get("figures", {})}
    metric = found["metric"].get("name") if found["metric"].get("name") in metrics else None
    return {"train_peak": "peak memory", "step_seconds": "step", "real_per_second": "real items/s"} | (
        {metric: metric.removeprefix("eval_")} if metric else {}
    )


def shown(name: str, value: float) -> str:
    """Formats a figure with its unit."""
    if name == "train_peak":
        return format_bytes(value)
    if name == "step_seconds":
        return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"
    return f"{value:,.0f}" if name == "real_per_second" and value >= 100 else format_value(float(value))


def marked(text: str, same: bool | None) -> str:
    """Returns a ratio or difference with a mark if it could be chance (`same`), or if that is unknown (None)."""
    return {True: f"{SAME} ", None: f"{UNKNOWN} ", False: ""}[same] + text


def interval(name: str, figure: Mapping[str, Any]) -> str:
    """Formats the interval of a figure; empty if there is none."""
    if figure["low"] is None:
        return ""
    return f"{shown(name, figure['low'])} to {shown(name, figure['high'])}"


def results(found: Found) -> Table:
    """Returns the table of all variants; a cell has the figure and, below it, how it compares with the baseline's."""
    names = columns(found)
    first, *rest = names.values()
    header = ["#", "variant", "rows per step", first, "optimizer state", *rest, "padding", *EXCHANGE]
    rows: list[list[Any]] = []
    for number, variant in enumerate(found["variants"], start=1):
        start = [number, variant["name"], variant.get("rows_per_step")]
        if "figures" not in variant:
            rows.append([*start, *[None] * (len(header) - len(start))])
            continue
        peak, *others = (_figure(name, variant) for name in names)
        exchange, padding = variant["exchange"], variant["padding"]
        sent = [bytes_cell(exchange["bytes"]), round(exchange["collectives"], 2)] if exchange else [None, None]
        state = bytes_cell(variant["memory"]["optimizer_state"])
        rows.append([*start, peak, state, *others, Cell(f"{padding:.0%}", padding), *sent])
    unused = [*([] if rows_differ(found) else ["rows per step"]), *([] if found["num_processes"] > 1 else EXCHANGE)]
    return Table(header, rows, sortable=True, stacked=True).without(*unused)


EXCHANGE = ("sent per step", "collectives per step")


def _figure(name: str, variant: Found) -> Cell | None:
    figure = variant["figures"].get(name)
    if figure is None:
        return None
    if metric := variant["metrics"].get(name):
        change = metric["difference"]
        against = "" if change is None else marked(f"{change['value']:+.3g}", figure["same"])
    elif figure["ratio"] is None:
        against = SAME if figure["same"] else ""
    else:
        against = marked(f"x{figure['ratio']:.2f}", figure["same"])
    return Cell(shown(name, figure["value"]) + (f"\n({against})" if against else ""), figure["value"])


def excuse(found: Found, variant: Found) -> str | None:
    """Returns a sentence on why a variant did not run, or not with every seed; None if it did."""
    if not variant["reason"]:
        return None
    runs, seeds = variant["runs"], len(found["seeds"])
    missing = "did not run" if not runs else f"ran {runs} of {seeds} times"
    return f"{variant['name']} {missing}: {variant['reason']}"


PAIRED = (
    "Differences from the baseline are paired: each run is compared with the baseline's run of the same seed. The 95 % "
    "interval is that of a paired t test, widened by the chance of the evaluated rows (bootstrap); a difference whose "
    "interval contains 0 could be chance. sd is the standard deviation over seeds."
)


def metrics(found: Found) -> Iterator[Block]:
    """Yields the tables of all metrics, the main metric first."""
    main = found["metric"]["name"]
    measured = [
        (number, variant) for number, variant in enumerate(found["variants"], start=1) if variant.get("metrics")
    ]
    names = list(dict.fromkeys(name for _, variant in measured for name in variant["metrics"]))
    names.sort(key=lambda name: name != main)
    if not names:
        return
    rows = [
        [number, variant["name"], *(_overview(variant["metrics"].get(name)) for name in names)]
        for number, variant in measured
    ]
    yield Table(["#", "variant", *(name.removeprefix("eval_") for name in names)], rows, sortable=True)
    if len(found["seeds"]) == 1:
        return
    yield Text(PAIRED)
    for name in names:
        table = by_seed(found, name)
        yield table if name == main else Folded(f"{table.caption} by seed", [table])


def _overview(metric: Mapping[str, Any] | None) -> Cell | None:
    if metric is None:
        return None
    deviation = "" if metric["deviation"] is None else f" ± {metric['deviation']:.2g}"
    return Cell(f"{format_value(metric['value'])}{deviation}", metric["value"])


def by_seed(found: Found, name: str) -> Table:
    """Returns the table of a metric: mean, deviation, paired difference from the baseline, and its value by seed."""
    seeds, rows = found["seeds"], list[list[Any]]()
    header = ["#", "variant", "mean", "sd", "n", "difference", "95 % interval", *(f"seed {seed}" for seed in seeds)]
    for number, variant in enumerate(found["variants"], start=1):
        if "metrics" not in variant:
            continue
        start = [number, variant["name"]]
        metric = variant["metrics"].get(name)
        if metric is None:
            rows.append([*start, *[None] * (len(header) - len(start))])
            continue
        deviation, change = metric["deviation"], metric["difference"]
        difference, span = None, None
        if change is not None:
            difference = Cell(f"{change['value']:+.3g}", change["value"])
            if change["low"] is not None:
                span = f"{change['low']:+.2g} to {change['high']:+.2g}".replace(" ", "\u00a0")
        rows.append([
            *start, Cell(format_value(metric["value"]), metric["value"]),
            Cell("" if deviation is None else f"{deviation:.2g}", deviation), len(metric["values"]),
            difference, span, *(metric["values"].get(str(seed)) for seed in seeds),
        ])  # fmt: skip
    return Table(header, rows, sortable=True, stacked=True, caption=name.removeprefix("eval_"))


SUMMED = {"run_seconds": "time", "energy_wh": "energy", "co2_grams": "CO2", "cost": "price"}
"""Figures of a run that are added up over all runs, with the titles of their columns."""
TO_TARGET = {"target_seconds": "to target", "target_step": "steps to it", "target_energy_wh": "energy to it"}
"""Figures of the first evaluation that reached `train.target_metric`, with the titles of their columns."""
COLUMNS = {**SUMMED, **TO_TARGET}
UNITS = {"energy_wh": "Wh", "co2_grams": "g", "target_energy_wh": "Wh"}


def cost_text(name: str, value: float) -> str:
    """Formats a figure with its unit."""
    if name.endswith("_seconds"):
        return format_duration(value)
    return " ".join(filter(None, (format_value(float(value)), UNITS.get(name))))


def costs(found: Found) -> Table | None:
    """Returns the table of what runs took and needed to reach a target, with all runs in the last row; None if empty.

    A cell has the figure, how often a target was reached unless always, and the ratio to the baseline.
    """
    has = {name for variant in found["variants"] for name in variant.get("costs", {})}
    aims = any(variant.get("target") for variant in found["variants"])
    names = {name: title for name, title in COLUMNS.items() if name in has or (aims and name == "target_seconds")}
    rows: list[list[Any]] = [
        [number, variant["name"], *(_cost(name, variant) for name in names)]
        for number, variant in enumerate(found["variants"], start=1)
        if "costs" in variant
    ]
    if not names or not rows:
        return None
    sums = found.get("costs", {})
    rows.append(["all", "all runs", *(Cell(cost_text(n, sums[n]), sums[n]) if n in sums else None for n in names)])
    return Table(["#", "variant", *names.values()], rows)


def _cost(name: str, variant: Found) -> Cell:
    figure = variant["costs"].get(name)
    if figure is None:
        return Cell("not reached" if name == "target_seconds" and variant.get("target") else "")
    words = [cost_text(name, figure["value"])]
    if name in TO_TARGET and figure["runs"] < variant["runs"]:
        words.append(f"({figure['runs']} of {variant['runs']} runs)")
    if figure["ratio"] is not None:
        words.append(f"{'~ ' if figure['same'] else ''}x{figure['ratio']:.2f}")
    return Cell("\n".join(words), figure["value"])


def cost_blocks(found: Found) -> list[Block]:
    """Returns the table of costs with its explanations; empty if nothing is known."""
    table = costs(found)
    if table is None:
        return []
    said: list[Block] = [table]
    if source := found.get("energy_source"):
        said.append(Text(f"Medians over runs; ~ marks ratios that could be chance. Energy: {source}."))
    if target := next((variant["target"] for variant in found["variants"] if variant.get("target")), None):
        words = " and ".join(f"{name} {format_value(float(goal))}" for name, goal in target.items())
        said.append(Text(f"The target is {words} (train.target_metric)."))
    return said


HELD = ("parameters", "gradients", "optimizer_state")
"""Parts of the memory that are estimated one by one."""
BESIDE = (
    "The bytes of all tensors of the process that holds the most, with the estimate of toolkit plan in parentheses. "
    "Rows without a measurement need more processes, and are estimates for as many as they need."
)


def is_of_strategies(found: Found) -> bool:
    """Returns whether a comparison is one of parallel strategies."""
    return any("technique" in variant for variant in found["variants"])


def pairs(found: Found, variant: Found) -> list[tuple[float | None, float | None]]:
    """Returns measured and estimated bytes of the parts in `HELD`, the peak, and what is sent per step."""
    estimate, ran = variant.get("estimate"), "ranks" in variant
    ranks = variant["ranks"] if ran else ()
    measured = [max((rank[part] for rank in ranks), default=None) for part in (*HELD, "train_peak")]
    guessed = [estimate[part] for part in (*HELD, "peak")] if estimate else [None] * 4
    sent = (variant["exchange"].get("bytes") if ran else None, estimate["sent"] if estimate else None)
    return [*zip(measured, guessed, strict=True), sent]


def beside(found: Found) -> Table:
    """Returns the table of what strategies hold and send, measured and estimated."""
    rows = [
        [number, variant["name"], variant["technique"]["processes"], *(_pair(*pair) for pair in pairs(found, variant))]
        for number, variant in enumerate(found["variants"], start=1)
        if not variant["technique"]["refused"]
    ]
    titles = ["weights", "gradients", "optimizer state", "peak", "sent per step"]
    return Table(["#", "strategy", "processes", *titles], rows, sortable=True, caption="Measured (estimated)")


def _pair(measured: float | None, estimate: float | None) -> Cell:
    texts = [MISSING if value is None else format_bytes(value) for value in (measured, estimate)]
    return Cell(f"{texts[0]}\n({texts[1]})", estimate if measured is None else measured)


def uses(found: Found) -> Table:
    """Returns the table of when to use which strategy."""
    rows = [
        [number, variant["name"], variant["technique"]["complexity"], variant["technique"]["when"]]
        for number, variant in enumerate(found["variants"], start=1)
    ]
    return Table(["#", "strategy", "complexity", "when to use"], rows)


def _ranks(found: Found) -> Table:
    parts = (*PARTS, "train_peak")
    rows = [
        [number, variant["name"], rank, *(bytes_cell(held[part]) for part in parts)]
        for number, variant in enumerate(found["variants"], start=1)
        for rank, held in enumerate(variant.get("ranks", ()))
    ]
    return Table(["#", "variant", "process", *(MEMORY[part] for part in parts)], rows)


def notes(found: Found) -> Iterator[str]:
    """Yields sentences to print below the results."""
    if (before := found.get("before_training")) is not None:
        name = found["metric"]["name"].removeprefix("eval_")
        yield f"Before training, {name} is {format_value(before)} (eval.eval_on_start)."
    if rows_differ(found):
        yield (
            "The variants have different numbers of rows per step: compare their items per second, not their steps. "
            "With --keep-window, all have those of the baseline."
        )
    if busy := _busy(found):
        yield busy


def _busy(found: Found) -> str | None:
    cpus = (found["hardware"] or {}).get("cpus")
    if not cpus:
        return None
    when = []
    if is_busy(start := found.get("load_at_start"), cpus):
        when.append(f"before the first run ({start:.1f})")
    loads = {variant["name"]: max(variant["load"]) for variant in found["variants"] if "load" in variant}
    busy = {name: load for name, load in loads.items() if is_busy(load, cpus)}
    if len(busy) == len(loads) > 0:
        when.append(f"during runs of all variants (up to {max(busy.values()):.1f})")
    elif busy:
        when.append(f"during runs of {', '.join(f'{shorten(name, 40)} ({load:.1f})' for name, load in busy.items())}")
    if not when:
        return None
    return (
        f"The machine was busy: its load average was above its {cpus} CPUs {' and '.join(when)}. Step times are "
        "unreliable; measure again with nothing else running, and another --output."
    )


def kept(found: Found) -> tuple[str, str] | None:
    """Returns a sentence on the model that `--keep-best` kept, and the command that uses it; None if there is none."""
    best = found.get("best")
    if best is None:
        return None
    mean = f"mean {best['metric']} {format_value(best['mean'])}"
    sentence = f"The best variant is {shorten(best['variant'], 60)} ({mean}). The run with seed {best['seed']} is kept:"
    return sentence, f"toolkit predict {shlex.quote(best['run'])} --input FILE"


def page(found: Found) -> Page:
    """Returns the page: the settings, the machine and the number of runs, then everything that was measured."""
    hardware = found["hardware"] or {}
    gpus = hardware.get("gpus", []) if found["device"] == "cuda" else []
    device = ", ".join(gpus) or (f"{hardware['cpus']} CPUs" if hardware else "this machine")
    several, strategies = found["num_processes"] > 1, is_of_strategies(found)
    processes = f"{found['num_processes']} processes" if several else "one process"
    keys = dict.fromkeys(key for variant in found["variants"] for key in variant["settings"])
    what = f"What {', '.join(keys)} do{'' if len(keys) > 1 else 'es'}"
    if strategies:
        what = "What parallel strategies hold and send, with the same rows in each step"
    lead = f"{what}: {processes} on {device}; {counted(len(found['seeds']), 'run')} of each variant, in turn."
    numbered = [(number, variant) for number, variant in enumerate(found["variants"], start=1)]
    measured = [(number, variant) for number, variant in numbered if "figures" in variant]
    said: list[Block] = [Text(note) for note in notes(found)]
    if best := kept(found):
        said += [Text(best[0]), Code(best[1], "bash")]
    facts = {"seeds": ", ".join(map(str, found["seeds"])), **hardware, **(found["versions"] or {})}
    rows = [[name, to_yaml(value) if isinstance(value, list) else str(value)] for name, value in facts.items()]
    return Page(f"Comparison of {found['config']}", f"{lead} {legend(found)}", [
        Section("Variants", [*said, results(found), *_excuses(found), *_pictures(found, measured)]),
        Section("What more rows are worth", list(worth(found))),
        Section("Measured and estimated", [beside(found), Text(BESIDE)] if strategies else []),
        Section("When to use which", [uses(found)] if strategies else []),
        Section("Memory of each process", [_ranks(found)] if several and measured else []),
        Section("Metrics", list(metrics(found))),
        Section("Cost", cost_blocks(found)),
        Section("Memory by part", [_memory(measured)] if measured else []),
        Section("Intervals", [_intervals(found, measured)] if measured else []),
        Section("Commands and settings", list(_commands(numbered))),
        Section("Environment", [Table(["what", "value"], rows)]),
    ])  # fmt: skip


def worth(found: Found) -> Iterator[Block]:
    """Yields what more rows would add, the curve, and the classes that would gain most."""
    if not (rows := found.get("rows")):
        return
    (metric, main), *classes = rows["scores"].items()
    name, reason, more = metric.removeprefix("eval_"), main["reason"], f"{rows['more']:,} more rows"
    yield Text(f"{more}: {name} {f'cannot be told, because {reason}' if reason else f'{_gain(main)} by a power law'}.")
    yield Text("With each seed, larger parts contain the smaller ones, for the same epochs and validation rows.")
    yield Figure(f"{name}; thin lines: 95 % intervals, power law", pictures.growth(rows, name, main), file="rows.svg")
    known = sorted((pair for pair in classes if not pair[1]["reason"]), key=lambda pair: -pair[1]["gain"])[:10]
    if table := [[each.partition("/")[2], *score["means"], _gain(score)] for each, score in known]:
        yield Table(["F1 of class", *(f"{n:,.0f} rows" for n in rows["rows"]), more], table, caption="Largest gains")


def _gain(score: Mapping[str, Any]) -> str:
    ends = " ({:+.2g} to {:+.2g})".format(*score["interval"]) if score["interval"] else ""
    return marked(f"{score['gain']:+.3g}{ends}", False if ends else None)


def _excuses(found: Found) -> Iterator[Block]:
    for number, variant in enumerate(found["variants"], start=1):
        if text := excuse(found, variant):
            reason, _, log = text.partition("\n")
            yield Text(f"{number} {reason}")
            if log:
                yield Code(log)
    if "figures" not in found["variants"][0]:
        yield Text("The baseline did not run, so there are no ratios.")


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
        [number, variant["name"], *map(bytes_cell, variant["memory"].values()),
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


def on_terminal(found: Found) -> Iterator[Block]:
    """Yields the tables of the page, with fewer columns, and the sentences below them."""
    names, main = [variant["name"] for variant in found["variants"]], found["metric"]["name"]
    without = "#"
    if max(map(len, names)) > NAME_LETTERS:
        without = "variant"
        yield Code("\n".join(f"{number} {name}" for number, name in enumerate(names, start=1)))
    yield results(found).without(without, "padding", *EXCHANGE)
    yield Text(legend(found))
    if any(len(variant.get("metrics", {}).get(main, {}).get("values", ())) > 1 for variant in found["variants"]):
        yield by_seed(found, main).without(without, *(f"seed {seed}" for seed in found["seeds"]))
    yield from worth(found)
    if table := costs(found):
        yield table.without(without)
    if is_of_strategies(found):
        yield beside(found).without("#", "processes")
        yield uses(found).without("#")
    yield from _excuses(found)
    yield from map(Text, notes(found))
    if best := kept(found):
        yield Text(best[0])
        yield Code(f"  {best[1]}")  # in one line, so that it can be copied
