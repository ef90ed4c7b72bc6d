"""Extractive question answering: the answer to a question is a span of its context.

accelerate launch recipes/qa.py --config recipes/configs/qa/smoke.yaml [section.key=value ...]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from toolkit.api.batch import (
    IGNORE_INDEX,
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
from toolkit.config.fields import Column
from toolkit.config.problems import unused_options
from toolkit.config.sections import STRICT, Positive
from toolkit.main import main
from toolkit.metrics.squad import SQUAD, f1, squad_quality, squad_scores
from toolkit.modalities import text
from toolkit.tasks import spans
from toolkit.tasks.records import columns_of

if TYPE_CHECKING:
    import datasets
    from torch import Tensor, nn
    from transformers import PreTrainedConfig

    from toolkit.api.random import RowRandom
    from toolkit.config.sections import Config
    from toolkit.metrics.score import Quality

NO_ANSWER: dict[str, list[Any]] = {"text": [], "answer_start": []}


@dataclass(frozen=True, kw_only=True)
class QAOptions:
    """Options of windows and answers, named as in transformers' `run_qa.py`."""

    __pydantic_config__ = STRICT
    limits: ClassVar[Mapping[str, str]] = {"input": "max_length"}

    max_length: Annotated[int, Field(ge=16)] = 384
    """Maximum number of tokens of question and context; longer contexts are split into several windows."""
    doc_stride: Annotated[int, Field(ge=0)] = 128
    """Number of context tokens that consecutive windows share."""
    max_answer_length: Positive = 30
    """Maximum number of tokens per answer."""
    n_best_size: Positive = 20
    """Number of candidate answers to keep per window and to write per question."""
    version_2_with_negative: bool = False
    """Whether questions may have no answer (SQuAD v2, Rajpurkar et al. 2018, arXiv 1806.03822)."""
    null_score_diff_threshold: float = 0.0
    """Margin by which "no answer" must outscore the best answer (with `version_2_with_negative`)."""

    def problems(self) -> list[str]:
        """Returns what is wrong in combination."""
        found = unused_options(self, "version_2_with_negative", {"null_score_diff_threshold": (True,)})
        if self.doc_stride >= self.max_length:
            limit = f"must be below task.max_length ({self.max_length})"
            found.append(f"task.doc_stride: received {self.doc_stride}, {limit}")
        return found


