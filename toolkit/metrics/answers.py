"""Scores of one predicted answer: exact match and token F1 as SQuAD defines them.

Rajpurkar et al. 2016 (arXiv 1606.05250) and, for questions without an answer, 2018 (arXiv 1806.03822). Details
follow the official script of version 2: gold answers that are empty after normalisation are ignored.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-cases text, removes ASCII punctuation and English articles, and collapses whitespace."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Returns 1.0 if the normalised prediction is one of the normalised gold answers, else 0.0.

    Args:
        prediction: the predicted text; empty means "no answer".
        answers: the gold answers; empty for a question without an answer.
    """
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
