"""Token classification: rows with their tags checked, cut into windows with one label per token of the row.

The tokens of a row are words; the model's own tokens are called subwords here. A word's label and prediction are at its
first subword, in exactly one window, so that the number of labels is the number of words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import IGNORE_INDEX, BadRow, Predictions, Record
from toolkit.base.console import shorten
from toolkit.base.errors import InputError
from toolkit.data.values import printed_list
from toolkit.metrics.entities import entities
from toolkit.modalities.text import MODEL_INPUTS, encode_with_overflow

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

OUTSIDE = "O"
PREFIXES = {"B": "B", "I": "I", "S": "B", "U": "B", "E": "I", "L": "I"}
"""Prefixes of tags, with those of IOB2 that mean the same: BIOES and BILOU mark single tokens and ends of entities."""


def check_tokens(value: Any, column: str) -> list[str]:
    """Returns the tokens or tags of a row, from a list, a printed list, or text in which blanks separate them.

    Raises BadRow if it is neither, or there is none, or one is blank or not text.
    """
    printed = isinstance(value, str) and value.lstrip().startswith(("['", '["'))
    tokens = printed_list(value) if printed else value.split() if isinstance(value, str) else value
    if not isinstance(tokens, Sequence) or not tokens:
        raise BadRow(f"column {column!r} holds {shorten(repr(value))}, expected a list of texts, or text with blanks")
    for number, token in enumerate(tokens, start=1):
        if not isinstance(token, str) or not token.strip():
            raise BadRow(f"column {column!r}: entry {number} is {shorten(repr(token))}, expected text")
    return [token.strip() for token in tokens]


def check_tags(tags: Sequence[str], tokens: Sequence[str], types: Sequence[str] | None) -> list[str]:
    """Returns tags of the form IOB1, IOB2, BIOES or BILOU in that of IOB2; without `types`, all are allowed.

    Raises BadRow if a tag is of no such form, its type is not allowed, or there are more or fewer tags than tokens.
    """
    if len(tags) != len(tokens):
        raise BadRow(f"there are {len(tags)} tags for {len(tokens)} tokens")
    checked = []
    for number, tag in enumerate(tags, start=1):
        prefix, _, kind = tag.partition("-")
        if tag != OUTSIDE and (prefix not in PREFIXES or not kind):
            raise BadRow(f"tag {number} is {tag!r}, expected O, B-<type> or I-<type>")
        if kind and types is not None and kind not in types:
            raise BadRow(f"tag {number} is {tag!r}, but the entity types are {', '.join(types)}")
        checked.append(f"{PREFIXES[prefix]}-{kind}" if kind else OUTSIDE)
    return checked


def tag_names(types: Sequence[str]) -> list[str]:
    """Returns the names of the classes: `O`, and `B-` and `I-` of each type."""
    return [OUTSIDE, *(f"{prefix}-{kind}" for kind in types for prefix in "BI")]


def encode_words(
    rows: Sequence[Sequence[str]], tokenizer: PreTrainedTokenizerBase, max_length: int, stride: int
) -> dict[str, list[Any]]:
    """Tokenises rows of words, joined by blanks, in as many windows as each needs; nothing is padded or cut away.

    Args:
        rows: the words of each row.
        tokenizer: a fast tokenizer.
        max_length: largest number of subwords per window.
        stride: number of subwords that consecutive windows share.

    Returns:
        One entry per window in each of: the model's inputs, `length`, `example` (position of the row in `rows`), and
        `words`: for each subword the position of the word that is labelled there, or -1. A word of several windows
        is labelled where it has most context.

    Raises:
        InputError: if `stride` leaves no room for new subwords in a window.
    """
    room = max_length - tokenizer.num_special_tokens_to_add()
    if stride >= room:
        raise InputError(
            f"task.stride: received {stride}, but windows hold {room} tokens (task.max_length {max_length})"
        )
    texts = [" ".join(words) for words in rows]
    encoded = encode_with_overflow(tokenizer, texts, truncation=True, max_length=max_length, stride=stride)
    owners = encoded["overflow_to_sample_mapping"]
    labelled: list[list[int]] = [[-1] * len(ids) for ids in encoded["input_ids"]]
    for example, numbers in groupby(range(len(owners)), key=owners.__getitem__):
        windows = list(numbers)
        offsets = [encoded["offset_mapping"][number] for number in windows]
        for word, (window, place) in _places(rows[example], offsets).items():
            labelled[windows[window]][place] = word
    return {
        **{name: encoded[name] for name in MODEL_INPUTS if name in encoded},
        "length": [len(ids) for ids in encoded["input_ids"]],
        "example": owners,
        "words": labelled,
    }


def _places(words: Sequence[str], windows: Sequence[Sequence[tuple[int, int]]]) -> dict[int, tuple[int, int]]:
    """Returns the window and the place in it of each word's first subword, where it is farthest from an edge.

    `windows` has, for each subword of each window, the characters of the joined words that it stands for.
    """
    starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    first: dict[int, tuple[int, int]] = {}  # by word, the characters of its first subword
    best: dict[int, tuple[float, int, int]] = {}
    for offsets in windows:
        for span in offsets:
            if span[1] > span[0]:
                word = bisect_right(starts, span[1] - 1) - 1
                first[word] = min(span, first.get(word, span))
    for window, offsets in enumerate(windows):
        seen: set[int] = set()
        for place, span in enumerate(offsets):
            word = bisect_right(starts, span[1] - 1) - 1
            if span[1] == span[0] or word in seen or span != first[word]:
                continue
            seen.add(word)
            before = place if window > 0 else len(offsets)
            after = len(offsets) - 1 - place if window < len(windows) - 1 else len(offsets)
            if word not in best or min(before, after) > best[word][0]:
                best[word] = (min(before, after), window, place)
    return {word: (window, place) for word, (_, window, place) in best.items()}


def labels_of(windows: Mapping[str, Sequence[Any]], tags: Sequence[Sequence[int] | None]) -> list[list[int]]:
    """Returns the class ids of each window's subwords (see `encode_words`); `IGNORE_INDEX` at those without a label."""
    return [
        [IGNORE_INDEX if word < 0 or row is None else row[word] for word in words]
        for words, row in zip(windows["words"], (tags[example] for example in windows["example"]), strict=True)
    ]


