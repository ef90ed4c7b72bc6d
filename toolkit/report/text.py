"""Figures as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.base.console import format_bytes, format_value


def readable(figures: Mapping[str, Any]) -> dict[str, str]:
    """Formats figures for a person: memory in KiB or MiB, counts with commas, None left out."""
    shown = {}
    for name, value in figures.items():
        if value is None:
            continue
        if name.endswith("_bytes"):
            shown[name.removesuffix("_bytes")] = format_bytes(value)
        elif isinstance(value, int):
            shown[name] = f"{value:,}"
        else:
            shown[name] = format_value(value)
    return shown
