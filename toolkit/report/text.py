"""Formats metrics and predictions as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.api.batch import Description
from toolkit.api.run import FitResult
from toolkit.base.console import format_bytes, format_duration, format_value, shorten
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


def measurements(result: FitResult) -> dict[str, str]:
    """Returns the loss, time, speed and memory of a training as text, by name."""
    seconds, speed = format_duration(result.train_seconds), f"{result.items_per_second:,.4g} items per second"
    loss = {} if result.train_loss is None else {"train_loss": format_value(result.train_loss)}
    return loss | {"training time": f"{seconds}, {speed}", "peak memory": format_bytes(result.memory.peak)}


def described(description: Description) -> str:
    """Formats a prediction for the console on two lines."""
    expected = "" if description.expected is None else f", expected {shorten(description.expected, 30)}"
    return f"{shorten(description.input)}\n    -> {shorten(description.prediction, 70 - len(expected))}{expected}"
