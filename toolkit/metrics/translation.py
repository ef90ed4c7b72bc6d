"""Scores of translations, computed by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from toolkit.metrics.intervals import Interval, bootstrap
from toolkit.metrics.score import Quality, Score

if TYPE_CHECKING:
    import numpy as np
    from sacrebleu.metrics import BLEU, CHRF

TRANSLATION = (Score("bleu"), Score("chrf"))


def translation_scores(predictions: Sequence[str], references: Sequence[str], tokenize: str) -> dict[str, float]:
    """Scores translations, with one reference each in the same order; `tokenize` is sacrebleu's tokenizer for BLEU.

    Returns:
        Corpus scores from 0 to 100: `bleu` (Papineni et al. 2002) and `chrf`, which is chrF2 (Popovic 2015).
    """
    scores = {name: metric.corpus_score(list(predictions), [list(references)]) for name, metric in _both(tokenize)}
    return {name: float(score.score) for name, score in scores.items()}


def translation_quality(predictions: Sequence[str], references: Sequence[str], tokenize: str) -> Quality:
    """Returns how far the scores of `translation_scores` can be trusted; the arguments are the same.

    sacrebleu can bootstrap, too, but keeps the statistics of all draws in memory.
    """
    intervals: dict[str, Interval] = {}
    for name, metric in _both(tokenize):
        statistics = metric._extract_corpus_statistics(list(predictions), [list(references)])
        intervals |= bootstrap(statistics, partial(_of_sums, name, metric))
    return Quality(intervals)


def _of_sums(name: str, metric: BLEU | CHRF, sums: np.ndarray) -> dict[str, np.ndarray]:
    import numpy as np

    drawn = sums.astype(int).tolist()
    return {name: np.array([metric._compute_score_from_stats(each).score for each in drawn])}


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
