"""The page of a comparison as HTML and Markdown, and its tables for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text as RichText

from toolkit.base.console import format_bytes, format_duration, format_value, rich_console, shorten
from toolkit.config.keys import to_yaml
from toolkit.document.blocks import MISSING, Block, Cell, Code, Figure, Folded, Gallery, Page, Section, Table, Text
from toolkit.lab.compare import pictures
from toolkit.lab.compare.runs import is_busy
from toolkit.lab.compare.statistics import PARTS
from toolkit.system.memory import MEMORY

NAME_LETTERS, NAME_LETTERS_WITH_ROWS = 26, 15
"""Maximum length of a variant's name in the table, and in one that has a column of the rows per step."""

SAME, UNKNOWN = "~", "?"
"""Marks of a difference that could be chance, and of one without an interval."""


def legend(found: Mapping[str, Any]) -> str:
    """Returns a sentence on each mark that a comparison can have."""
    runs = [variant["runs"] for variant in found["variants"] if variant["runs"]]
    parts = []
    if not runs or max(runs) > 1:
        parts.append(f"{SAME} the difference from the baseline could be chance.")
    if runs and min(runs) == 1:
        parts.append(f"{UNKNOWN} a single run does not show how much runs differ by chance; use --seeds 3 or more.")
    return " ".join(parts)


def rows_differ(found: Mapping[str, Any]) -> bool:
    """Returns whether variants have different numbers of rows per step."""
    return len({variant["rows_per_step"] for variant in found["variants"] if "rows_per_step" in variant}) > 1


def columns(found: Mapping[str, Any]) -> dict[str, str]:
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


def compared(name: str, variant: Mapping[str, Any]) -> str:
    """Formats what a figure is against the baseline, marked; empty for the baseline itself.

    A metric has a difference, other figures a ratio.
    """
    figure = variant["figures"][name]
    if metric := variant["metrics"].get(name):
        change = metric["difference"]
        return "" if change is None else marked(differences(change)[0], figure["same"])
    if figure["ratio"] is None:
        return SAME if figure["same"] else ""
    return marked(f"x{figure['ratio']:.2f}", figure["same"])


def excuse(found: Mapping[str, Any], variant: Mapping[str, Any]) -> str | None:
    """Returns a sentence on why a variant did not run, or not with every seed; None if it did."""
    if not variant["reason"]:
        return None
    runs, seeds = variant["runs"], len(found["seeds"])
    missing = "did not run" if not runs else f"ran {runs} of {seeds} times"
    return f"{variant['name']} {missing}: {variant['reason']}"


def interval(name: str, figure: Mapping[str, Any]) -> str:
    """Formats the interval of a figure; empty if there is none."""
    if figure["low"] is None:
        return ""
    return f"{shown(name, figure['low'])} to {shown(name, figure['high'])}"


