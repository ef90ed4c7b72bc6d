"""Scores of extractive question answering, as SQuAD v1 and v2 define them."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.metrics.answers import exact_match, f1
from toolkit.metrics.quality import Quality, wilson
from toolkit.metrics.score import Score

SQUAD = (Score("exact_match"), Score("f1"))
"""The scores of every evaluation set."""


def squad_scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores predicted answers.

    Args:
        predictions: one text per question; empty means "no answer".
        references: the gold answers of each question, in the same order; empty for a question without an answer.

    Returns:
        `exact_match` and `f1`, from 0 to 1. If there are questions without an answer, also `no_answer_f1` (the share
        of them with an empty prediction) and, over the others, `has_answer_exact_match` and `has_answer_f1`.

    Raises:
        ValueError: if the two differ in length.
    """
    if len(predictions) != len(references):
        raise ValueError(f"received {len(predictions)} predictions for {len(references)} questions")
    scores = [(exact_match(text, gold), f1(text, gold)) for text, gold in zip(predictions, references, strict=True)]
    answered = [each for each, gold in zip(scores, references, strict=True) if gold]
    unanswerable = [each for each, gold in zip(scores, references, strict=True) if not gold]
    result = _means(scores)
    if unanswerable:
        result |= {"no_answer_f1": _means(unanswerable)["f1"]}
        if answered:
            result |= {f"has_answer_{name}": value for name, value in _means(answered).items()}
    return result


def squad_quality(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Quality:
    """Returns how far `exact_match` and `f1` of `squad_scores` can be trusted; the arguments are the same."""
    from toolkit.metrics.intervals import bootstrap

    pairs = list(zip(predictions, references, strict=True))
    exact = sum(exact_match(text, gold) for text, gold in pairs) / len(pairs)
    overlaps = [[f1(text, gold)] for text, gold in pairs]
    means = bootstrap(overlaps, lambda sums: {"f1": sums[:, 0] / len(pairs)})
    return Quality({"exact_match": wilson(exact, len(pairs)), **means})


def _means(scores: Sequence[tuple[float, float]]) -> dict[str, float]:
    exact, overlap = zip(*scores, strict=True)
    return {"exact_match": sum(exact) / len(exact), "f1": sum(overlap) / len(overlap)}
