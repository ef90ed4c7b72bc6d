"""Review classification: one text, one label.

accelerate launch recipes/reviews.py --config recipes/configs/reviews/smoke.yaml [section.key=value ...]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from toolkit.config.sections import STRICT, Config
from toolkit.console import shorten
from toolkit.main import main
from toolkit.task import IGNORE_INDEX, BadRow, Batch, Column, EvalData, ModelOutput, Predictions, Processor, Row

if TYPE_CHECKING:
    import datasets
    from torch import Tensor, dtype, nn
    from transformers import PreTrainedConfig

    from toolkit.data.order import RowRandom


@dataclass(frozen=True, kw_only=True)
class ReviewsOptions:
    """What is classified, and how classes count."""

    __pydantic_config__ = STRICT

    modality: Literal["text"] = "text"
    """What a review is."""
    max_length: Annotated[int, Field(ge=8)] = 256
    """Most tokens of a text; longer ones are cut, and counted."""
    labels: list[str] | None = None
    """Label names in the order of their ids; null takes those of the training rows, sorted. Others are bad rows."""
    class_weights: Literal["none", "balanced"] = "none"
    """`balanced` weighs each class by rows / (classes x rows of the class), as scikit-learn does, and divides the
    loss by the summed weights."""

    def problems(self) -> list[str]:
        """Returns what is wrong in combination."""
        if self.labels is not None and (len(set(self.labels)) != len(self.labels) or len(self.labels) < 2):
            return [f"task.labels: received {self.labels}, expected at least two different names"]
        return []


class Reviews:
    """Single-label classification; see `toolkit.task.Task`."""

    Options: ClassVar[type] = ReviewsOptions
    columns: ClassVar[Mapping[str, Column]] = {
        "text": Column("the review"),
        "label": Column("the name of its class", label=True),
    }
    modality = "text"
    auto_model = "AutoModelForSequenceClassification"
    scores: ClassVar[Mapping[str, bool]] = dict.fromkeys(
        ("accuracy", "f1_macro", "precision_macro", "recall_macro", "mcc"), True
    )
    best_metric = "accuracy"

    def __init__(self, cfg: Config) -> None:
        self.options: ReviewsOptions = cfg.task
        self.state: dict[str, Any] = {"labels": self.options.labels, "class_weights": None}

    def features(self) -> datasets.Features:
        from datasets import Features, Value

        return Features(text=Value("string"), label=Value("string"))

    def check_row(self, row: Row, labelled: bool) -> Row:
        if not isinstance(row["text"], str):
            raise BadRow(f"column 'text' holds {row['text']!r}, not text")
        if not labelled:
            return {"text": row["text"], "label": None}
        label = _label_text(row["label"])
        known = self.state["labels"]
        if known is not None and label not in known:
            raise BadRow(f"label {label!r} is not one of {', '.join(known)}")
        return {"text": row["text"], "label": label}

    def learn(self, rows: datasets.Dataset) -> None:
        from toolkit.errors import DataError

        counts = Counter(rows["label"][:])
        labels = self.state["labels"] = self.state["labels"] or sorted(counts, key=_label_order)
        if len(labels) < 2:
            raise DataError(f"data: all training rows have the label {labels[0]!r}; classification needs another.")
        if self.options.class_weights == "balanced":
            if unseen := [label for label in labels if not counts[label]]:
                raise DataError(f"task.class_weights=balanced: no training row has the label {', '.join(unseen)}.")
            self.state["class_weights"] = [len(rows) / (len(labels) * counts[label]) for label in labels]

    def notes(self, rows: datasets.Dataset) -> list[str]:
        return []

    def stratify_by(self) -> str | None:
        return "label"

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        return iter(rows["text"])

    def configure(self, config: PreTrainedConfig) -> None:
        labels = self.state["labels"]
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
        config.problem_type = "single_label_classification"

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], indices: Sequence[int], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        from toolkit.modalities import text

        number = {label: i for i, label in enumerate(self.state["labels"])}
        labels = [number[label] if labelled else IGNORE_INDEX for label in rows["label"]]
        return text.preprocess(rows["text"], processor, self.options.max_length) | {
            "example": list(indices),
            "label": labels,
        }

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        import torch

        from toolkit.modalities import text

        return {
            "inputs": text.collate(features, processor),
            "labels": torch.tensor([row["label"] for row in features]),
            "row_ids": torch.tensor([row["row_id"] for row in features]),
        }

    def count_items(self, batch: Batch) -> Tensor:
        import torch

        return self._weights(batch["labels"], torch.float64).sum()

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        from torch.nn.functional import cross_entropy

        labels = batch["labels"]
        losses = cross_entropy(outputs.logits, labels, ignore_index=IGNORE_INDEX, reduction="none")
        return (losses * self._weights(labels, losses.dtype)).sum()

    def _weights(self, labels: Tensor, dtype: dtype) -> Tensor:
        """What each row counts for: its class's weight, 0 where it is ignored."""
        counted = (labels != IGNORE_INDEX).to(dtype)
        weights = self.state["class_weights"]
        return counted if weights is None else counted * counted.new_tensor(weights)[labels.clamp(min=0)]

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        return {"scores": outputs.logits.float().softmax(-1)}

    def metrics(self, predictions: Predictions, data: EvalData) -> dict[str, float]:
        from toolkit.metrics.classification import Classification

        return Classification().compute(
            predictions=predictions["scores"].argmax(-1), references=data.features["label"], labels=self.state["labels"]
        )

    def records(self, predictions: Predictions, data: EvalData) -> Iterator[dict[str, Any]]:
        labels = self.state["labels"]
        for row, scores in zip(data.rows, predictions["scores"], strict=True):
            yield {
                "text": row["text"],
                "label": row["label"],
                "prediction": labels[int(scores.argmax())],
                "scores": {label: float(score) for label, score in zip(labels, scores, strict=True)},
            }

    def summary(self, record: dict[str, Any]) -> str:
        known = f", labelled {record['label']}" if record["label"] is not None else ""
        score = record["scores"][record["prediction"]]
        return f"{shorten(record['text'])}\n    -> {record['prediction']} ({score:.0%}{known})"


def _label_text(label: Any) -> str:
    """The name of a class: text, or a number as it would be written without a needless fraction."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if not isinstance(label, str | int) and not (isinstance(label, float) and isfinite(label)):
        raise BadRow(f"label {label!r} is neither text nor a number")
    return str(label).strip()


def _label_order(label: str) -> tuple[bool, float, str]:
    """Numbers by their value, before names."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label


TASK = Reviews

if __name__ == "__main__":
    main(TASK)
