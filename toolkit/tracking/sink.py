"""What the functions of all trackers have in common: the run that is tracked, and the form of names and numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from toolkit.api.exhibits import Exhibits
from toolkit.metrics.score import PREFIXES

Plain = int | float | str | bool


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers need it: `ids` are those of an earlier session, `start_step` is 0 for a new run."""

    project: str
    name: str
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    start_step: int = 0
    ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def plain_settings(self) -> dict[str, Plain]:
        """The settings; those that are no single value as JSON."""
        return {key: value if isinstance(value, Plain) else json.dumps(value, default=str)
                for key, value in self.settings.items()}  # fmt: skip


class Sink(Protocol):
    """One tracker of a run that is open; those that can show them have `histograms` and `graph` of `Trackers`, too."""

    id: str | None
    """Id by which a resumed run continues it; None if the tracker needs none."""
    keeps_sent: bool
    """Whether numbers that an earlier session has sent are kept, so that they must not be sent again."""

    def numbers(self, values: Mapping[str, int | float], step: int) -> None:
        """Logs numbers by their tag."""

    def show(self, exhibits: Exhibits) -> None:
        """Shows the pictures, tables and page of a finished run."""

    def finish(self) -> None:
        """Ends the tracker."""


def finite_numbers(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int | float]]:
    """Yields names and values of the finite numbers in nested mappings; names are joined with `/`."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from finite_numbers(value, f"{prefix}{name}/")
        elif isinstance(value, Real) and math.isfinite(value):
            yield f"{prefix}{name}", value if isinstance(value, int | float) else float(value)


def tag(name: str) -> str:
    """Returns the name of a number in trackers, grouped as by `transformers.Trainer`: `train/loss`, `eval/f1`."""
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if f"{group}_" in PREFIXES and rest else f"train/{name.removeprefix('train_')}"


def final_numbers(exhibits: Exhibits) -> dict[str, int | float]:
    """Returns the metrics of the final model, which belong to no step, by their tags `final/<name>`."""
    return {f"final/{name}": value for name, value in finite_numbers(exhibits.results)}


def report_tag(title: str) -> str:
    """Returns the name of a picture or table in trackers."""
    return f"report/{re.sub(r'[^a-z0-9]+', '_', title.lower()).strip('_')}"


def folder_name(text: str) -> str:
    """Returns text as the name of a single folder, without separators and `..`."""
    return re.sub(r"[^\w. -]", "-", text).strip(". ") or "run"
