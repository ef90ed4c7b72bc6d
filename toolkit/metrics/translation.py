"""Scores of translations, computed by sacrebleu."""

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
        references: the reference translation of each, in the same order.
        tokenize: name of sacrebleu's tokenizer for BLEU.

    Returns:
        Corpus scores from 0 to 100: `bleu` (Papineni et al. 2002) and `chrf`, which is chrF2 (Popovic 2015).
    """
    scores = {name: metric.corpus_score(list(predictions), [list(references)]) for name, metric in _both(tokenize)}
    return {name: float(score.score) for name, score in scores.items()}


def signatures(tokenize: str) -> dict[str, str]:
    """Returns sacrebleu's signature of each score; only scores with equal signatures are comparable."""
    found = {}
    for name, metric in _both(tokenize):
        metric.corpus_score([""], [["-"]])  # the signature holds the number of references, known after scoring
        found[name] = str(metric.get_signature())
    return found


def _both(tokenize: str) -> list[tuple[str, BLEU | CHRF]]:
    from sacrebleu.metrics import BLEU, CHRF

    # `force` only turns off BLEU's warning about texts that look tokenized.
    return [("bleu", BLEU(tokenize=tokenize, force=True)), ("chrf", CHRF())]
