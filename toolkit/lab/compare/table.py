"""A comparison as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.base.console import format_bytes, format_value

NAME_LETTERS = 26
"""Most letters of a variant's name in the table of the terminal."""


SAME, UNKNOWN = "~", "?"
"""Stand before a ratio that could be chance, and before one of which nobody can tell."""


LEGEND = (
    f"{SAME} not distinguishable from the baseline: the intervals overlap. {UNKNOWN} one run alone has no interval."
)


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
    return f"{value:,.0f}" if name == "real_per_second" and value >= 100 else format_value(float(value))


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
