"""Summarization: a short text from a long one.

accelerate launch recipes/summarization.py --config recipes/configs/summarization/smoke.yaml [section.key=value ...]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from toolkit.api.batch import Row
from toolkit.config.fields import Column
from toolkit.config.sections import Positive
from toolkit.main import main
from toolkit.metrics.generation import ROUGE, rouge_l, rouge_quality, rouge_scores
from toolkit.metrics.score import Score
from toolkit.tasks.records import checked_text
from toolkit.tasks.text_to_text import TextToText, TextToTextOptions

if TYPE_CHECKING:
    import datasets

    from toolkit.metrics.score import Quality


@dataclass(frozen=True, kw_only=True)
class SummarizationOptions(TextToTextOptions):
    """Options of lengths, generation and ROUGE, named as in `run_summarization.py` and `GenerationConfig`."""

    max_source_length: Positive = 1024
    """Maximum number of tokens per document; longer ones are truncated and counted."""
    rouge_tokenize: Literal["english", "unicode"] = "english"
    """Words of ROUGE: `english` are runs of a to z and 0 to 9, reduced to their stems, as in `run_summarization.py`;
    `unicode` are runs of letters and digits of any script, without stemming."""


class Summarization(TextToText):
    """Summarization; see `toolkit.api.task.Task`."""

    Options: ClassVar[type] = SummarizationOptions
    columns: ClassVar[Mapping[str, Column]] = {
        "document": Column("the text to summarize"),
        "summary": Column("its summary", label=True),
    }
    source, target = "document", "summary"
    scores = (*ROUGE, Score("token_accuracy"))
    best_metric = "rougeL"
    error_name = "1 - ROUGE-L"

    def check_row(self, row: Row, labelled: bool) -> Row:
        names = self.columns if labelled else [self.source]
        checked = {name: checked_text(row[name], name, f"column {name!r}") for name in names}
        return {self.target: None} | checked

    def simple_answers(self, train: datasets.Dataset) -> Mapping[str, Callable[[str], str]]:
        from toolkit.tasks.baselines import first_sentences, usual_sentences

        count = usual_sentences(train[self.target][:])
        lead = f"the first {count} sentences" if count > 1 else "the first sentence"
        return {lead: partial(first_sentences, count=count)}

    def text_scores(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return rouge_scores(predictions, references, self.options.rouge_tokenize)

    def text_quality(self, predictions: Sequence[str], references: Sequence[str]) -> Quality:
        return rouge_quality(predictions, references, self.options.rouge_tokenize)

    def text_error(self, prediction: str, reference: str) -> float:
        return 1.0 - rouge_l(prediction, reference, self.options.rouge_tokenize)


TASK = Summarization

if __name__ == "__main__":
    main(TASK)
