"""Scores of translations, by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.metrics.score import Score

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU, CHRF

TRANSLATION = (Score("bleu"), Score("chrf"))


def translation_scores(predictions: Sequence[str], references: Sequence[str], tokenize: str) -> dict[str, float]:
    """Scores translations, with one reference each.

    Args:
        predictions: the translations.
        references: what each should have been.
        tokenize: name of sacrebleu's tokenizer for BLEU.

    Returns:
        `bleu` (Papineni et al. 2002) and `chrf`, that is chrF2 (Popovic 2015), of the corpus, from 0 to 100.
    """
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
    from sacrebleu.metrics import BLEU, CHRF

    # `force` only keeps BLEU from warning about texts that look tokenized.
    return [("bleu", BLEU(tokenize=tokenize, force=True)), ("chrf", CHRF())]
