"""Problem types of classification and regression: labels, targets, losses and scores.

Whatever the input is (text, image, audio), the model returns logits `[B, N]`; a head says what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor

from toolkit.api.task import Record
from toolkit.metrics.score import Score
from toolkit.tasks.heads.multi_label import MultiLabel
from toolkit.tasks.heads.regression import Regression
from toolkit.tasks.heads.single_label import SingleLabel

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from toolkit.document.blocks import Section


class Head(Protocol):
    """One problem type. Built as `HeadClass(options)` with the task's options."""

    best_metric: str
    """Which of `scores` names the best model, unless the YAML names another."""
    error_name: str
    """What `error` measures."""
    has_classes: bool
    """Whether each row has exactly one class."""
    state: dict[str, Any]
    """JSON-able: `labels`, the names of the N logits, and whatever else was learned from the training rows."""

    def __init__(self, options: Any) -> None: ...

    @property
    def scores(self) -> Sequence[Score]:
        """As `toolkit.api.task.Task.scores`; those per class once the labels are known."""

    def feature(self) -> Any:
        """Returns the Arrow type of a checked label."""

    def check(self, value: Any) -> Any:
        """Returns a row's label as `feature` describes it.

        Raises:
            BadRow: with the reason why the label cannot be used.
        """

    def learn(self, labels: Sequence[Any]) -> None:
        """Fills `state` from the checked labels of the training rows.

        Raises:
            DataError: if nothing can be learned from them.
        """

    def configure(self, config: PreTrainedConfig) -> None:
        """Writes names and problem type into the model's configuration."""

    def target(self, label: Any) -> Any:
        """Returns what the loss compares with; of None a target that counts as no item."""

    def count_items(self, labels: Tensor) -> Tensor:
        """Returns what the summed loss of targets `[B]` or `[B, N]` is divided by, a scalar."""

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of `[B, N]` logits summed over the items of `[B]` or `[B, N]` targets, a scalar."""

    def predict(self, logits: Tensor) -> Tensor:
        """Returns what is kept of `[B, N]` logits as predictions, of the same shape."""

    def metrics(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Returns metrics of `[rows, N]` scores, as `predict` gives them, against `[rows]` or `[rows, N]` targets."""

    def record(self, scores: np.ndarray, label: Any) -> Record:
        """Returns `label`, `prediction` and whatever else is written about one row; `scores` are its `[N]`."""

    def describe(self, record: Record) -> tuple[str, str | None]:
        """Says a record's prediction and label in words; None for a label that is not known."""

    def error(self, record: Record) -> tuple[float, ...] | None:
        """As `toolkit.api.supports.SupportsErrorRanking.error`."""

    def report_sections(self, name: str, scores: np.ndarray, targets: np.ndarray, folder: Path) -> list[Section]:
        """As `toolkit.api.supports.SupportsReport.report_sections`."""


HEADS: dict[str, type[Head]] = {
    "single_label_classification": SingleLabel,
    "multi_label_classification": MultiLabel,
    "regression": Regression,
}
"""Head by problem type, as transformers names them."""
