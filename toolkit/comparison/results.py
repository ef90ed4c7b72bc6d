"""What came out of a comparison: `comparison.json`, and the same as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.comparison.running import Comparison, Job, command_of
from toolkit.comparison.summary import against_first, summarise
from toolkit.config import flatten
from toolkit.console import format_bytes, format_value

NAME_LETTERS = 26
"""Most letters of a variant's name in the table of the terminal."""
SAME, UNKNOWN = "~", "?"
"""Stand before a ratio that could be chance, and before one of which nobody can tell."""
LEGEND = (
    f"{SAME} not distinguishable from the baseline: the intervals overlap. {UNKNOWN} one run alone has no interval."
)


def build(comparison: Comparison, jobs: Sequence[Job], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the whole comparison as JSON-able values.

    Args:
        comparison: what was run.
        jobs: its runs.
        facts: what else is to stand in it.
    """
    checked, rows = comparison.checked, []
    first = next(iter(checked.configs.values()))
    baseline = flatten(first)
    for variant in checked.variants:
        own = [job for job in jobs if job.variant.name == variant.name]
        runs = [job.measured for job in own if job.measured is not None]
        row: dict[str, Any] = {
            "name": variant.name,
            "settings": {**variant.settings, **variant.fixed},
            "command": command_of(comparison, variant),
            "runs": len(runs),
            "reason": next((job.reason for job in own if job.reason), None),
        }
        if cfg := checked.configs.get(variant.name):
            settings = flatten(cfg)
            row["differs"] = {
                key: [baseline.get(key), settings.get(key)]
                for key in dict.fromkeys([*baseline, *settings])
                if baseline.get(key) != settings.get(key)
            }
        rows.append(row | (summarise(runs) if runs else {}))
    measured = [row for row in rows if "figures" in row]
    if measured:
        against_first(measured)
        if measured[0] is not rows[0]:  # there is no baseline to be against
            for row in measured:
                for figure in row["figures"].values():
                    figure["ratio"] = figure["same"] = None
    example = next((job.measured for job in jobs if job.measured is not None), None) or {}
    return {
        **facts,
        "recipe": str(comparison.recipe),
        "config": str(comparison.config),
        "overrides": list(comparison.overrides),
        "launch": None if comparison.launch.file is None else str(comparison.launch.file),
        "num_processes": comparison.launch.processes,
        "seeds": list(comparison.seeds),
        "metric": {name: value for name, value in example.get("metric", {}).items() if name != "draws"},
        **{name: example.get(name) for name in ("device", "hardware", "versions")},
        "variants": rows,
    }


def columns(found: Mapping[str, Any]) -> dict[str, str]:
    """Returns the figures that tables show, in order, by their name in `figures`, with their titles."""
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
    return f"{value:,.0f}" if name.endswith("_per_second") and value >= 100 else format_value(float(value))


def compared(figure: Mapping[str, Any]) -> str:
    """Formats a ratio to the baseline, marked if it could be chance; nothing for the baseline itself."""
    if figure["ratio"] is None:
        return SAME if figure["same"] else ""
    mark = {True: f"{SAME} ", None: f"{UNKNOWN} ", False: ""}[figure["same"]]
    return f"{mark}x{figure['ratio']:.2f}"


def excuse(found: Mapping[str, Any], variant: Mapping[str, Any]) -> str | None:
    """Says that a variant did not run, or not as often as the others, and why; None if it did."""
    if not variant["reason"]:
        return None
    runs, every = variant["runs"], len(found["seeds"])
    missing = "did not run" if not runs else f"ran {runs} of {every} times"
    return f"{variant['name']} {missing}: {variant['reason']}"


def interval(name: str, figure: Mapping[str, Any]) -> str:
    """Formats the interval of a figure; nothing where there is none."""
    if figure["low"] is None:
        return ""
    return f"{shown(name, figure['low'])} to {shown(name, figure['high'])}"


def table(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the titles and rows of the table for the terminal; a cell may have two lines.

    Variants are called by their numbers where a name is too long to stand beside figures in 80 columns.
    """
    names = columns(found)
    numbered = any(len(variant["name"]) > NAME_LETTERS for variant in found["variants"])
    rows = []
    for number, variant in enumerate(found["variants"], start=1):
        called = str(number) if numbered else variant["name"]
        if "figures" not in variant:
            rows.append([called, *[""] * (len(names) + 1)])
            continue
        figures = [
            f"{shown(name, figure['value'])}\n{compared(figure)}".rstrip()
            if (figure := variant["figures"].get(name))
            else ""
            for name in names
        ]
        rows.append([called, figures[0], format_bytes(variant["memory"]["optimizer_state"]), *figures[1:]])
    first, *rest = names.values()
    return ["#" if numbered else "variant", first, "optimizer", *rest], rows


def write(found: Mapping[str, Any], folder: Path) -> None:
    """Writes `comparison.json`, and the page as `comparison.html`, and as `comparison.md` with its pictures."""
    from toolkit.comparison.page import sections, title_and_lead
    from toolkit.report import markdown, page
    from toolkit.report.blocks import Gallery
    from toolkit.report.charts import sheet
    from toolkit.report.facts import write_json, write_text

    write_json(folder / "comparison.json", found)
    said = (*title_and_lead(found), sections(found))
    write_text(folder / "comparison.md", markdown.render(*said))
    write_text(folder / "comparison.html", page.render(*said))
    for figure in (
        f for section in said[2] for block in section.blocks if isinstance(block, Gallery) for f in block.figures
    ):
        write_text(folder / figure.file, sheet([figure.svg]))
