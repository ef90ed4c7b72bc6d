"""Sequence-to-sequence translation.

accelerate launch recipes/translation.py --config recipes/configs/translation/smoke.yaml [section.key=value ...]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from toolkit.api.task import (
    IGNORE_INDEX,
    BadRow,
    Batch,
    Description,
    EvalData,
    ModelOutput,
    Predictions,
    Processor,
    Record,
    Row,
)
from toolkit.base.console import shorten
from toolkit.base.errors import InputError
from toolkit.config.column import Column
from toolkit.config.sections import STRICT, Config, Fraction, Positive
from toolkit.main import main
from toolkit.metrics.score import Score
from toolkit.metrics.translation import TRANSLATION, signatures, translation_quality, translation_scores

if TYPE_CHECKING:
    import datasets
    from torch import Tensor, nn
    from transformers import PreTrainedConfig

    from toolkit.api.random import RowRandom
    from toolkit.metrics.quality import Quality


@dataclass(frozen=True, kw_only=True)
class TranslationOptions:
    """Options of languages, lengths and generation, named as in `run_translation.py` and `GenerationConfig`."""

    __pydantic_config__ = STRICT
    limits: ClassVar[Mapping[str, str]] = {
        "source": "max_source_length",
        "target": "max_target_length",
        "generated": "val_max_target_length",
    }

    source_lang: str | None = None
    """Source language: its key in a `translation` column, and the language code of multilingual models (mBART, NLLB,
    M2M100). A key may be the part of the code before the underscore: `en_XX` matches `en`."""
    target_lang: str | None = None
    """Target language, in the same form."""
    source_prefix: str = ""
    """Text before every source, required by T5: `translate English to German: `, with the trailing space."""
    max_source_length: Positive = 128
    """Maximum number of tokens per source; longer ones are truncated and counted."""
    max_target_length: Positive = 128
    """Maximum number of tokens per target; longer ones are truncated and counted. Metrics use the complete text."""
    val_max_target_length: Positive | None = None
    """Maximum number of tokens per generated translation; null uses `max_target_length`."""
    num_beams: Positive = 4
    """Number of beams of beam search; 1 is greedy search."""
    length_penalty: float = 1.0
    """Exponent of the length by which a beam's score is divided; larger values favour longer translations."""
    label_smoothing_factor: Fraction = 0.0
    """Part of each token's probability that is distributed over the vocabulary (Szegedy et al. 2016,
    arXiv 1512.00567), in training and evaluation losses."""
    bleu_tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a"
    """sacrebleu's tokenizer for BLEU: `zh` for Chinese, `char` for Japanese and other scripts without spaces."""

    def problems(self) -> list[str]:
        """Returns what is wrong in combination."""
        found = []
        if (self.source_lang is None) != (self.target_lang is None) or (
            self.source_lang is not None and self.source_lang == self.target_lang
        ):
            given = f"received {self.source_lang!r} and {self.target_lang!r}"
            found.append(f"task.source_lang, task.target_lang: {given}, expected two different languages, or none")
        if self.num_beams == 1 and self.length_penalty != 1:
            found.append("task.length_penalty: has no effect with a single beam; set task.num_beams above 1")
        return found


