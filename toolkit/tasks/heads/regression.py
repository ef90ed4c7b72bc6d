"""Regression of one or several numbers per row. An item is a row x target; unknown ones are NaN, -100 is a value.

With `task.scale_targets`, the model learns each target in units of the standard deviation of the training rows, from
their mean, so that the loss and the rate do not depend on the target's unit. Predictions and scores are in that unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.batch import BadRow, Record
from toolkit.base.errors import DataError
from toolkit.data.values import parse_number, printed_list
from toolkit.metrics.regression import PER_TARGET, REGRESSION, regression_quality, regression_scores
from toolkit.metrics.score import Quality, Score
from toolkit.tasks.heads.head import Head
from toolkit.tasks.heads.losses import shared

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig

    from toolkit.document.blocks import Section

ONLY_TARGET = "value"


class Regression(Head):
    """Regression with squared error; see `toolkit.tasks.heads.Head`.

    A label is a number, a list of numbers (also printed as text) or, with several `task.labels`, text with numbers
    between `task.label_separator`; null or an empty entry of a list is an unknown target.
    """

    problem_type = "regression"
    best_metric = "mse"
    error_name = "squared error"
    has_probabilities, decision_rules, decided = False, ("sets",), ("low", "high")
    overall, per_label = REGRESSION, PER_TARGET

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        if options.scale_targets:
            self.state["scales"] = None

    @property
    def scores(self) -> Sequence[Score]:
        return super().scores if len(self.state["labels"] or ()) > 1 else REGRESSION

    def feature(self) -> Any:
        from datasets import List, Value

        return List(Value("float64"))

    def check(self, value: Any) -> list[float]:
        several = len(self.options.labels or ()) > 1
        if isinstance(value, str):
            listed = printed_list(value)
            value = value.split(self.options.label_separator) if listed is None and several else listed or value
        parts = value if isinstance(value, list) else [value]
        numbers = [parse_number(part, self.options.decimal) for part in parts]
        if all(math.isnan(number) for number in numbers):
            raise BadRow(f"label {value!r} has no number")
        names = self.state["labels"]
        if names is not None and len(numbers) != len(names):
            raise BadRow(f"label {value!r} has {len(numbers)} numbers, expected {len(names)} ({', '.join(names)})")
        return numbers

    def learn(self, labels: Sequence[list[float]]) -> None:
        sizes = sorted({len(numbers) for numbers in labels})
        if len(sizes) != 1:
            raise DataError(f"data: labels of training rows have {' or '.join(map(str, sizes))} numbers; name the "
                            "targets in task.labels to list the wrong rows.")  # fmt: skip
        names = [ONLY_TARGET] if sizes == [1] else [str(number) for number in range(sizes[0])]
        self.state["labels"] = self.state["labels"] or names
        if self.options.scale_targets:
            self.state["scales"] = _scales(np.asarray(labels, dtype=np.float64), self.state["labels"])

    def configure(self, config: PreTrainedConfig) -> None:
        super().configure(config)
        if self.options.scale_targets:
            config.target_scales = self.state["scales"]  # for those who use the model without the toolkit

    def target(self, label: list[float] | None) -> list[float]:
        return [math.nan] * len(self.state["labels"]) if label is None else [parse_number(part) for part in label]

    def loss_sum(self, logits: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        import torch

        if self.options.scale_targets:
            mean, deviation = self._scale(labels)
            labels = (labels - mean) / deviation
        losses = (logits - labels.nan_to_num().to(logits.dtype)) ** 2
        return shared(torch.where(labels.isnan(), 0.0, losses), shares).sum()

    def predict(self, logits: Tensor) -> Tensor:
        if not self.options.scale_targets:
            return logits.float()
        mean, deviation = self._scale(logits.double())
        return (logits.double() * deviation + mean).float()

    def misses(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(self.state["labels"], np.abs(scores - targets).T, strict=True))

    def _scale(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mean and standard deviation of each target, `[N]` each."""
        mean, deviation = zip(*(self.state["scales"][name] for name in self.state["labels"]), strict=True)
        return like.new_tensor(mean), like.new_tensor(deviation)

    def metrics(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        return regression_scores(scores, targets, self.state["labels"])

    def quality(self, scores: np.ndarray, targets: np.ndarray) -> Quality:
        return regression_quality(scores, targets, self.state["labels"])

    def record(self, scores: np.ndarray, label: list[float] | None) -> Record:
        record = {"label": None if label is None else self._named(label), "prediction": self._named(scores)}
        if self.decision:
            half = np.array([*self.decision["misses"].values()])
            record |= {"low": self._named(scores - half), "high": self._named(scores + half)}
        return record

    def _named(self, numbers: Sequence[float] | np.ndarray) -> Any:
        known = [None if number is None or math.isnan(number) else float(number) for number in numbers]
        return known[0] if len(known) == 1 else dict(zip(self.state["labels"], known, strict=True))

    def describe(self, record: Record) -> tuple[str, str | None]:
        return _shown(record["prediction"]), None if record["label"] is None else _shown(record["label"])

    def error(self, record: Record) -> tuple[float, ...] | None:
        label, prediction = record["label"], record["prediction"]
        pairs = [(true, prediction[name]) for name, true in label.items()] if isinstance(label, dict) else None
        errors = [(true - predicted) ** 2 for true, predicted in pairs or [(label, prediction)] if true is not None]
        return (sum(errors) / len(errors),) if any(errors) else None

    def report_sections(self, name: str, scores: np.ndarray, targets: np.ndarray, folder: Path) -> list[Section]:
        from toolkit.document.blocks import Section
        from toolkit.tasks.heads.tables import score_table

        labels, counts = self.state["labels"], (~np.isnan(targets)).sum(axis=0)
        if len(labels) == 1:
            return []
        table = score_table(labels, self.metrics(scores, targets), PER_TARGET, counts)
        return [Section(f"Numbers ({name})", [table])]


def _scales(numbers: np.ndarray, names: Sequence[str]) -> dict[str, list[float]]:
    """Returns mean and standard deviation (1 if constant) of each target in `[rows, targets]`; NaN is unknown."""
    if unknown := [name for name, column in zip(names, numbers.T, strict=True) if np.isnan(column).all()]:
        raise DataError(f"task.scale_targets: no training row has a number for {', '.join(unknown)}")
    means, deviations = np.nanmean(numbers, axis=0), np.nanstd(numbers, axis=0)
    # Of equal values, only rounding is left.
    deviations = np.where(deviations > 1e-12 * np.maximum(1e-300, np.abs(means)), deviations, 1.0)
    return dict(zip(names, np.stack([means, deviations], axis=1).tolist(), strict=True))


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(number)}" for name, number in value.items())
    return "unknown" if value is None else f"{value:.4g}"
