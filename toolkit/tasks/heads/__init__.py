"""What a classification or regression head learns: labels, targets, losses and scores of one problem type.

Whatever the input is (text, picture, recording), the model returns logits `[B, N]`; a head says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor

from toolkit.tasks.heads.multi_label import MultiLabel
from toolkit.tasks.heads.regression import Regression
from toolkit.tasks.heads.single_label import SingleLabel

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from toolkit.document.blocks import Section


class Head(Protocol):
    """One problem type. Built as `HeadClass(options)` with the task's options."""

    scores: Mapping[str, bool]
    """The metrics that can name the best model, and whether greater is better."""
    best_metric: str
    """The one of them that does, unless the YAML names another."""
    error_name: str
    """What `error` measures."""
    has_classes: bool
    """Whether each row has exactly one class."""
    state: dict[str, Any]
    """JSON-able: `labels`, the names of the N logits, and whatever else was learned from the training rows."""

    def __init__(self, options: Any) -> None: ...

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
        """Returns metrics of `[rows, N]` scores."""

    def record(self, scores: np.ndarray, label: Any) -> dict[str, Any]:
        """Returns `label`, `prediction` and whatever else is written down of one row."""

    def summary(self, record: Mapping[str, Any]) -> str:
        """Returns a record's prediction and, if known, label for a person."""

    def error(self, record: dict[str, Any]) -> tuple[float, ...] | None:
        """As `toolkit.api.task.Judges.error`."""

    def report_sections(self, name: str, scores: np.ndarray, targets: np.ndarray, folder: Path) -> list[Section]:
        """As `toolkit.api.task.Reports.report_sections`."""


HEADS: dict[str, type[Head]] = {
    "single_label_classification": SingleLabel,
    "multi_label_classification": MultiLabel,
    "regression": Regression,
}
"""Head by problem type, as transformers names them."""
