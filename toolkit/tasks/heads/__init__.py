"""Heads for classification and regression: labels, targets, losses and scores of each problem type.

For every modality the model returns logits `[B, N]`, which the head interprets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from toolkit.api.batch import Record
from toolkit.metrics.score import Quality, Score
from toolkit.tasks.heads.multi_label import MultiLabel
from toolkit.tasks.heads.regression import Regression
from toolkit.tasks.heads.single_label import SingleLabel

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig

    from toolkit.document.blocks import Section


class Head(Protocol):
    """Protocol of a problem type; instances are built as `HeadClass(options)` with the task's options."""

    best_metric: str
    """Name of the score that selects the best model by default."""
    error_name: str
    """Name of what `error` measures."""
    has_classes: bool
    """Whether each row has exactly one class."""
    state: dict[str, Any]
    """JSON-able state learned from the training rows, including `labels`, the names of the N logits."""

    def __init__(self, options: Any) -> None: ...

    @property
    def scores(self) -> Sequence[Score]:
        """See `toolkit.api.task.Task.scores`; includes scores per class once the labels are known."""

    @property
    def answer_columns(self) -> Sequence[str]:
        """See `toolkit.api.task.Task.answer_columns`."""

    def feature(self) -> Any:
        """Returns the Arrow type of a checked label."""

    def check(self, value: Any) -> Any:
        """Returns a row's label as `feature` describes it.

        Raises:
            BadRow: if the label cannot be used, with the reason.
        """

    def learn(self, labels: Sequence[Any]) -> None:
        """Fills `state` from the checked labels of the training rows.

        Raises:
            DataError: if nothing can be learned from them.
        """

    def counts(self, labels: Sequence[Any]) -> dict[str, int]:
        """Returns the number of checked labels with each name, in the order of ids; empty for numbers."""

    def notes(self, counts: Mapping[str, int]) -> list[str]:
        """See `toolkit.api.task.Task.label_notes`."""

    def configure(self, config: PreTrainedConfig) -> None:
        """Writes names and problem type into the model's configuration."""

    def target(self, label: Any) -> Any:
        """Returns the target of a label for the loss; None becomes a target that counts as no item."""

    def count_items(self, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        """Returns the divisor of the summed loss for targets `[B]` or `[B, N]`, a scalar; arguments as `loss_sum`."""

    def loss_sum(self, logits: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        """Returns the loss of logits `[B, N]` summed over the items of targets `[B]` or `[B, N]`, a scalar.

        Args:
            logits: the model's.
            labels: the targets.
            shares: `[B]` by how much each row counts; None for 1.
        """

    def predict(self, logits: Tensor) -> Tensor:
        """Returns the predictions for logits `[B, N]`, with the same shape."""

    def metrics(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Returns metrics of scores `[rows, N]` from `predict`, given targets `[rows]` or `[rows, N]`."""

    def quality(self, scores: np.ndarray, targets: np.ndarray) -> Quality:
        """Returns how far the values of `metrics` can be trusted; the arguments are the same."""

    def record(self, scores: np.ndarray, label: Any) -> Record:
        """Returns the record of one row with `label`, `prediction` and more, from its scores `[N]`."""

    def answer(self, record: Record) -> dict[str, Any]:
        """See `toolkit.api.task.Task.answer`."""

    def describe(self, record: Record) -> tuple[str, str | None]:
        """Returns a record's prediction and label as text; the label is None if unknown."""

    def error(self, record: Record) -> tuple[float, ...] | None:
        """See `toolkit.api.task.Task.error`."""

    def report_sections(self, name: str, scores: np.ndarray, targets: np.ndarray, folder: Path) -> list[Section]:
        """See `toolkit.api.task.Task.report_sections`."""


HEADS: dict[str, type[Head]] = {
    "single_label_classification": SingleLabel,
    "multi_label_classification": MultiLabel,
    "regression": Regression,
}
"""Heads by problem type, with the names of transformers."""