class QuestionAnswering(Task):
    """Extractive question answering; see `toolkit.api.task.Task`."""

    Options: ClassVar[type] = QAOptions
    columns: ClassVar[Mapping[str, Column]] = {
        "id": Column("the question's id, kept in predictions", required=False, key=True),
        "question": Column("the question"),
        "context": Column("the text that holds the answer"),
        "answers": Column("a mapping of the lists `text` and `answer_start`, as in SQuAD", label=True),
    }
    modality = "text"
    scores = SQUAD
    best_metric = "f1"
    error_name = "1 - F1"
    decoding = ("null_score_diff_threshold", "n_best_size", "max_answer_length")

    options: QAOptions

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        none = ["no_answer_score"] if self.options.version_2_with_negative else []
        self.answer_columns = ("prediction", "score", *none, "n_best")

    def auto_model(self, config: PreTrainedConfig) -> str:
        return "AutoModelForQuestionAnswering"

    def schema(self) -> datasets.Features:
        from datasets import Features, List, Value

        answers = {"text": List(Value("string")), "answer_start": List(Value("int64"))}
        texts = {name: Value("string") for name in ("id", "question", "context")}
        return Features(texts | {"answers": answers, "trimmed": Value("bool")})

    def check_row(self, row: Row, labelled: bool) -> Row:
        for name in ("question", "context"):
            if not isinstance(row[name], str):
                raise BadRow(f"column {name!r} holds {row[name]!r}, not text")
        answers, trimmed = NO_ANSWER, False
        if labelled:
            answers, trimmed = spans.check_answer(row)
            if not answers["text"] and not self.options.version_2_with_negative:
                raise BadRow("the question has no answer; task.version_2_with_negative=true allows that")
        identifier = None if row.get("id") is None else str(row["id"])
        texts = {"id": identifier, "question": row["question"], "context": row["context"]}
        return texts | {"answers": answers, "trimmed": trimmed}

    def omissions(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[Omission]:
        answers = [given["text"] for given in rows["answers"]]
        asked, found = {place for place, texts in enumerate(answers) if texts}, set()
        cut = set()
        for example, is_cut, end in zip(
            *(features[name][:] for name in ("example", "cut_question", "end")), strict=True
        ):
            cut |= {example} if is_cut else set()
            found |= {example} if end > 0 else set()
        lost = asked - found if IGNORE_INDEX not in features["end"][:1] else set()
        further = sum(len(texts) - 1 for texts in answers if texts)
        return [
            Omission("questions truncated to leave room for the context in task.max_length", len(cut), len(rows)),
            Omission(
                "answers longer than task.doc_stride that no window holds, trained as no answer", len(lost), len(asked)
            ),
            Omission("answers after a question's first, used for scores only", further, sum(map(len, answers))),
            Omission("answers without the blanks around them", sum(rows["trimmed"][:]), len(rows)),
        ]

    def group_column(self) -> str:
        return "context"

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        yield from dict.fromkeys(rows["context"])
        yield from rows["question"]

    def configure(self, config: PreTrainedConfig) -> None:
        config.num_labels = 2  # a start and an end logit per token, also where the model had another head before

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        return spans.encode_windows(rows, processor, self.options.max_length, self.options.doc_stride, labelled)

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        import torch

        inputs = text.pad(features, processor)
        labels = torch.tensor([[row["start"], row["end"]] for row in features])
        mask = spans.context_mask([row["offsets"] for row in features], inputs["input_ids"].shape[1])
        return {"inputs": inputs, "labels": labels, "extra": {"context_mask": mask}}

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        from torch.nn.functional import cross_entropy

        logits = spans.masked_logits(outputs.start_logits, outputs.end_logits, batch["inputs"]["attention_mask"])
        sides = zip(logits, batch["labels"].unbind(-1), strict=True)
        start, end = (cross_entropy(x, y, ignore_index=IGNORE_INDEX, reduction="sum") for x, y in sides)
        return start + end

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        return spans.top_spans(
            outputs.start_logits, outputs.end_logits, batch["extra"]["context_mask"],
            self.options.n_best_size, self.options.max_answer_length,
        )  # fmt: skip

    def decode(self, predictions: Predictions, data: EvalData) -> list[Record]:
        answers = spans.best_answers(
            **predictions, features=data.features, rows=data.each_row(), n_best=self.options.n_best_size,
            null_threshold=self.options.null_score_diff_threshold, allow_null=self.options.version_2_with_negative,
        )  # fmt: skip
        return [
            {
                **answer,
                "id": str(row["_number"]) if answer["id"] is None else answer["id"],
                "question": row["question"],
                "answers": row["answers"]["text"],
            }
            for row, answer in zip(data.each_row(), answers, strict=True)
        ]

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        return squad_scores(*columns_of(records, "prediction_text", "answers"))

    def answer(self, record: Record) -> dict[str, Any]:
        return {"prediction": record["prediction_text"]} | {name: record[name] for name in self.answer_columns[1:]}

    def script(self) -> str:
        return "question_answering"

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        return squad_quality(*columns_of(records, "prediction_text", "answers"))

    def describe(self, record: Record) -> Description:
        expected = " / ".join(map(repr, record["answers"])) or None
        return Description(record["question"], repr(record["prediction_text"]), expected)

    def error(self, record: Record) -> tuple[float, ...] | None:
        wrong = 1.0 - f1(record["prediction_text"], record["answers"])
        return (wrong, record["score"]) if wrong else None  # ties are ordered by confidence


TASK = QuestionAnswering

if __name__ == "__main__":
    main(TASK)
