"""What a run shows in trackers besides its numbers, and the trackers as the rest of the toolkit sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from toolkit.document.blocks import Table


@dataclass(frozen=True)
class Histogram:
    """The distribution of a tensor's values."""

    counts: Sequence[int]  # `[N]` number of values in each bin
    edges: Sequence[float]  # `[N + 1]` edges of the bins, of equal width, from the lowest value to the highest
    total: float  # sum of the values
    squares: float  # sum of their squares


class Node(NamedTuple):
    """A tensor of a model's forward pass."""

    name: str  # the operation in its module, or the parameter: `/` separates nested modules
    kind: str  # the name of the operation, `Input`, `Parameter` or `Buffer`
    used: Sequence[str]  # names of the nodes from which it is computed
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Exhibits:
    """What a finished run shows."""

    step: int  # its last step
    results: Mapping[str, Any] = field(default_factory=dict)  # its final metrics and measurements, by name
    pictures: Mapping[str, bytes] = field(default_factory=dict)  # the bytes of PNG files, by title
    tables: Mapping[str, Table] = field(default_factory=dict)  # predictions and generated texts, by title
    page: str = ""  # the report as HTML


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

    def graph(self, nodes: Sequence[Node]) -> None:
        """Shows the operations of the model as a graph in TensorBoard."""

    def show(self, exhibits: Exhibits) -> None:
        """Shows what a finished run has to show."""

    def close(self) -> None:
        """Ends all trackers; may be called several times."""
