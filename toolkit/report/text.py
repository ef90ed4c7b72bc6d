"""Figures and predictions as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.api.task import Description
from toolkit.base.console import format_bytes, format_value, shorten
from toolkit.metrics.measured import MEASURED


def readable(figures: Mapping[str, Any]) -> dict[str, str]:
    """Formats figures: amounts of memory in KiB or MiB, counts with commas; None is left out."""
    shown = {}
    for name, value in figures.items():
        if value is None:
            continue
        if name in MEASURED and MEASURED[name].unit == "B":
            shown[name.removesuffix("_bytes")] = format_bytes(value)  # the value says its unit
        elif isinstance(value, int):
            shown[name] = f"{value:,}"
        else:
            shown[name] = format_value(value)
    return shown


def described(description: Description) -> str:
    """Formats a prediction for the console, on two lines or, with what was expected, on three."""
    lines = [shorten(description.input), f"    -> {shorten(description.prediction)}"]
    if description.expected is not None:
        lines.append(f"    expected {shorten(description.expected)}")
    return "\n".join(lines)