def tagged(
    predictions: Predictions, features: Dataset, rows: Iterable[Mapping[str, Any]], names: Sequence[str]
) -> Iterator[Record]:
    """Yields a record per row, given `classes` and `scores` (their probabilities) `[windows, subwords]`.

    Yields:
        `tokens`, `tags`, `prediction` (the predicted tags; `O` for words without subwords) and `entities`: each with
        `type`, `text`, `start` and `end` (its first token and the one after its last) and `score`, the mean probability
        of its tags.
    """
    found: dict[int, dict[int, tuple[str, float]]] = {}
    windows = zip(features["example"], features["words"], predictions["classes"], predictions["scores"], strict=True)
    for example, words, classes, scores in windows:
        for place, word in enumerate(words):
            if word >= 0:
                found.setdefault(example, {})[word] = (names[int(classes[place])], float(scores[place]))
    for example, row in enumerate(rows):
        words, tokens = found.get(example, {}), row["tokens"]
        tags = [words[word][0] if word in words else OUTSIDE for word in range(len(tokens))]
        spans = [
            {
                "type": kind,
                "text": " ".join(tokens[start:end]),
                "start": start,
                "end": end,
                "score": sum(words[word][1] for word in range(start, end)) / (end - start),
            }
            for kind, start, end in entities(tags)
        ]
        yield {"tokens": tokens, "tags": row["tags"], "prediction": tags, "entities": spans}


def listed(tokens: Sequence[str], tags: Sequence[str]) -> str:
    """Returns the entities of a row as text, for instance `Anna Berg (PER), Kiel (LOC)`."""
    return ", ".join(f"{' '.join(tokens[start:end])} ({kind})" for kind, start, end in entities(tags)) or "no entity"
