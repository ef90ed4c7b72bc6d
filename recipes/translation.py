"""Sequence-to-sequence translation.

accelerate launch recipes/translation.py --config recipes/configs/translation/smoke.yaml [section.key=value ...]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from toolkit.api.batch import BadRow, Row
from toolkit.base.console import shorten
from toolkit.config.fields import Column
from toolkit.config.sections import Config
from toolkit.config.templates import named
from toolkit.main import main
from toolkit.metrics.generation import TRANSLATION, signatures, translation_quality, translation_scores
from toolkit.metrics.score import Score
from toolkit.tasks.records import checked_text
from toolkit.tasks.text_to_text import TextToText, TextToTextOptions

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from toolkit.metrics.score import Quality


@dataclass(frozen=True, kw_only=True)
class TranslationOptions(TextToTextOptions):
    """Options of languages, lengths and generation, named as in `run_translation.py` and `GenerationConfig`."""

    source_lang: str | None = None
    """Source language: its key in a `translation` column, and the language code of multilingual models (mBART, NLLB,
    M2M100). A key may be the part of the code before the underscore: `en_XX` matches `en`."""
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
        return found + super().problems()


class Translation(TextToText):
    """Sequence-to-sequence translation; see `toolkit.api.task.Task`."""

    Options: ClassVar[type] = TranslationOptions
    columns: ClassVar[Mapping[str, Column]] = {
        "source": Column("the text to translate", required=False),
        "target": Column("its translation", required=False, label=True),
        "translation": Column("both, as a mapping from language to text, instead of the other two", required=False),
    }
    source, target = "source", "target"
    scores = (*TRANSLATION, Score("token_accuracy"))
    best_metric = "bleu"
    error_name = "100 - chrF"

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.state |= {"bleu": None, "chrf": None}

    def check_row(self, row: Row, labelled: bool) -> Row:
        source, target = self._text(row, "source"), None
        if labelled:
            target = self._text(row, "target")
        return {"source": source, "target": target}

    def _text(self, row: Row, side: Literal["source", "target"]) -> str:
        """Returns one side of a pair, from the mapping if the row has one."""
        pair, place = row["translation"], named(self.cfg.data.columns.get(side, side))
        value: Any = row[side]
        if pair is not None:
            if not isinstance(pair, dict):
                raise BadRow(f"column 'translation' holds {shorten(repr(pair))}, not a mapping from language to text")
            language = self.options.source_lang if side == "source" else self.options.target_lang
            if language is None:
                raise BadRow(f"'translation' holds {', '.join(pair)}: name two in task.source_lang and .target_lang")
            key = language if language in pair else language.split("_")[0]
            value, place = pair.get(key), f"{key!r} of 'translation'"
        return checked_text(value, side, place)

    def configure(self, config: PreTrainedConfig) -> None:
        super().configure(config)
        self.state |= signatures(self.options.bleu_tokenize)

    def text_scores(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return translation_scores(predictions, references, self.options.bleu_tokenize)

    def text_quality(self, predictions: Sequence[str], references: Sequence[str]) -> Quality:
        return translation_quality(predictions, references, self.options.bleu_tokenize)

    def text_error(self, prediction: str, reference: str) -> float:
        from sacrebleu import sentence_chrf

        return 100.0 - float(sentence_chrf(prediction, [reference]).score)


TASK = Translation

if __name__ == "__main__":
    main(TASK)
