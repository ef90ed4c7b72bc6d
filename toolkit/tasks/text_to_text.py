"""Tasks that generate a text from a text with an encoder-decoder: what translation and summarization share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from toolkit.api.batch import IGNORE_INDEX, Batch, Description, EvalData, ModelOutput, Predictions, Processor, Record
from toolkit.api.task import Task
from toolkit.base.errors import InputError
from toolkit.config.sections import STRICT, Config, Fraction, Positive
from toolkit.modalities import seq2seq
from toolkit.tasks.records import columns_of
from toolkit.tasks.tokens import are_correct, labelled_positions, token_losses

if TYPE_CHECKING:
    import datasets
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from toolkit.api.random import RowRandom
    from toolkit.metrics.score import Quality


@dataclass(frozen=True, kw_only=True)
class TextToTextOptions:
    """Options of languages, lengths and generation, named as in transformers' examples and `GenerationConfig`."""

    __pydantic_config__ = STRICT
    limits: ClassVar[Mapping[str, str]] = {
        "source": "max_source_length",
        "target": "max_target_length",
        "generated": "val_max_target_length",
    }

    source_lang: str | None = None
    """Language code of the sources, for multilingual models (mBART, NLLB, M2M100)."""
    target_lang: str | None = None
    """Language code of the targets, in the same form."""
    source_prefix: str = ""
    """Text before every source, required by T5, for instance `translate English to German: ` or `summarize: `, with the
    trailing space."""
    max_source_length: Positive = 128
    """Maximum number of tokens per source; longer ones are truncated and counted."""
    max_target_length: Positive = 128
    """Maximum number of tokens per target; longer ones are truncated and counted. Metrics use the complete text."""
    val_max_target_length: Positive | None = None
    """Maximum number of tokens per generated text; null uses `max_target_length`."""
    num_beams: Positive = 4
    """Number of beams of beam search; 1 is greedy search."""
    length_penalty: float = 1.0
    """Exponent of the length by which a beam's score is divided; larger values favour longer texts."""
    generation: dict[str, Any] = field(default_factory=dict)
    """Further fields of `transformers.GenerationConfig` for generated texts, for instance `min_length: 0`. They replace
    those that the model brings, which a run names when it starts."""
    label_smoothing_factor: Fraction = 0.0
    """Part of each token's probability that is distributed over the vocabulary (Szegedy et al. 2016,
    arXiv 1512.00567), in training and evaluation losses."""

    def problems(self) -> list[str]:
        """Returns what is wrong in combination."""
        found = []
        if self.num_beams == 1 and self.length_penalty != 1:
            found.append("task.length_penalty: has no effect with a single beam; set task.num_beams above 1")
        own = {"max_new_tokens": "val_max_target_length", "max_length": "val_max_target_length"}
        own |= {name: name for name in ("num_beams", "length_penalty")}
        found += [f"task.generation.{name}: set task.{own[name]}" for name in self.generation if name in own]
        return found


