"""Scores of extractive question answering, as SQuAD v1 and v2 define them, and the comparison of answers."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from toolkit.metrics.intervals import bootstrap, wilson
from toolkit.metrics.score import Quality, Score

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-cases text, removes ASCII punctuation and English articles, and collapses whitespace."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Returns 1.0 if the normalised prediction is one of the answers, or both are empty; else 0.0."""
    return float(normalize_answer(prediction) in _golds(answers))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Returns the highest token F1 (0 to 1) between the prediction and any gold answer.

    Args:
        prediction: the predicted text; empty means "no answer".
        answers: the gold answers; empty for a question without an answer, for which F1 is 1.0 or 0.0.
    """
    words = normalize_answer(prediction).split()
    return max(_token_f1(words, gold.split()) for gold in _golds(answers))


def _golds(answers: Sequence[str]) -> list[str]:
    return [gold for answer in answers if (gold := normalize_answer(answer))] or [""]


def _token_f1(words: list[str], gold: list[str]) -> float:
    if not words or not gold:
        return float(words == gold)
    # 2PR / (P + R) with P = common / len(words) and R = common / len(gold).
    return 2 * (Counter(words) & Counter(gold)).total() / (len(words) + len(gold))


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
    pairs = list(zip(predictions, references, strict=True))
    exact = sum(exact_match(text, gold) for text, gold in pairs) / len(pairs)
    overlaps = [[f1(text, gold)] for text, gold in pairs]
    means = bootstrap(overlaps, lambda sums: {"f1": sums[:, 0] / len(pairs)})
    return Quality({"exact_match": wilson(exact, len(pairs)), **means})


def _means(scores: Sequence[tuple[float, float]]) -> dict[str, float]:
    exact, overlap = zip(*scores, strict=True)
    return {"exact_match": sum(exact) / len(exact), "f1": sum(overlap) / len(overlap)}