class Translation:
    """Sequence-to-sequence translation; see `toolkit.api.task.Task`."""

    Options: ClassVar[type] = TranslationOptions
    columns: ClassVar[Mapping[str, Column]] = {
        "source": Column("the text to translate", required=False),
        "target": Column("its translation", required=False, label=True),
        "translation": Column("both, as a mapping from language to text, instead of the other two", required=False),
    }
    modality = "seq2seq"
    scores = (*TRANSLATION, Score("token_accuracy"))
    best_metric = "bleu"
    error_name = "100 - chrF"

    def __init__(self, cfg: Config) -> None:
        self.cfg, self.options = cfg, cfg.task
        self.state: dict[str, Any] = {"decoder_start_token_id": None, "bleu": None, "chrf": None}

    def auto_model(self, config: PreTrainedConfig) -> str:
        return "AutoModelForSeq2SeqLM"

    def schema(self) -> datasets.Features:
        from datasets import Features, Value

        return Features(source=Value("string"), target=Value("string"))

    def check_row(self, row: Row, labelled: bool) -> Row:
        source, target = self._text(row, "source"), None
        if labelled:
            target = self._text(row, "target")
        return {"source": source, "target": target}

    def _text(self, row: Row, side: Literal["source", "target"]) -> str:
        """Returns one side of a pair, from the mapping if the row has one."""
        column = self.cfg.data.columns.get(side, side)
        pair, place = row["translation"], f"column {column!r}"
        value = row[side]
        if pair is not None:
            if not isinstance(pair, dict):
                raise BadRow(f"column 'translation' holds {shorten(repr(pair))}, not a mapping from language to text")
            language = self.options.source_lang if side == "source" else self.options.target_lang
            if language is None:
                raise BadRow(f"'translation' holds {', '.join(pair)}: name two in task.source_lang and .target_lang")
            key = language if language in pair else language.split("_")[0]
            value, place = pair.get(key), f"{key!r} of 'translation'"
        if value is None or (isinstance(value, str) and not value.strip()):
            raise BadRow(f"the {side} is missing: {place} is empty or not there")
        if not isinstance(value, str):
            raise BadRow(f"{place} holds {shorten(repr(value))}, not text")
        return value

    def training_texts(self, rows: datasets.Dataset) -> Iterator[str]:
        return chain(rows["source"], rows["target"])

    def configure(self, config: PreTrainedConfig) -> None:
        self.state["decoder_start_token_id"] = getattr(config, "decoder_start_token_id", None)
        self.state |= signatures(self.options.bleu_tokenize)

    def preprocess(
        self, rows: Mapping[str, Sequence[Any]], processor: Processor, labelled: bool
    ) -> dict[str, list[Any]]:
        from toolkit.modalities import seq2seq

        options = self.options
        sources = [options.source_prefix + source for source in rows["source"]]
        with seq2seq.languages(processor, options.source_lang, options.target_lang):
            return seq2seq.encode_pairs(
                sources, rows["target"] if labelled else None, processor,
                options.max_source_length, options.max_target_length,
            )  # fmt: skip

    def collate(self, features: list[dict[str, Any]], processor: Processor, random: RowRandom) -> Batch:
        from toolkit.modalities import seq2seq

        start, first = seq2seq.language_ids(processor, self.options.source_lang, self.options.target_lang)
        start = self.state["decoder_start_token_id"] if start is None else start
        if start is None:
            raise InputError(
                "model: its configuration has no decoder_start_token_id, so where a translation starts is not known; "
                "set model.config_overrides.decoder_start_token_id"
            )
        inputs, labels = seq2seq.pad_pairs(features, processor, start)
        return {"inputs": inputs, "labels": labels, "extra": {"start": start, "first": first}}

    def loss_sum(self, outputs: ModelOutput, batch: Batch) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(
            outputs.logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE_INDEX, reduction="sum",
            label_smoothing=self.options.label_smoothing_factor,
        )  # fmt: skip

    def predict(self, model: nn.Module, outputs: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        from toolkit.modalities import seq2seq

        options, labels = self.options, batch["labels"]
        ids = seq2seq.generate(
            model, outputs, batch["inputs"],
            decoder_start_token_id=batch["extra"]["start"], forced_bos_token_id=batch["extra"]["first"],
            max_new_tokens=options.val_max_target_length or options.max_target_length,
            num_beams=options.num_beams, length_penalty=options.length_penalty,
        )  # fmt: skip
        return {
            "ids": ids,
            "tokens": (labels != IGNORE_INDEX).sum(-1).int(),
            "correct": (outputs.logits.argmax(-1) == labels).sum(-1).int(),  # never so where a label is ignored
        }

    def decode(self, predictions: Predictions, data: EvalData) -> list[Record]:
        from toolkit.modalities import seq2seq

        texts = seq2seq.decode(predictions["ids"], data.processor)
        return [
            {"source": row["source"], "prediction": text, "reference": row["target"]}
            for row, text in zip(data.rows, texts, strict=True)
        ]

    def metrics(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> dict[str, float]:
        pairs = [(record["prediction"], record["reference"]) for record in records]
        texts, references = [text for text, _ in pairs], [reference for _, reference in pairs]
        accuracy = float(predictions["correct"].sum() / predictions["tokens"].sum())
        return translation_scores(texts, references, self.options.bleu_tokenize) | {"token_accuracy": accuracy}

    def script(self, processor: Processor) -> tuple[str, Mapping[str, Any]]:
        from toolkit.modalities import seq2seq

        options = self.options
        start, first = seq2seq.language_ids(processor, options.source_lang, options.target_lang)
        generation = {
            "decoder_start_token_id": self.state["decoder_start_token_id"] if start is None else start,
            "forced_bos_token_id": first,
            "max_new_tokens": options.val_max_target_length or options.max_target_length,
            "num_beams": options.num_beams,
            "length_penalty": options.length_penalty,
        }
        return "text_to_text", {"generation": generation, "multilingual": hasattr(processor, "src_lang")}

    def quality(self, records: Iterable[Record], predictions: Predictions, data: EvalData) -> Quality:
        texts, references = zip(*((record["prediction"], record["reference"]) for record in records), strict=True)
        return translation_quality(texts, references, self.options.bleu_tokenize)

    def describe(self, record: Record) -> Description:
        return Description(record["source"], record["prediction"], record["reference"])

    def error(self, record: Record) -> tuple[float, ...] | None:
        from sacrebleu import sentence_chrf

        if record["reference"] is None or record["reference"] == record["prediction"]:
            return None
        return (100.0 - float(sentence_chrf(record["prediction"], [record["reference"]]).score),)


TASK = Translation

if __name__ == "__main__":
    main(TASK)