class TextToText(Task):
    """Base class of these tasks; see `toolkit.api.task.Task`.

    A recipe adds its `Options` (with those above), `columns`, `scores`, `best_metric`, `error_name` and the abstract
    methods.
    """

    modality = "seq2seq"
    predicts_tokens = True
    reference = "reference"
    decoding = ("num_beams", "length_penalty", "val_max_target_length", "generation")
    source: ClassVar[str]
    """Name of the column of the sources."""
    target: ClassVar[str]
    """Name of the column of the targets."""

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.cfg, self.state = cfg, {"decoder_start_token_id": None, "generation": {}}

    @abstractmethod
    def text_scores(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Scores generated texts by their references, in the same order."""

    @abstractmethod
    def text_quality(self, predictions: Sequence[str], references: Sequence[str]) -> Quality:
        """Returns how far the scores can be trusted; the arguments are those of `text_scores`."""

    @abstractmethod
    def text_error(self, prediction: str, reference: str) -> float:
        """Returns the error of a text that differs from its reference; greater is worse."""

    def auto_model(self, config: PreTrainedConfig) -> str:
        return "AutoModelForSeq2SeqLM"

    def schema(self) -> datasets.Features:
        from datasets import Features, Value

        return Features({self.source: Value("string"), self.target: Value("string")})

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        return chain(rows[self.source], rows[self.target])

    def configure(self, config: PreTrainedConfig) -> None:
        self.state["decoder_start_token_id"] = getattr(config, "decoder_start_token_id", None)
        self.state["generation"] = seq2seq.own_generation(config, self.cfg)

    def processor_problems(self, processor: Processor) -> list[str]:
        return seq2seq.generation_problems(self.options.generation)

    def notes(self, rows: datasets.Dataset, features: datasets.Dataset) -> list[str]:
        return seq2seq.inherited(self.state["generation"], self.options.generation)

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        options = self.options
        sources = [options.source_prefix + source for source in rows[self.source]]
        with seq2seq.languages(processor, options.source_lang, options.target_lang):
            return seq2seq.encode_pairs(
                sources, rows[self.target] if labelled else None, processor,
                options.max_source_length, options.max_target_length,
            )  # fmt: skip

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        start, first = self._first_ids(processor)
        if start is None:
            raise InputError(
                "model: its configuration has no decoder_start_token_id, so the start of a generated text is not "
                "known; set model.config_overrides.decoder_start_token_id"
            )
        inputs, labels = seq2seq.pad_pairs(features, processor, start)
        extra = {"start": start, "first": first}
        return {"inputs": inputs, "labels": labels, "labelled": labelled_positions(labels), "extra": extra}

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        smoothing = self.options.label_smoothing_factor
        return token_losses(outputs.logits, batch["labels"], label_smoothing=smoothing, labelled=batch["labelled"])

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """Returns `ids` `[B, T]`, and the number of `tokens` and of `correct` ones `[B]`."""
        labels, extra = batch["labels"], batch["extra"]
        return {
            "ids": seq2seq.generate(
                model, outputs, batch["inputs"], **self._generation(extra["start"], extra["first"])
            ),
            "tokens": (labels != IGNORE_INDEX).sum(-1).int(),
            "correct": are_correct(outputs.logits, labels, batch["labelled"]).sum(-1).int(),
        }

    def decode(self, predictions: Predictions, data: EvalData) -> list[Record]:
        texts = seq2seq.decode(predictions["ids"], data.processor)
        return [
            {self.source: row[self.source], "prediction": text, "reference": row[self.target]}
            for row, text in zip(data.each_row(), texts, strict=True)
        ]

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        accuracy = float(predictions["correct"].sum() / predictions["tokens"].sum())
        return self.text_scores(*columns_of(records, "prediction", "reference")) | {"token_accuracy": accuracy}

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        return self.text_quality(*columns_of(records, "prediction", "reference"))

    def baselines(
        self, train: datasets.Dataset, sets: Mapping[str, datasets.Dataset]
    ) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
        for name, answer in self.simple_answers(train).items():
            scores = {}
            for part, rows in sets.items():
                answers = [answer(source) for source in rows[self.source][:]]
                scores[part] = self.text_scores(answers, rows[self.target][:])
            yield name, scores

    def simple_answers(self, train: datasets.Dataset) -> Mapping[str, Callable[[str], str]]:
        """Returns functions that make an answer from a source without a model, by what they do."""
        return {"copy of the source": str}

    def script(self) -> str:
        return "text_to_text"

    def script_values(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        generation = self._generation(*self._first_ids(processor))
        return {"generation": generation, "multilingual": hasattr(processor, "src_lang")}

    def _first_ids(self, processor: Processor) -> tuple[int | None, int | None]:
        """Returns the decoder's start id and the forced first id of a text."""
        start, first = seq2seq.language_ids(processor, self.options.source_lang, self.options.target_lang)
        return self.state["decoder_start_token_id"] if start is None else start, first

    def _generation(self, start: int | None, first: int | None) -> dict[str, Any]:
        options = self.options
        return {
            "decoder_start_token_id": start,
            "forced_bos_token_id": first,
            "max_new_tokens": options.val_max_target_length or options.max_target_length,
            "num_beams": options.num_beams,
            "length_penalty": options.length_penalty,
            **options.generation,
        }

    def describe(self, record: Record) -> Description:
        return Description(record[self.source], record["prediction"], record["reference"])

    def error(self, record: Record) -> tuple[float, ...] | None:
        prediction, reference = record["prediction"], record["reference"]
        if reference is None or reference == prediction:
            return None
        return (self.text_error(prediction, reference),)
