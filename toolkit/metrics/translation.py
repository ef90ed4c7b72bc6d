"""BLEU and chrF of translations as an `evaluate.Metric`, computed by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence

import evaluate
from datasets import Features, Value
from sacrebleu.metrics import BLEU, CHRF

from toolkit.metrics.memory import InMemoryMetric


class Translation(InMemoryMetric):
    """Corpus BLEU and chrF2, both from 0 to 100, with one reference per translation.

    `compute(predictions=["..."], references=["..."], tokenize="13a")` returns `bleu` and `chrf`; `tokenize` is the
    name of sacrebleu's tokenizer for BLEU.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="BLEU and chrF as sacrebleu computes them.",
            citation="Papineni et al. 2002, ACL; Popovic 2015, WMT; Post 2018, arXiv 1804.08771",
            inputs_description="predictions, references: texts; tokenize: sacrebleu's tokenizer for BLEU.",
            features=Features(predictions=Value("string"), references=Value("string")),
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str], tokenize: str) -> dict[str, float]:
        scores = {name: metric.corpus_score(list(predictions), [list(references)]) for name, metric in _both(tokenize)}
        return {name: float(score.score) for name, score in scores.items()}


def signatures(tokenize: str) -> dict[str, str]:
    """Returns sacrebleu's signature of each score, without which a BLEU cannot be compared with another."""
    found = {}
    for name, metric in _both(tokenize):
        metric.corpus_score([""], [["-"]])  # a signature counts the references of what was scored
        found[name] = str(metric.get_signature())
    return found


def _both(tokenize: str) -> list[tuple[str, BLEU | CHRF]]:
    # `force` only keeps BLEU from warning of texts that look tokenized.
    return [("bleu", BLEU(tokenize=tokenize, force=True)), ("chrf", CHRF())]
