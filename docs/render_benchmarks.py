"""Writes the figures of docs/benchmarks.md and the summary in README.md from benchmarks/results.

python docs/render_benchmarks.py
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.document.render import line, table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures: written by docs/render_benchmarks.py -->\n", "\n<!-- end of figures -->"
RATIO_KEYS = ("ratio_median", "ratio_min", "ratio_max", "pairs")
SECONDS_KEYS = ("seconds",)
EXPECTED = dict.fromkeys(("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P13", "P15", "P16"), RATIO_KEYS)
EXPECTED |= {"P9": SECONDS_KEYS}
"""The benchmarks, and what the file of each must have."""
Result = Mapping[str, Any]


def results() -> dict[str, Result]:
    """Returns the results by name of the file, in the order of their keys."""
    found = {}
    for file in sorted(RESULTS.glob("*.json")):
        page = json.loads(file.read_text(encoding="utf-8"))
        if "benchmark" in page:
            found[file.name] = page
    return dict(sorted(found.items(), key=lambda item: _place(item[1]["benchmark"])))


def _place(key: str) -> tuple[int, str]:
    number = re.fullmatch(r"P(\d+)", key)
    return (int(number[1]), "") if number else (1000, key)


def figure(case: Result) -> str:
    """Returns the figure of a case, with its range: a ratio, or seconds."""
    if "ratio_median" in case:
        low, high = (f"{case[name]:.2f}" for name in ("ratio_min", "ratio_max"))
        return f"**{case['ratio_median']:.2f}x** ({low} to {high}, {case['pairs']} pairs)"
    low, high = (f"{case[name]:.2f}" for name in ("seconds_min", "seconds_max"))
    return f"**{case['seconds']:.2f} s** ({low} to {high}, {case['runs']} runs)"


def machine(page: Result) -> str:
    """Returns in one line where and how a benchmark ran."""
    versions = ", ".join(f"{name} {page['versions'][name]}" for name in ("torch", "transformers"))
    bf16 = f" with {' and '.join(page['bf16'])}" if page["bf16"] else ""
    clock = "CPU time" if page["clock"] == "CPU" else "wall-clock time"
    threads = "1 thread" if page["threads"] == 1 else f"{page['threads']} threads"
    gpu = f"{page['gpu']}, " if page.get("gpu") else ""
    return f"{gpu}{page['cpu']}{bf16}, {threads}, {clock}; {versions}; commit {page['commit'][:12]}"


def scores(cases: Mapping[str, Result]) -> str:
    """Returns the table of the scores that trainings of this and of an earlier commit reached, seed by seed."""
    header = ["case", "score", "commit", "its score", "earlier commit's", "seconds of training, earlier / this"]
    rows = []
    for name, case in cases.items():
        sides = {side: [run[side]["score"] for run in case["runs"]] for side in ("this", "other")}
        shown = [spread(sides["this"]), spread(sides["other"])]
        if whole := case.get("whole"):  # the runs that are compared are parts of a training
            shown = [f"{whole['this']['score']:.4g} (seed {case['whole_seed']})", "not measured"]
        rows.append([line(name), line(case["metric"]), case["commit"][:12], *shown, figure(case["train"])])
    return table(header, rows, marked_up=True)


def spread(values: Sequence[float]) -> str:
    """Returns the mean of the values of several seeds, and each of them."""
    each = ", ".join(f"{value:.4g}" for value in values)
    return f"{statistics.fmean(values):.4g} ({each})" if len(values) > 1 else each


def each_configuration(cases: Mapping[str, Result]) -> str:
    """Returns the table of the seconds of each tool on each configuration."""
    tools = {name: case["each"] for name, case in cases.items()}
    configurations = sorted({name for each in tools.values() for name in each})
    rows = [
        [line(name), *(f"{each[name]:.0f}" if name in each else "" for each in tools.values())]
        for name in configurations
    ]
    return table(["seconds", *map(line, tools)], rows, marked_up=True)


def sides(cases: Mapping[str, Result]) -> str:
    """Returns the table of what each side of the cases did, and the memory that it took."""
    rows = []
    for name, case in cases.items():
        for side, rate in case.get("rows_per_second", {}).items():
            share = f"{case['share_of_matmul'][side]:.1%}" if "share_of_matmul" in case else ""
            rows.append([line(name), line(side), f"{rate:.0f}", f"{case['gib'][side]:.2f}", share])
    header = ["case", "side", "rows per second", "GiB at most", "share of the speed of a large matrix product"]
    return table(header, rows, marked_up=True)


def both_scores(cases: Mapping[str, Result]) -> str:
    """Returns the table of the scores of several sides, seed by seed, and their median CPU time."""
    names = list(dict.fromkeys(side for case in cases.values() for side in case["scores"]))

    def cell(case: Result, side: str) -> str:
        if side not in case["scores"]:
            return "-"
        return f"{spread(case['scores'][side])}; {statistics.median(case['seconds_per_run'][side]):.0f} s"

    rows = [[line(name), line(case["metric"]), *(cell(case, side) for side in names)] for name, case in cases.items()]
    return table(["case", "score", *map(line, names)], rows, marked_up=True)


def section(file: str, page: Result) -> str:
    """Returns the section of a benchmark: its cases, the check of its losses, and the machine."""
    cases = page.get("cases") or {page.get("case", page["title"]): page}
    unit = "ratio" if "ratio_median" in page else "seconds"
    parts = [
        f"## {page['benchmark']}: {page['title']}",
        table(["case", unit], [[line(name), figure(case)] for name, case in cases.items()], marked_up=True),
    ]
    if commit := page.get("other_commit"):
        parts += [scores(cases), f"The earlier commit is {commit[:12]}. Each seed trained with both at the same time."]
        parts += [
            f"{name} is compared with `{' '.join(case['compared'])}`; its score is that of a whole run on all cores."
            for name, case in cases.items()
            if "compared" in case
        ]
    if all("scores" in case for case in cases.values()):
        parts.append(both_scores(cases))
    if any("rows_per_second" in case for case in cases.values()):
        parts.append(sides(cases))
    if all("each" in case for case in cases.values()):
        parts.append(each_configuration(cases))
    if said := page.get("said"):
        parts.append("\n".join(f"- {line(sentence)}" for sentence in said))
    if check := page.get("loss_check"):
        values = ", ".join(f"{name} {value:.1e}" for name, value in check.items() if isinstance(value, float))
        parts.append(f"Losses: {line(check['losses'])}: {values}.")
    if note := page.get("note"):
        parts.append(line(note))
    parts.append(f"Machine: {line(machine(page))} ([{file}](../benchmarks/results/{file})).")
    return "\n\n".join(parts)


def not_measured() -> list[str]:
    """Returns, as a list of at most one sentence, which benchmarks have no result."""
    measured = {page["benchmark"] for page in results().values()}
    missing = [key for key in sorted(EXPECTED, key=_place) if key not in measured]
    return [f"Not measured yet: {', '.join(missing)}."] if missing else []


def details() -> str:
    """Returns the sections of all benchmarks."""
    return "\n\n".join([*(section(*item) for item in results().items()), *not_measured()])


def summary() -> str:
    """Returns the table of the main case of each benchmark."""
    rows = [
        [page["benchmark"], page["title"], line(page.get("case", "")), figure(page)]
        for page in results().values()
        if page["benchmark"] in EXPECTED
    ]
    measured = [table(["", "benchmark", "case", "result"], rows, marked_up=True)] if rows else []
    return "\n\n".join([*measured, *not_measured()])


def filled(page: Path, text: str) -> str:
    """Returns a page with a text between its markers."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + text + END + rest.split(END)[1]


def rendered() -> str:
    """Returns docs/benchmarks.md as the results have it."""
    return filled(PAGE, details())


def rendered_readme() -> str:
    """Returns README.md as the results have it."""
    return filled(README, summary())


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
    README.write_text(rendered_readme(), encoding="utf-8")
