"""Scores of entities in tagged tokens, as conlleval and seqeval (in its default mode) define them.

The definition is short, and seqeval has had no release since 2020, so it is written out here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from toolkit.metrics.intervals import bootstrap, ratio
from toolkit.metrics.score import Quality, Score, absent, by_class

if TYPE_CHECKING:
    import numpy as np

ENTITIES = (Score("f1"), Score("precision"), Score("recall"), Score("f1_macro"), Score("accuracy"))
"""The scores over all entities; accuracy is that of tokens."""
PER_ENTITY = ("precision", "recall", "f1")

Entity = tuple[str, int, int]
"""Type, first token, and the token after the last."""


def entities(tags: Sequence[str]) -> list[Entity]:
    """Returns the entities of a sequence of tags `O`, `B-<type>` and `I-<type>`, in order.

    `I-` continues an entity of the same type, and otherwise begins one, as in conlleval; so IOB1 tags are read, too.
    """
    found: list[Entity] = []
    for place, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix == "I" and found and found[-1][0] == kind and found[-1][2] == place:
            found[-1] = (kind, found[-1][1], place + 1)
        elif prefix != "O":
            found.append((kind, place, place + 1))
    return found


def entity_scores(
    predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]], types: Sequence[str]
) -> dict[str, float]:
    """Scores predicted entities, which are right if type, first and last token are, from the tags of each example.

    Returns:
        From 0 to 1: micro-averaged `precision`, `recall` and `f1`, `f1_macro` over `types`, for each type
        `precision/<type>`, `recall/<type>` and `f1/<type>`, and `accuracy`, the share of tokens with the right tag.
        Undefined scores are 0.0.

    Raises:
        ValueError: if an example has another number of tags in one of the two.
    """
    pairs = list(zip(predictions, references, strict=True))
    tokens = [(one, other) for tags, gold in pairs for one, other in zip(tags, gold, strict=True)]
    guessed, true, right = (Counter[str]() for _ in range(3))
    for tags, gold in pairs:
        one, other = set(entities(tags)), set(entities(gold))
        for counter, members in ((guessed, one), (true, other), (right, one & other)):
            counter.update(kind for kind, _, _ in members)
    by_type = {kind: _scores(right[kind], guessed[kind], true[kind]) for kind in types}
    return {
        **dict(zip(PER_ENTITY, _scores(right.total(), guessed.total(), true.total()), strict=True)),
        "f1_macro": _ratio(sum(f1 for _, _, f1 in by_type.values()), len(types)),
        "accuracy": _ratio(sum(one == other for one, other in tokens), len(tokens)),
        **by_class(PER_ENTITY, types, [by_type[kind] for kind in types]),
    }


def entity_quality(
    predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]], types: Sequence[str] = ()
) -> Quality:
    """Returns how far the scores of `entity_scores` over all entities can be trusted, from draws of examples."""

    def scores(sums: np.ndarray) -> dict[str, np.ndarray]:
        right, guessed, true, right_tokens, tokens = sums.T
        return {
            "precision": ratio(right, guessed),
            "recall": ratio(right, true),
            "f1": ratio(2 * right, guessed + true),
            "accuracy": ratio(right_tokens, tokens),
        }

    rows = []
    for tags, gold in zip(predictions, references, strict=True):
        one, other = set(entities(tags)), set(entities(gold))
        hits = sum(left == right for left, right in zip(tags, gold, strict=True))
        rows.append([len(one & other), len(one), len(other), hits, len(gold)])
    hints = absent("entity types", types, num_entities(references, types), "f1")
    return Quality(bootstrap(rows, scores), hints=tuple(hints))


def num_entities(references: Iterable[Sequence[str]], types: Sequence[str]) -> list[int]:
    """Returns the number of entities of each type."""
    counts = Counter(kind for tags in references for kind, _, _ in entities(tags))
    return [counts[kind] for kind in types]


def _scores(right: int, guessed: int, true: int) -> tuple[float, float, float]:
    """Returns precision, recall and F1."""
    return _ratio(right, guessed), _ratio(right, true), _ratio(2 * right, guessed + true)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
