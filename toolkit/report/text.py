"""Formats metrics and predictions as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.api.task import Description
from toolkit.base.console import format_bytes, format_value, shorten
from toolkit.metrics.measured import MEASURED


def base_name(name: str) -> str:
    """Returns the short name of a base model: its Hub id, or of a folder its name and its parent's."""
    if not Path(name).is_absolute() and not Path(name).is_dir():
        return name
    parts = Path(name).absolute().parts[1:]
    cached = [part.split("--", 1)[1].replace("--", "/") for part in parts if part.startswith("models--")]
    return cached[-1] if cached else "/".join(parts[-2:])


def readable(figures: Mapping[str, Any]) -> dict[str, str]:
    """Formats metrics: memory with units such as MiB, counts with commas; None is omitted."""
    shown = {}
    for name, value in figures.items():
        if value is None:
            continue
        if name in MEASURED and MEASURED[name].unit == "B":
            shown[name.removesuffix("_bytes")] = format_bytes(value)  # the value includes its unit
        elif isinstance(value, int):
            shown[name] = f"{value:,}"
        else:
            shown[name] = format_value(value)
    return shown


def described(description: Description) -> str:
    """Formats a prediction for the console on two lines, or three if the expected value is known."""
    lines = [shorten(description.input), f"    -> {shorten(description.prediction)}"]
    if description.expected is not None:
        lines.append(f"    expected {shorten(description.expected)}")
    return "\n".join(lines)
