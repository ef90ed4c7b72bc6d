"""Scores of generated texts: translations, computed by sacrebleu, and summaries, by Google's rouge-score."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from toolkit.metrics.intervals import Interval, bootstrap, wilson
from toolkit.metrics.score import Quality, Score

if TYPE_CHECKING:
    import numpy as np
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics import BLEU, CHRF

TRANSLATION = (Score("bleu"), Score("chrf"))


ANSWERS = tuple(Score(f"answer_{name}") for name in ("exact_match", "f1", "rougeL", "chrf"))
"""Scores of generated answers: from 0 to 1, and chrF from 0 to 100; blanks at the ends of texts do not count."""


def scores_of_answers(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Returns the scores `ANSWERS` of answers, each with one reference."""
    rows = _each_answer(predictions, references)
    means = [sum(values) / len(rows) for values in zip(*rows, strict=True)]
    return dict(zip(_ANSWERS, [*means, translation_scores(predictions, references, "13a")["chrf"]], strict=True))


def quality_of_answers(predictions: Sequence[str], references: Sequence[str]) -> Quality:
    """Returns how far the scores of `scores_of_answers` can be trusted; the arguments are the same."""
    rows, names = _each_answer(predictions, references), _ANSWERS[:-1]
    means = bootstrap(rows, lambda sums: dict(zip(names, sums.T / len(rows), strict=True)))
    if not means:
        return Quality()
    means[names[0]] = wilson(sum(row[0] for row in rows) / len(rows), len(rows))
    chrf = translation_quality(predictions, references, "13a").intervals["chrf"]
    return Quality({**means, _ANSWERS[-1]: chrf})


_ANSWERS = [score.name for score in ANSWERS]


def _each_answer(predictions: Sequence[str], references: Sequence[str]) -> list[tuple[float, ...]]:
    """Returns the scores of each answer, in the order of `ANSWERS`, without chrF."""
    from toolkit.metrics.squad import f1

    pairs = zip(predictions, references, strict=True)
    return [(one.strip() == other.strip(), f1(one, [other]), rouge_l(one, other, "unicode")) for one, other in pairs]


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


ROUGE = (Score("rouge1"), Score("rouge2"), Score("rougeL"), Score("rougeLsum"))


class UnicodeWords:
    """Tokenizer of rouge-score: lower-cased runs of letters and digits of any script."""

    def tokenize(self, text: str) -> list[str]:
        """Returns the words of a text."""
        return re.findall(r"[^\W_]+", text.lower())


def rouge_scores(predictions: Sequence[str], references: Sequence[str], tokenize: str) -> dict[str, float]:
    """Scores summaries, with one reference each.

    Args:
        predictions: the summaries.
        references: the reference summary of each, in the same order.
        tokenize: `english` (stems of words of a to z and 0 to 9) or `unicode` (words of any script).

    Returns:
        Mean F1 from 0 to 1 of `rouge1` (words), `rouge2` (pairs of words), `rougeL` (longest common subsequence) and
        `rougeLsum` (the same by line) (Lin 2004); NaN without summaries.
    """
    rows = _each(predictions, references, tokenize)
    count = len(rows) or float("nan")
    return {score.name: sum(row[i] for row in rows) / count for i, score in enumerate(ROUGE)}


def rouge_quality(predictions: Sequence[str], references: Sequence[str], tokenize: str) -> Quality:
    """Returns how far the scores of `rouge_scores` can be trusted; the arguments are the same."""
    count = len(predictions)
    names = [score.name for score in ROUGE]
    rows = _each(predictions, references, tokenize)
    return Quality(bootstrap(rows, lambda sums: dict(zip(names, sums.T / count, strict=True))))


def _each(predictions: Sequence[str], references: Sequence[str], tokenize: str) -> list[list[float]]:
    """Returns the scores of each summary, in the order of `ROUGE`."""
    names = [score.name for score in ROUGE]
    scorer = _scorer(names, tokenize)
    scores = [scorer.score(target, text) for text, target in zip(predictions, references, strict=True)]
    return [[float(each[name].fmeasure) for name in names] for each in scores]


def rouge_l(prediction: str, reference: str, tokenize: str) -> float:
    """Returns `rougeL` of one summary; see `rouge_scores`."""
    return float(_scorer(["rougeL"], tokenize).score(reference, prediction)["rougeL"].fmeasure)


def _scorer(names: Sequence[str], tokenize: str) -> RougeScorer:
    from rouge_score.rouge_scorer import RougeScorer

    if tokenize == "unicode":
        return RougeScorer(list(names), tokenizer=UnicodeWords())
    return RougeScorer(list(names), use_stemmer=True)  # Porter's
