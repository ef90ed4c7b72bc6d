"""Formats a comparison as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.base.console import format_bytes, format_value

NAME_LETTERS = 26
"""Maximum length of a variant's name in the table."""

SAME, UNKNOWN = "~", "?"
"""Marks of a ratio that could be chance, and of one without an interval."""

LEGEND = (
    f"{SAME} not distinguishable from the baseline: the intervals overlap. {UNKNOWN} one run alone has no interval."
)


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


def compared(figure: Mapping[str, Any]) -> str:
    """Formats the ratio to the baseline, with a mark if it could be chance; empty for the baseline itself."""
    if figure["ratio"] is None:
        return SAME if figure["same"] else ""
    mark = {True: f"{SAME} ", None: f"{UNKNOWN} ", False: ""}[figure["same"]]
    return f"{mark}x{figure['ratio']:.2f}"


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


def table(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the titles and rows of the table; a cell may have two lines.

    Variants are shown by their numbers if a name is too long for 80 columns.
    """
    names = columns(found)
    numbered = any(len(variant["name"]) > NAME_LETTERS for variant in found["variants"])
    rows = []
    for number, variant in enumerate(found["variants"], start=1):
        label = str(number) if numbered else variant["name"]
        if "figures" not in variant:
            rows.append([label, *[""] * (len(names) + 1)])
            continue
        figures = [
            f"{shown(name, figure['value'])}\n{compared(figure)}".rstrip()
            if (figure := variant["figures"].get(name))
            else ""
            for name in names
        ]
        rows.append([label, figures[0], format_bytes(variant["memory"]["optimizer_state"]), *figures[1:]])
    first, *rest = names.values()
    return ["#" if numbered else "variant", first, "optimizer", *rest], rows
