"""Single-label classification with a softmax over the classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.batch import IGNORE_INDEX, BadRow, Record
from toolkit.base.errors import DataError
from toolkit.data.values import printed_list
from toolkit.metrics.classification import (
    CLASSIFICATION,
    PER_CLASS,
    RANKING,
    classification_quality,
    classification_scores,
    ranking_scores,
)
from toolkit.metrics.score import Quality
from toolkit.tasks.heads.decisions import least_of
from toolkit.tasks.heads.head import Head, label_weights
from toolkit.tasks.heads.losses import shared, softmax_losses
from toolkit.tasks.labels import known_label

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from toolkit.document.blocks import Section


class SingleLabel(Head):
    """Single-label classification; see `toolkit.tasks.heads.Head`."""

    problem_type = "single_label_classification"
    best_metric = "accuracy"
    error_name = "confidence"
    answer_columns = ("prediction", "score", "scores")
    has_classes = True
    decision_rules = ("precision", "sets")
    overall, per_label = (*CLASSIFICATION, *RANKING), PER_CLASS

    def feature(self) -> Any:
        from datasets import Value

        return Value("string")

    def check(self, value: Any) -> str:
        if isinstance(value, str) and printed_list(value) is not None and value.strip() not in self.names:
            raise BadRow(f"label {value!r} is a printed list; set task.problem_type=multi_label_classification")
        return known_label(value, self.names, self.state["labels"])

    def given_names(self, value: Any) -> Iterable[Any]:
        return (value,)

    def learn(self, labels: Sequence[str]) -> None:
        counts = Counter(labels)
        names = self.state["labels"] = self.state["labels"] or sorted(counts, key=_label_order)
        if len(names) < 2:
            raise DataError(
                f"data: all training rows have the label {names[0]!r}; classification needs at least two labels."
            )
        if unseen := [name for name in names if not counts[name] and self.options.class_weights == "balanced"]:
            raise DataError(f"task.class_weights=balanced: no training row has the label {', '.join(unseen)}.")
        self.state["class_weights"] = label_weights(
            self.options.class_weights, names, lambda name: len(labels) / (len(names) * counts[name])
        )

    def counts(self, labels: Sequence[str]) -> dict[str, int]:
        counts = Counter(labels)
        return {name: counts[name] for name in self.state["labels"]}

    def notes(self, counts: Mapping[str, int]) -> list[str]:
        notes = super().notes(counts)
        if all(name.removeprefix("-").isdecimal() for name in counts):
            notes.append("Labels that are whole numbers are classes; task.problem_type=regression predicts numbers.")
        return notes

    def target(self, label: str | None) -> int:
        return IGNORE_INDEX if label is None else self.state["labels"].index(label)

    def count_items(self, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        import torch

        return shared(self._weights(labels, torch.float64), shares).sum()

    def loss_sum(self, logits: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        smoothing, gamma = self.options.label_smoothing_factor, self.options.focal_gamma
        losses = softmax_losses(logits, labels.clamp(min=0), smoothing, gamma)
        return shared(losses * self._weights(labels, losses.dtype), shares).sum()

    def _weights(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the weight `[B]` of each row: that of its class, 0 if ignored."""
        counted = (labels != IGNORE_INDEX).to(dtype)
        weights = self.state["class_weights"]
        return counted if weights is None else counted * counted.new_tensor(weights)[labels.clamp(min=0)]

    def predict(self, logits: Tensor) -> Tensor:
        return (logits.float() / self.decision.get("temperature", 1.0)).softmax(-1)

    def tempered(self, scores: np.ndarray, temperature: float) -> np.ndarray:
        powers = scores.astype(np.float64) ** (1 / temperature)
        return powers / powers.sum(1, keepdims=True)

    def judged(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        best, confidence = scores.argmax(1), scores.max(1)
        own = {name: np.where(best == place, confidence, -1.0) for place, name in enumerate(self.state["labels"])}
        return {name: (each, best == targets) for name, each in {"": confidence, **own}.items()}

    def misses(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
        return {"": 1 - scores[np.arange(len(targets)), targets]}

    def metrics(self, scores: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        found = classification_scores(scores.argmax(-1), targets, self.state["labels"])
        if self.decision:
            decided = scores.max(1) >= least_of(self.decision, "")
            right = scores.argmax(1)[decided] == targets[decided]
            found |= {
                "share_decided": float(decided.mean()),
                "accuracy_decided": float(right.sum() / max(1, right.size)),
            }
        return found | ranking_scores(scores, np.eye(len(self.state["labels"]))[targets])

    def quality(self, scores: np.ndarray, targets: np.ndarray) -> Quality:
        return classification_quality(scores.argmax(-1), targets, self.state["labels"])

    def record(self, scores: np.ndarray, label: str | None) -> Record:
        labels, decided = self.state["labels"], dict[str, Any]()
        if decision := self.decision:
            decided = {"unsure": float(scores.max()) < least_of(decision, "")}
        if "misses" in decision:
            inside = (scores >= 1 - decision["misses"][""]) | (scores == scores.max())
            decided["prediction_set"] = [name for name, one in zip(labels, inside, strict=True) if one]
        return {
            "label": label,
            "prediction": labels[int(scores.argmax())],
            "scores": {name: float(score) for name, score in zip(labels, scores, strict=True)},
            **decided,
        }

    def answer(self, record: Record) -> dict[str, Any]:
        scores = record["scores"]
        return {"prediction": record["prediction"], "score": scores[record["prediction"]], "scores": scores}

    def describe(self, record: Record) -> tuple[str, str | None]:
        return f"{record['prediction']} ({record['scores'][record['prediction']]:.0%})", record["label"]

    def error(self, record: Record) -> tuple[float, ...] | None:
        wrong = record["label"] not in (None, record["prediction"])
        return (record["scores"][record["prediction"]],) if wrong else None

    def report_sections(self, name: str, scores: np.ndarray, targets: np.ndarray, folder: Path) -> list[Section]:
        from sklearn.metrics import confusion_matrix

        from toolkit.document.blocks import Section
        from toolkit.tasks.heads.tables import confusion, score_table

        labels, predictions = self.state["labels"], scores.argmax(-1)
        counts = confusion_matrix(targets, predictions, labels=range(len(labels)))
        table = score_table(labels, self.metrics(scores, targets), PER_CLASS, counts.sum(axis=1))
        return [Section(f"Classes ({name})", [table, confusion(counts, labels, name, folder)])]


def _label_order(label: str) -> tuple[bool, float, str]:
    """Returns a sort key that orders numbers by value, before names."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label
