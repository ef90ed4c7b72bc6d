"""When a predicted answer counts: exact match and token F1 by the SQuAD definition.

Rajpurkar et al. 2016 (arXiv 1606.05250) and, for questions without an answer, 2018 (arXiv 1806.03822). Details
follow the official script of version 2: gold answers of which normalisation leaves nothing do not count.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-cases, drops ASCII punctuation and English articles, and makes every run of blanks one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1.0 if the normalised prediction is one of the normalised gold answers, else 0.0.

    Args:
        prediction: the predicted text; empty stands for "no answer".
        answers: the gold answers; none at all marks a question without an answer.
    """
    return float(normalize_answer(prediction) in _golds(answers))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Overlap of words between prediction and gold answer (0 to 1), for the gold answer that it suits best.

    Args:
        prediction: the predicted text; empty stands for "no answer".
        answers: the gold answers; none at all marks a question without an answer, where F1 is 1.0 or 0.0.
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