def labels(found: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Returns the title of the first column and the variants' labels: numbers if a name is too long for 80 columns."""
    letters = NAME_LETTERS_WITH_ROWS if rows_differ(found) else NAME_LETTERS
    names = [variant["name"] for variant in found["variants"]]
    if max(map(len, names)) <= letters:
        return "variant", names
    return "#", [str(number) for number in range(1, len(names) + 1)]


def table(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the titles and rows of the table; a cell may have two lines."""
    names, with_rows = columns(found), rows_differ(found)
    title, labelled = labels(found)
    rows = []
    for label, variant in zip(labelled, found["variants"], strict=True):
        start = [label, *([str(variant.get("rows_per_step", ""))] if with_rows else [])]
        if "figures" not in variant:
            rows.append([*start, *[""] * (len(names) + 1)])
            continue
        figures = [
            f"{shown(name, figure['value'])}\n{compared(name, variant)}".rstrip()
            if (figure := variant["figures"].get(name))
            else ""
            for name in names
        ]
        rows.append([*start, figures[0], format_bytes(variant["memory"]["optimizer_state"]), *figures[1:]])
    first, *rest = names.values()
    return [title, *(["rows/step"] if with_rows else []), first, "optimizer", *rest], rows


def metric_table(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]] | None:
    """Returns titles and rows of the main metric: mean, deviation, paired difference; None if no variant ran twice."""
    name = found["metric"]["name"]
    title, labelled = labels(found)
    rows = []
    for label, variant in zip(labelled, found["variants"], strict=True):
        if (metric := variant.get("metrics", {}).get(name)) and metric["deviation"] is not None:
            rows.append([label, *spread(metric), *differences(metric["difference"])])
    return ([title, name.removeprefix("eval_"), *SPREAD[1:], *DIFFERENCE], rows) if rows else None


SPREAD = ("mean", "sd", "n")
DIFFERENCE = ("difference", "95 % interval")


def spread(metric: Mapping[str, Any]) -> list[str]:
    """Formats mean, standard deviation and number of runs of a metric."""
    deviation = metric["deviation"]
    return [format_value(metric["value"]), "" if deviation is None else f"{deviation:.2g}", str(len(metric["values"]))]


def differences(change: Mapping[str, Any] | None) -> list[str]:
    """Formats a paired difference and its interval; empty for the baseline."""
    if change is None:
        return ["", ""]
    interval = "" if change["low"] is None else f"{change['low']:+.2g} to {change['high']:+.2g}"
    return [f"{change['value']:+.3g}", interval]


SUMMED = {"run_seconds": "time", "energy_wh": "energy", "co2_grams": "CO2", "cost": "price"}
"""Figures of a run that are added up over all runs, with the titles of their columns."""
TO_TARGET = {"target_seconds": "to target", "target_step": "steps to it", "target_energy_wh": "energy to it"}
"""Figures of the first evaluation that reached `train.target_metric`, with the titles of their columns."""
COLUMNS = {**SUMMED, **TO_TARGET}
UNITS = {"energy_wh": "Wh", "co2_grams": "g", "target_energy_wh": "Wh"}

_Found = Mapping[str, Any]
"""Contents of `comparison.json`."""


def cost_text(name: str, value: float) -> str:
    """Formats a figure with its unit."""
    if name.endswith("_seconds"):
        return format_duration(value)
    return " ".join(filter(None, (format_value(float(value)), UNITS.get(name))))


def cost_columns(found: _Found) -> dict[str, str]:
    """Returns the titles of the figures that any variant has, by name; those of a target if any variant has one."""
    has = {name for variant in found["variants"] for name in variant.get("costs", {})}
    aims = any(variant.get("target") for variant in found["variants"])
    return {name: title for name, title in COLUMNS.items() if name in has or (aims and name == "target_seconds")}


def cell(name: str, variant: Mapping[str, Any]) -> Cell:
    """Returns a figure of a variant, how often a target was reached unless always, and the ratio to the baseline."""
    figure = variant["costs"].get(name)
    if figure is None:
        return Cell("not reached" if name == "target_seconds" and variant.get("target") else "")
    words = [cost_text(name, figure["value"])]
    if name in TO_TARGET and figure["runs"] < variant["runs"]:
        words.append(f"({figure['runs']} of {variant['runs']} runs)")
    if figure["ratio"] is not None:
        words.append(f"{'~ ' if figure['same'] else ''}x{figure['ratio']:.2f}")
    return Cell("\n".join(words), figure["value"])


def cost_lines(found: _Found, labels: Sequence[str]) -> tuple[list[str], list[list[str]]] | None:
    """Returns titles and rows of the table for the terminal; None if nothing is known.

    Args:
        found: the comparison.
        labels: of the variants.
    """
    names = [name for name in cost_columns(found) if name != "run_seconds"]  # the step time says more
    if not names:
        return None
    rows = [
        [label, *(cell(name, variant).text for name in names)]
        for label, variant in zip(labels, found["variants"], strict=True)
        if "costs" in variant
    ]
    sums = found.get("costs", {})
    rows.append(["all runs", *(cost_text(name, sums[name]) if name in sums else "" for name in names)])
    return ["cost", *(COLUMNS[name] for name in names)], rows


def section(found: _Found) -> Section:
    """Returns the section of the page; without blocks if nothing is known."""
    names, sums = cost_columns(found), found.get("costs", {})
    rows: list[list[Any]] = [
        [number, variant["name"], *(cell(name, variant) for name in names)]
        for number, variant in enumerate(found["variants"], start=1)
        if "costs" in variant
    ]
    if not names or not rows:
        return Section("Cost", [])
    rows.append([None, "all runs", *(Cell(cost_text(n, sums[n]), sums[n]) if n in sums else None for n in names)])
    said: list[Block] = [Table(["#", "variant", *names.values()], rows)]
    if source := found.get("energy_source"):
        said.append(Text(f"Medians over runs; ~ marks ratios that could be chance. Energy: {source}."))
    if target := next((variant["target"] for variant in found["variants"] if variant.get("target")), None):
        words = " and ".join(f"{name} {format_value(float(goal))}" for name, goal in target.items())
        said.append(Text(f"The target is {words} (train.target_metric)."))
    return Section("Cost", said)


HELD = ("parameters", "gradients", "optimizer_state")
"""Parts of the memory that are estimated one by one."""
BESIDE = (
    "The process that holds the most, with the estimate of toolkit plan in parentheses. Estimates count tensors only; "
    "those of the peak are shifted by the difference of the first variant, to include the memory of libraries. "
    "Rows without a measurement need more processes, and are estimates for as many as they need."
)


def is_of_strategies(found: Mapping[str, Any]) -> bool:
    """Returns whether a comparison is one of parallel strategies."""
    return any("technique" in variant for variant in found["variants"])


def shift(found: Mapping[str, Any]) -> float:
    """Returns the measured peak of the first variant minus its estimate, in bytes; 0 if one is missing."""
    first = found["variants"][0]
    if not first.get("estimate") or "ranks" not in first:
        return 0.0
    return float(most(first, "train_peak")) - float(first["estimate"]["peak"])


def most(variant: Mapping[str, Any], part: str) -> int:
    """Returns the bytes of a part on the process that has the most."""
    return max(rank[part] for rank in variant["ranks"])


def pairs(found: Mapping[str, Any], variant: Mapping[str, Any]) -> list[tuple[float | None, float | None]]:
    """Returns measured and estimated bytes of the parts in `HELD`, the peak, and what is sent per step."""
    estimate, ran = variant.get("estimate"), "ranks" in variant
    measured = [most(variant, part) for part in (*HELD, "train_peak")] if ran else [None] * 4
    guessed = [estimate[part] for part in HELD] + [estimate["peak"] + shift(found)] if estimate else [None] * 4
    sent = (variant["exchange"].get("bytes") if ran else None, estimate["sent"] if estimate else None)
    return [*zip(measured, guessed, strict=True), sent]


def strategy_sections(found: Mapping[str, Any]) -> list[Section]:
    """Returns the sections of a page; none for other comparisons of a single process."""
    numbered = list(enumerate(found["variants"], start=1))
    parts = []
    if is_of_strategies(found):
        parts += [
            Section("Measured and estimated", [_beside(found, numbered), Text(BESIDE)]),
            Section("When to use which", [_uses(numbered)]),
        ]
    if found["num_processes"] > 1 and any("ranks" in variant for variant in found["variants"]):
        parts.append(Section("Memory of each process", [_ranks(numbered)]))
    return parts


def _beside(found: Mapping[str, Any], numbered: Sequence[tuple[int, Any]]) -> Table:
    rows = [
        [number, variant["name"], variant["technique"]["processes"], *(_pair(*pair) for pair in pairs(found, variant))]
        for number, variant in numbered
        if not variant["technique"]["refused"]
    ]
    titles = ["weights", "gradients", "optimizer state", "peak", "sent per step"]
    return Table(["#", "strategy", "processes", *titles], rows, sortable=True)


def _pair(measured: float | None, estimate: float | None) -> Cell:
    texts = [MISSING if value is None else format_bytes(value) for value in (measured, estimate)]
    return Cell(f"{texts[0]} ({texts[1]})", estimate if measured is None else measured)


def _uses(numbered: Sequence[tuple[int, Any]]) -> Table:
    rows = [
        [number, variant["name"], variant["technique"]["complexity"], variant["technique"]["when"]]
        for number, variant in numbered
    ]
    return Table(["#", "strategy", "complexity", "when to use"], rows)


def _ranks(numbered: Sequence[tuple[int, Any]]) -> Table:
    parts = (*PARTS, "train_peak")
    rows = [
        [number, variant["name"], rank, *(Cell(format_bytes(held[part]), held[part]) for part in parts)]
        for number, variant in numbered
        for rank, held in enumerate(variant.get("ranks", ()))
    ]
    return Table(["#", "variant", "process", *(MEMORY[part] for part in parts)], rows)


def strategy_lines(found: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Returns titles and rows of the tables for a terminal of 80 columns; a cell may have two lines."""
    if not is_of_strategies(found):
        return []
    rows, uses = [], []
    for variant in found["variants"]:
        uses.append([variant["name"], variant["technique"]["complexity"], variant["technique"]["when"]])
        if variant["technique"]["refused"]:
            continue
        *parts, peak, sent = [
            "\n".join(MISSING if value is None else format_bytes(value) for value in pair)
            for pair in pairs(found, variant)
        ]
        name = f"{variant['name']}\n  {variant['technique']['processes']} processes, estimate"
        rows.append([name, *parts, peak, sent])
    return [
        (["measured, estimated", "weights", "gradients", "optimizer", "peak", "sent/step"], rows),
        (["strategy", "complexity", "when to use"], uses),
    ]


def notes(found: Mapping[str, Any]) -> Iterator[str]:
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


def kept(found: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns a sentence on the model that `--keep-best` kept, and the command that uses it; None if there is none."""
    best = found.get("best")
    if best is None:
        return None
    mean = f"mean {best['metric']} {format_value(best['mean'])}"
    sentence = f"The best variant is {shorten(best['variant'], 60)} ({mean}). The run with seed {best['seed']} is kept:"
    return sentence, f"toolkit predict {shlex.quote(best['run'])} --input FILE"


def _busy(found: Mapping[str, Any]) -> str | None:
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
        "unreliable; measure again with nothing else running, and another --output-dir."
    )


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
    return Table(titles, rows, sortable=True, stacked=True, caption=name.removeprefix("eval_"))


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
    if is_of_strategies(found):
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
    parts += strategy_sections(found)
    if any(variant["metrics"] for _, variant in measured):
        parts.append(Section("Metrics", list(scores(found, measured))))
    parts += [part for part in [section(found)] if part.blocks]
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


def write(found: Mapping[str, Any], folder: Path) -> None:
    """Writes `comparison.json`, `comparison.html`, `comparison.md` and the charts of the latter to `folder`."""
    from toolkit.base.files import write_json
    from toolkit.document.render import save_page

    write_json(folder / "comparison.json", found)
    save_page(folder, "comparison", Page(*title_and_lead(found), sections(found)))


def show_result(found: Mapping[str, Any]) -> None:
    """Prints the table of results, 80 columns wide if the output is not a terminal."""
    titles, rows = table(found)
    console = rich_console()
    console.print()
    for number, variant in enumerate(found["variants"] if titles[0] == "#" else (), start=1):
        console.print(RichText(f"{number} {variant['name']}"))
    console.print(_shown(titles, rows, "right"))
    console.print(RichText(legend(found)))
    if several := metric_table(found):
        console.print()
        console.print(_shown(*several, "right"))
    if spent := cost_lines(found, labels(found)[1]):
        console.print()
        console.print(_shown(*spent, "right"))
    figures: JustifyMethod = "right"
    for more in strategy_lines(found):
        console.print()
        console.print(_shown(*more, figures))
        figures = "left"  # the second table has sentences
    for variant in found["variants"]:
        if text := excuse(found, variant):
            console.print(RichText(text))
    if any(notes(found)):
        console.print()
    for note in notes(found):
        console.print(RichText(note))
    if best := kept(found):
        sentence, command = best
        console.print(RichText(f"\n{sentence}"))
        print(f"  {command}")  # in one line, so that it can be copied


def _shown(titles: Sequence[str], rows: Sequence[Sequence[str]], justify: JustifyMethod) -> RichTable:
    shown = RichTable(box=None, pad_edge=False)
    for place, title in enumerate(titles):
        shown.add_column(RichText(title), justify="left" if place == 0 else justify, overflow="fold")
    for row in rows:
        shown.add_row(*map(RichText, row))
    return shown
