"""What a run shows in trackers besides its numbers, and the trackers as the rest of the toolkit sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolkit.document.blocks import Table


@dataclass(frozen=True)
class Histogram:
    """The distribution of a tensor's values.

    Args:
        counts: `[N]` number of values in each bin.
        edges: `[N + 1]` edges of the bins, of equal width, from the lowest value to the highest.
        total: sum of the values.
        squares: sum of their squares.
    """

    counts: Sequence[int]
    edges: Sequence[float]
    total: float
    squares: float


@dataclass(frozen=True)
class Exhibits:
    """What a finished run shows.

    Args:
        step: its last step.
        results: its final metrics and measurements, by name.
        pictures: the bytes of PNG files, by title.
        tables: predictions and generated texts, by title.
        page: the report as HTML.
    """

    step: int
    results: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    page: str = ""


class Trackers(Protocol):
    """The trackers of a run, on its main process. They receive nothing before they are started and after they close."""

    def start(self, start_step: int, sent: frozenset[tuple[int, tuple[str, ...]]] = frozenset()) -> None:
        """Starts the trackers at a step, 0 for a new run; `sent` has step and names of the lines that were sent before.

        Raises:
            RunError: if a tracker cannot be started.
        """

    def log(self, line: Mapping[str, Any]) -> None:
        """Logs the numbers of a line of `metrics.jsonl`."""

    def histograms(self, found: Mapping[str, Histogram], step: int) -> None:
        """Logs histograms by name."""

    def show(self, exhibits: Exhibits) -> None:
        """Shows what a finished run has to show."""

    def close(self) -> None:
        """Ends all trackers; may be called several times."""
