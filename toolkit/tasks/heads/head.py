"""The base class of heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from toolkit.api.batch import Record
from toolkit.base.errors import DataError
from toolkit.config.messages import did_you_mean, join
from toolkit.metrics.score import Quality, Score, per_class_scores
from toolkit.tasks.heads.losses import shared
from toolkit.tasks.labels import label_text, map_notes, plain_map, set_labels

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig

    from toolkit.document.blocks import Section


def label_weights(given: Any, labels: Sequence[str], balanced: Callable[[str], float]) -> list[float] | None:
    """Returns the weight of each label by `task.class_weights`; None if all are equal.

    Args:
        given: the setting; labels that a mapping does not name weigh 1.
        labels: names of the labels.
        balanced: returns the weight of a label that makes it as important as the others.

    Raises:
        DataError: if the setting names a label that is not there.
    """
    if not isinstance(given, Mapping):
        return [balanced(name) for name in labels] if given == "balanced" else None
    if unknown := [name for name in given if name not in labels]:
        hints = join([f"{name!r}{did_you_mean(name, labels)}" for name in unknown], "and")
        raise DataError(f"task.class_weights: no label is named {hints}. The labels are {', '.join(labels)}.")
    return [float(given.get(name, 1.0)) for name in labels]


class Head(ABC):
    """A problem type: labels, targets, loss and scores, from logits `[B, N]`; built with the task's options."""

    problem_type: ClassVar[str]
    """Name of the problem type in transformers."""
    best_metric: ClassVar[str]
    """Name of the score that selects the best model by default."""
    error_name: ClassVar[str]
    """Name of what `error` measures."""
    has_classes: ClassVar[bool] = False
    """Whether each row has exactly one class."""
    has_probabilities: ClassVar[bool] = True
    """Whether scores are probabilities, which a temperature calibrates."""
    threshold: ClassVar[float] = 0.0
    """The confidence from which rows are decided without a promise."""
    decision_rules: ClassVar[Sequence[str]] = ()
    """See `toolkit.api.task.Task.decision_rules`."""
    decided: ClassVar[Sequence[str]] = ("unsure",)
    """Columns that every decision adds to answers."""
    answer_columns: ClassVar[Sequence[str]] = ("prediction",)
    """See `toolkit.api.task.Task.answer_columns`."""
    overall: ClassVar[Sequence[Score]]
    """The scores over all labels."""
    per_label: ClassVar[Sequence[str]]
    """Names of the scores of each label."""
    state: dict[str, Any]
    """JSON-able state learned from the training rows, including `labels`, the names of the N logits."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.names = plain_map(options.label_map)
        self.state = {"labels": options.labels} | ({"class_weights": None} if self.has_probabilities else {})

    @property
    def scores(self) -> Sequence[Score]:
        """See `toolkit.api.task.Task.scores`; includes scores per label once the labels are known."""
        return *self.overall, *per_class_scores(self.per_label, self.state["labels"])

    @abstractmethod
    def feature(self) -> Any:
        """Returns the Arrow type of a checked label."""

    @abstractmethod
    def check(self, value: Any) -> Any:
        """Returns a row's label as `feature` describes it.

        Raises:
            BadRow: if the label cannot be used, with the reason.
        """

    def given_names(self, value: Any) -> Iterable[Any]:
        """Returns the names in a row's label as it is given; none for numbers."""
        return ()

    def renamed(self, value: Any) -> list[str]:
        """Returns the names in a usable label to which `task.label_map` gives another one."""
        names = map(label_text, self.given_names(value)) if self.names else ()
        return [name for name in names if self.names.get(name, name) != name]

    @abstractmethod
    def learn(self, labels: Sequence[Any]) -> None:
        """Fills `state` from the checked labels of the training rows.

        Raises:
            DataError: if nothing can be learned from them.
        """

    def counts(self, labels: Sequence[Any]) -> dict[str, int]:
        """Returns the number of checked labels with each name, in the order of ids; empty for numbers."""
        return {}

    def notes(self, counts: Mapping[str, int]) -> list[str]:
        """See `toolkit.api.task.Task.label_notes`."""
        return map_notes(counts, self.options.label_map)

    def configure(self, config: PreTrainedConfig) -> None:
        """Writes names and problem type into the model's configuration."""
        set_labels(config, self.state["labels"], self.problem_type)

    @abstractmethod
    def target(self, label: Any) -> Any:
        """Returns the target of a label for the loss; None becomes a target that counts as no item."""

    def count_items(self, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        """Returns the divisor of the summed loss for targets `[B]` or `[B, N]`, a scalar; arguments as `loss_sum`."""
        return shared(~labels.isnan(), shares).sum()

    @abstractmethod
    def loss_sum(self, logits: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        """Returns the loss of logits `[B, N]` summed over the items of targets `[B]` or `[B, N]`, a scalar.

        Args:
            logits: the model's.
            labels: the targets.
            shares: `[B]` by how much each row counts; None for 1.
        """

    @property
    def decision(self) -> Mapping[str, Any]:
        """What `toolkit calibrate` found; empty before."""
        return self.state.get("decision") or {}

    def tempered(self, scores: np.ndarray, temperature: float) -> np.ndarray:
        """Returns what scores `[rows, N]` become if the logits are divided by a temperature."""
        return scores

    def items(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns probabilities and truths `[items]`, or of exclusive classes `[rows, N]` and `[rows]`."""
        return scores, targets

    def judged(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Returns confidences `[rows]`, negative where there is no answer, and which are right, by what is decided."""
        return {}

    def misses(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
        """Returns by how much each row misses its truth, `[rows]`, by what has sets or intervals; NaN is unknown."""
        return {}

    def report_sections_of(self, scores: np.ndarray, targets: np.ndarray) -> list[Section]:
        """Returns further sections about calibrated scores."""
        return []

    @abstractmethod
    def predict(self, logits: Tensor) -> Tensor:
        """Returns the predictions for logits `[B, N]`, with the same shape."""

    @abstractmethod
    def metrics(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Returns metrics of scores `[rows, N]` from `predict`, given targets `[rows]` or `[rows, N]`."""

    @abstractmethod
    def quality(self, scores: np.ndarray, targets: np.ndarray) -> Quality:
        """Returns how far the values of `metrics` can be trusted; the arguments are the same."""

    @abstractmethod
    def record(self, scores: np.ndarray, label: Any) -> Record:
        """Returns the record of one row with `label`, `prediction` and more, from its scores `[N]`."""

    def answer(self, record: Record) -> dict[str, Any]:
        """See `toolkit.api.task.Task.answer`."""
        return {name: record[name] for name in self.answer_columns}

    @abstractmethod
    def describe(self, record: Record) -> tuple[str, str | None]:
        """Returns a record's prediction and label as text; the label is None if unknown."""

    @abstractmethod
    def error(self, record: Record) -> tuple[float, ...] | None:
        """See `toolkit.api.task.Task.error`."""

    @abstractmethod
    def report_sections(self, name: str, scores: np.ndarray, targets: np.ndarray, folder: Path) -> list[Section]:
        """See `toolkit.api.task.Task.report_sections`."""
