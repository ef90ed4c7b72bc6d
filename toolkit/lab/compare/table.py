"""Formats a comparison as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.base.console import format_bytes, format_value

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
