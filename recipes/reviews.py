"""Classification and regression of text, images and audio.

accelerate launch recipes/reviews.py --config recipes/configs/reviews/smoke.yaml [section.key=value ...]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from toolkit import modalities
from toolkit.api.batch import (
    BadRow,
    Batch,
    Description,
    EvalData,
    ModelOutput,
    Omission,
    Predictions,
    Processor,
    Record,
    Row,
)
from toolkit.api.task import Task
from toolkit.base.errors import DataError
from toolkit.config.fields import Column
from toolkit.config.messages import did_you_mean
from toolkit.config.problems import unused_options
from toolkit.config.sections import STRICT, Config
from toolkit.main import main
from toolkit.metrics.retrieval import RETRIEVAL, grouped_ranks, retrieval_quality, retrieval_scores
from toolkit.metrics.score import Score
from toolkit.modalities.mixing import mixed, mixes
from toolkit.modalities.options import AudioOptions, ImageOptions, Probability, idle_options
from toolkit.modalities.text import POOLINGS, TEXTS, encode, pooled
from toolkit.tasks.labels import map_problems
from toolkit.tasks.records import LazyRecords, as_number

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from toolkit.api.modality import InputModality
    from toolkit.api.random import RowRandom
    from toolkit.document.blocks import Section
    from toolkit.metrics.score import Quality

PAIR = "text_pair"
"""The column of second texts, by the tokenizers' name."""
MODALITY_SETTINGS = {
    "max_length": ("text",), "long_texts": ("text",), "truncation": ("text",), "augment": ("text",),
    "image": ("image",), "audio": ("audio",),
}  # fmt: skip
"""Settings that only one modality uses."""
WINDOW_SETTINGS = {"doc_stride": ("windows",), "pooling": ("windows",)}
"""Settings that only texts in windows use."""
PROBLEM_SETTINGS = {
    "class_weights": ("single_label_classification", "multi_label_classification"),
    "label_smoothing_factor": ("single_label_classification", "multi_label_classification"),
    "focal_gamma": ("single_label_classification", "multi_label_classification"),
    "label_map": ("single_label_classification", "multi_label_classification"),
    "label_separator": ("multi_label_classification", "regression"),
    "decimal": ("regression",),
    "scale_targets": ("regression",),
    "ranking": ("single_label_classification",),
}
"""Settings that only some problem types use."""


@dataclass(frozen=True, kw_only=True)
class TextAugmentOptions:
    """Options for augmenting texts in training (not in evaluation), as EDA (Wei and Zou 2019, arXiv 1901.11196).

    Words are what blanks separate. Augmentation is seeded per epoch and row; both texts of a pair are augmented, and
    cut to the number of tokens that the row has without.
    """

    __pydantic_config__ = STRICT

    random_deletion: Probability = 0.0
    """Probability of each word to be left out; one word stays."""
    random_swap: Probability = 0.0
    """Share of words, on average, that change places with another word of the text."""
    synonym_replacement: Probability = 0.0
    """Probability of each word in the list of synonyms to be replaced by one of its synonyms."""
    synonyms_file: str | None = None
    """Text file (UTF-8) of synonyms: each line is a group, separated by commas or tabs."""

    @property
    def on(self) -> bool:
        """Whether texts are changed at random."""
        return any((self.random_deletion, self.random_swap, self.synonym_replacement))


@dataclass(frozen=True, kw_only=True)
class ReviewsOptions:
    """Options of the input, the labels and the loss."""

    __pydantic_config__ = STRICT

    modality: Literal["text", "image", "audio"] = "text"
    """Modality of the input."""
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] = (
        "single_label_classification"
    )
    """Type of prediction: one class, any number of labels, or one or several numbers."""
    max_length: Annotated[int, Field(ge=8)] = 256
    """Maximum number of tokens per text, pair of texts or window; how many texts are longer is reported."""
    truncation: Literal["longest_first", "only_first", "only_second"] = "longest_first"
    """Which text of a pair (`data.columns.text_pair`) is truncated or read in windows: `longest_first` takes tokens of
    the longer one until the pair fits, `only_first` and `only_second` keep the other one whole."""
    long_texts: Literal["truncate", "windows"] = "truncate"
    """What to do with longer texts: truncate them, or read all of each in overlapping windows, whose logits are pooled
    to those of the row."""
    doc_stride: Annotated[int, Field(ge=0)] | None = None
    """Tokens that neighbouring windows share, at most half of `max_length`; null is 128, or that half if it is less."""
    pooling: Literal["mean", "max"] = "mean"
    """How the logits of a row's windows become those of the row: their mean, or the largest of each label."""
    labels: list[str] | None = None
    """Label names in the order of their ids (for regression: names of the targets); null uses those of the training
    rows, sorted. Rows with other labels are bad rows."""
    label_map: dict[str, str | None] = field(default_factory=dict)
    """Maps labels as in the file to names, for instance `{1: negative, 2: negative, 3: neutral}`; equal numbers match
    (`1` and `1.0`). Rows whose label is mapped to null are skipped and counted. Labels that are not listed keep their
    names."""
    label_separator: Annotated[str, Field(min_length=1)] = ","
    """Separator of labels or numbers in text (CSV); the separator alone marks a row without labels."""
    decimal: Literal[".", ","] | None = None
    """Decimal separator of numbers in text (regression); the other one may be between thousands. Null refuses numbers
    with a comma. Blanks, currencies and percent signs are skipped."""
    scale_targets: bool = False
    """Learn numbers in units of their standard deviation, from their mean, both of the training rows (regression). The
    loss is in these units; predictions, scores and the exported script are in that of the labels."""
    ranking: bool = False
    """Whether second texts are ranked for each first one, by the probability of the class that sorts last, for instance
    1 of 0 and 1: scores as in `embeddings` are added, and rows with the same first text stay on one side of a split."""
    class_weights: Literal["none", "balanced"] | dict[str, Annotated[float, Field(gt=0)]] = "none"
    """Weight of each class's rows, for instance `{complaint: 3.0}` (1 for others), or `balanced`: rows / (classes x
    rows of the class), as in scikit-learn; the loss is divided by the sum of the weights. With several labels per row,
    the weight of the rows that have the label, as torch's `pos_weight`; `balanced` is rows without it / rows with
    it."""
    label_smoothing_factor: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Part of each label's probability that is distributed evenly over all classes."""
    focal_gamma: Annotated[float, Field(ge=0)] = 0.0
    """Exponent of the focal loss, which reduces the weight of confident predictions; 0 is cross entropy."""
    augment: TextAugmentOptions = field(default_factory=TextAugmentOptions)
    """Options for augmenting texts."""
    image: ImageOptions = field(default_factory=ImageOptions)
    """Options for reading and augmenting images."""
    audio: AudioOptions = field(default_factory=AudioOptions)
    """Options for reading and augmenting audio."""

    @property
    def stride(self) -> int:
        """`doc_stride`, or its default."""
        return min(128, self.max_length // 2) if self.doc_stride is None else self.doc_stride

    @property
    def limits(self) -> dict[str, str]:
        """Names of the options that limit inputs; see `toolkit.api.task.limits_of`."""
        return {"input": "max_length"} if self.modality == "text" else {}

    def problems(self) -> list[str]:
        """Returns what is wrong in combination."""
        least = 2 if self.problem_type == "single_label_classification" else 1
        found = []
        if self.labels is not None and (len(set(self.labels)) != len(self.labels) or len(self.labels) < least):
            several = "at least two different names" if least == 2 else "different names"
            found.append(f"task.labels: received {self.labels}, expected {several}")
        if self.decimal == self.label_separator and len(self.labels or ()) > 1:
            found.append(f"task.decimal: received {self.decimal!r}, which is task.label_separator, too; change one")
        if self.stride > self.max_length // 2:
            found.append(
                f"task.doc_stride: received {self.doc_stride}, expected at most half of task.max_length, "
                f"{self.max_length // 2}"
            )
        if self.labels is not None and isinstance(self.class_weights, dict):
            found += [
                f"task.class_weights: received {name!r}, which is not in task.labels{did_you_mean(name, self.labels)}"
                for name in self.class_weights if name not in self.labels
            ]  # fmt: skip
        if self.long_texts == "windows" and self.augment.on:
            found.append(
                "task.augment: an augmented text may have other windows than its row was planned with; set "
                "task.long_texts to truncate, or remove task.augment"
            )
        found += idle_options(self)
        found += map_problems(self.labels, self.label_map)
        found += unused_options(self, "long_texts", WINDOW_SETTINGS)
        found += unused_options(self, "modality", MODALITY_SETTINGS)
        return found + unused_options(self, "problem_type", PROBLEM_SETTINGS)


def _input(name: str, help: str) -> Column:
    used: Callable[[Any], bool] = lambda options: options is None or options.modality == name  # noqa: E731
    return Column(help, file=name != "text", used=used)


def _optional(name: str, help: str) -> Column:
    return replace(_input(name, help), required=False, file=False)


def _parts(batch: Batch) -> list[tuple[Any, ...]]:
    """Returns the labels of a batch, with by how much each row counts `[B]`; for mixtures, those of both rows."""
    extra = batch.get("extra", {})
    if "shares" not in extra:
        return [(batch["labels"], *extra.values())]
    weights, others = extra.get("weights", 1), extra.get("other_weights", 1)
    return [(batch["labels"], extra["shares"] * weights), (extra["other_labels"], (1 - extra["shares"]) * others)]


def _weight(value: Any) -> float:
    """Returns the weight of a row; raises BadRow if it is not a positive number."""
    if not 0 < (weight := as_number(value)) < math.inf:
        raise BadRow(f"column 'weight' holds {value!r}, not a positive number")
    return weight


def _targets(data: EvalData) -> np.ndarray:
    """Returns the targets of an evaluation set, `[rows]` or `[rows, N]`."""
    import numpy as np

    return np.asarray(data.features["label"][:])


class Reviews(Task):
    """Classification and regression of text, images and audio; see `toolkit.api.task.Task`."""

    Options: ClassVar[type] = ReviewsOptions
    columns: ClassVar[Mapping[str, Column]] = {
        "text": _input("text", "the review"),
        PAIR: _optional("text", "a second text, for pairs of texts"),
        "image": _input("image", "the image's file"),
        "audio": _input("audio", "the audio file"),
        "start": _optional("audio", "where the clip begins in the audio file, in seconds"),
        "end": _optional("audio", "where it ends"),
        "label": Column("the name of its class, its labels or its numbers", label=True),
        "weight": Column("by how much the row counts in the loss", label=True, required=False, opt_in=True),
    }

    reference = "label"

    options: ReviewsOptions

    def __init__(self, cfg: Config) -> None:
        from toolkit.tasks.heads import HEADS

        super().__init__(cfg)
        self.modality: str = self.options.modality
        self.unit = {"text": "tokens", "audio": "samples", "image": ""}[self.modality]
        self.head = HEADS[self.options.problem_type](self.options)
        self.state, self.best_metric, self.error_name = self.head.state, self.head.best_metric, self.head.error_name
        self.answer_columns, self.decision_rules = self.head.answer_columns, self.head.decision_rules
        if self.options.ranking:
            self.best_metric = "ndcg_at_10"

    @property
    def scores(self) -> Sequence[Score]:
        return [*self.head.scores, *(RETRIEVAL if self.options.ranking else ())]

    @property
    def inputs(self) -> InputModality:
        """The modality's functions; not stored, because modules cannot be pickled for data loader workers."""
        return modalities.load_input(self.modality)

    def auto_model(self, config: PreTrainedConfig) -> str:
        return self.inputs.auto_model(config)

    def schema(self) -> datasets.Features:
        from datasets import Features, List, Value

        labels = {"label": self.head.feature(), "renamed": List(Value("string"))}
        weight = {"weight": Value("float64")} if self.weighted else {}
        names = [self.modality, PAIR] if self.modality == "text" else [self.modality]
        return Features({name: self.inputs.feature() for name in names} | labels | weight)

    def read_columns(self) -> dict[str, Column]:
        columns = super().read_columns()
        if PAIR in columns and self.pairs is not None:  # all rows have a second text, or none
            second = columns.pop(PAIR)
            pair = {PAIR: replace(second, required=True)} if self.pairs else {}
            columns = {"text": columns.pop("text"), **pair, **columns}
        return columns

    @property
    def pairs(self) -> bool | None:
        """Whether rows have a second text; None if neither the settings nor training rows have said so."""
        return self.state.get(PAIR, PAIR in self.cfg.data.columns or None)

    @property
    def _texts(self) -> list[str]:
        return ["text", PAIR] if self.pairs else ["text"]

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return "weight" in self.cfg.data.columns

    def check_row(self, row: Row, labelled: bool) -> Row:
        # The label first: decoding an image takes longer.
        label = self.head.check(row["label"]) if labelled else None
        value = row[self.modality]
        if self.modality == "audio":
            value = {**value, "start": row.get("start"), "end": row.get("end")}
        renamed = self.head.renamed(row["label"]) if labelled else []
        checked = {self.modality: self.inputs.check(value, self.options), "label": label, "renamed": renamed}
        if self.modality == "text":
            second = row.get(PAIR)
            checked[PAIR] = self.inputs.check(second, self.options) if str(second or "").strip() else None
        if self.weighted:
            checked["weight"] = _weight(row.get("weight")) if labelled else 1.0
        return checked

    def omissions(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[Omission]:
        given = rows["renamed"][:]
        counts = Counter(chain.from_iterable(given)).most_common(5)
        names = ", ".join(f"{name} -> {self.head.names[name]} ({count})" for name, count in counts)
        merged = Omission("rows with labels renamed by task.label_map", sum(map(bool, given)), len(rows), names)
        return [merged, *self.inputs.omissions(rows[self.modality], self.options)]

    def notes(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[str]:
        if "tokens" not in features.column_names:
            return []
        limit = self.options.max_length
        tokens, windows = features["tokens"][:], sum(map(len, features["input_ids"]))
        longer = sum(count > limit for count in tokens)
        read = sum(min(count, limit) for count in tokens) / max(1, sum(tokens))
        note = (
            f"{longer} of {len(tokens)} texts have more than {limit} tokens and are read in windows ({windows} in all);"
            f" truncated, {read:.1%} of the tokens would be read."
        )
        return [note] if longer else []

    def learn(self, rows: datasets.Dataset) -> None:
        self.head.learn(rows["label"][:])
        if self.modality != "text":
            return
        without = sum(text is None for text in rows[PAIR][:])
        if 0 < without < len(rows):
            raise DataError(
                f"data: {without:,} of {len(rows):,} training rows have no second text (column {PAIR!r}); all have "
                f"one, or none. Rows without one are bad rows with data.columns.{PAIR}={PAIR}."
            )
        if self.options.ranking and (without or len(self.state["labels"]) != 2):
            raise DataError("task.ranking: needs two texts per row (data.columns.text_pair), and two labels")
        if without and self.options.truncation != "longest_first":
            raise DataError(f"task.truncation: has no effect, because no row has a second text (data.columns.{PAIR})")
        if not without and self.options.long_texts == "windows" and self.options.truncation == "longest_first":
            raise DataError(
                "task.truncation: received longest_first, expected only_first or only_second, the text of the pair that"
                " is read in windows (task.long_texts=windows)"
            )
        self.state[PAIR] = not without

    def label_counts(self, rows: datasets.Dataset) -> dict[str, int]:
        return self.head.counts(rows["label"][:])

    def label_notes(self, counts: Mapping[str, int]) -> list[str]:
        return self.head.notes(counts)

    def group_column(self) -> str | None:
        return "text" if self.options.ranking else None

    def class_column(self) -> str | None:
        return "label" if self.head.has_classes else None

    def configure(self, config: PreTrainedConfig) -> None:
        self.head.configure(config)

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        targets = [self.head.target(label if labelled else None) for label in rows["label"]]
        own: dict[str, list[Any]] = {"label": targets} | ({"weight": [*rows["weight"]]} if "weight" in rows else {})
        if labelled and self.modality == "text" and self.options.augment.on:
            own[TEXTS] = [list(texts) for texts in zip(*(rows[name] for name in self._texts), strict=True)]
        if self.pairs:
            return encode(processor, self.options, rows["text"], rows[PAIR]) | own
        return self.inputs.preprocess(rows[self.modality], processor, self.options) | own

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        return self._batch(self.inputs.collate(features, processor, self.options, random), features)

    def compact(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        inputs, tables = self.inputs.compact(features, processor, self.options, random)
        batch = self._batch(inputs, features)
        return {**batch, "tables": tables} if tables else batch

    def _batch(self, inputs: dict[str, Tensor], features: list[dict[str, Any]]) -> Batch:
        import torch

        batch: Batch = {"inputs": inputs, "labels": torch.tensor([row["label"] for row in features])}
        if self.weighted:
            weights = torch.tensor([row["weight"] for row in features], dtype=torch.float64)
            batch["extra"] = {"weights": weights}
        return batch

    def has(self, name: str) -> bool:
        return super().has(name) and (name != "forward" or self.options.long_texts == "windows")

    def forward(self, model: nn.Module, batch: Batch) -> ModelOutput:
        if self.options.long_texts != "windows":
            return super().forward(model, batch)
        return pooled(model, batch["inputs"], self.options.pooling)

    @property
    def mixes(self) -> bool:
        return mixes(self.options.image)

    def mix(self, batch: Batch, others: Batch, row_ids: Sequence[int], random: RowRandom) -> Batch:
        import torch

        pixels, shares = (batch["inputs"]["pixel_values"], others["inputs"]["pixel_values"]), []
        images = []
        for row_id, image, other in zip(row_ids, *pixels, strict=True):
            mixture, share = mixed(image, other, self.options.image, random.mixing(row_id))
            images.append(mixture)
            shares.append(share)
        own = batch.get("extra", {})
        extra = {"shares": torch.tensor(shares, dtype=torch.float64), "other_labels": others["labels"], **own}
        extra |= {f"other_{name}": value for name, value in others.get("extra", {}).items()}
        return {**batch, "inputs": {**batch["inputs"], "pixel_values": torch.stack(images)}, "extra": extra}

    def decoded(self, row: dict[str, Any], processor: Processor, training: bool) -> np.ndarray | None:
        return self.inputs.decoded(row, processor, self.options, training)

    def count_items(self, batch: Batch) -> Tensor:
        return reduce(add, [self.head.count_items(*part) for part in _parts(batch)])

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        return reduce(add, [self.head.loss_sum(outputs.logits, *part) for part in _parts(batch)])

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        return {"scores": self.head.predict(outputs.logits)}

    def average(self, predictions: Sequence[Predictions]) -> Predictions:
        import numpy as np

        return {"scores": np.mean([each["scores"] for each in predictions], axis=0)}

    def decode(self, predictions: Predictions, data: EvalData) -> LazyRecords:
        def records() -> Iterator[Record]:
            for row, scores in zip(data.each_row(), predictions["scores"], strict=True):
                second = {PAIR: row[PAIR]} if self.pairs else {}
                shown = {self.modality: self.inputs.shown(row[self.modality]), **second}
                yield shown | self.head.record(scores, row["label"])

        return LazyRecords(records)

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        found = self.head.metrics(predictions["scores"], _targets(data))
        return found | (retrieval_scores(self._ranks(predictions, data)) if self.options.ranking else {})

    def _ranks(self, predictions: Predictions, data: EvalData) -> list[list[int]]:
        """Returns the ranks of the right second texts of each first text."""
        answers = (_targets(data) == len(self.state["labels"]) - 1).tolist()
        return grouped_ranks(data.rows["text"][:], predictions["scores"][:, -1].tolist(), answers)

    def calibrate(self, sets: Mapping[str, tuple[Predictions, EvalData]], promise: Any) -> tuple[dict[str, Any], Any]:
        from toolkit.tasks.heads.decisions import calibrate

        rows = {name: (predictions["scores"], _targets(data)) for name, (predictions, data) in sets.items()}
        return calibrate(self.head, rows, promise)

    def answer(self, record: Record) -> dict[str, Any]:
        return self.head.answer(record) | {name: record[name] for name in self.head.decision.get("columns", ())}

    def script(self) -> str:
        return f"{self.modality}_classification"

    def script_values(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        numbers = self.state["labels"] if self.options.problem_type == "regression" else []
        answers = ["prediction", "score"] if self.head.has_classes else ["prediction"]
        answers += self.head.decision.get("columns", ())
        several = [f"{each}_{name}" for each in answers for name in numbers] if len(numbers) > 1 else answers
        scales = self.state.get("scales") or {}
        return {
            "windows": self.options.long_texts == "windows" and POOLINGS[self.options.pooling],
            "pair": bool(self.pairs),
            "single": self.head.has_classes,
            "numbers": numbers,
            "answers": several,
            "scales": scales,
        }

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        found = self.head.quality(predictions["scores"], _targets(data))
        if not self.options.ranking:
            return found
        ranks = self._ranks(predictions, data)
        ranked = f"{len(ranks):,} of {len(set(data.rows['text'][:])):,} first texts have right and wrong second texts."
        intervals = {**found.intervals, **retrieval_quality(ranks).intervals}
        return replace(found, intervals=intervals, hints=(*found.hints, f"Ranking: {ranked}"))

    def baselines(
        self, train: datasets.Dataset, sets: Mapping[str, datasets.Dataset]
    ) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
        from toolkit.tasks.baselines import of_head, similar_words

        yield from of_head(self.head, self._texts if self.modality == "text" else [], train, sets)
        if self.options.ranking:
            yield from similar_words([*train["text"], *train[PAIR]], sets, self._ranked, ranked=True)

    def _ranked(self, similar: np.ndarray, rows: datasets.Dataset) -> dict[str, float]:
        right = [self.head.target(label) == len(self.state["labels"]) - 1 for label in rows["label"][:]]
        return retrieval_scores(grouped_ranks(rows["text"][:], similar.tolist(), right))

    def describe(self, record: Record) -> Description:
        return Description(
            " / ".join(record[name] for name in (self.modality, PAIR) if name in record), *self.head.describe(record)
        )

    def thumbnail(self, row: Row) -> bytes | None:
        return self.inputs.thumbnail(row[self.modality], self.options)

    def error(self, record: Record) -> tuple[float, ...] | None:
        return self.head.error(record)

    def report_sections(self, name: str, predictions: Predictions, data: EvalData, folder: Path) -> list[Section]:
        return self.head.report_sections(name, predictions["scores"], _targets(data), folder)


TASK = Reviews

if __name__ == "__main__":
    main(TASK)
