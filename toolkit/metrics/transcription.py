"""Word and character error rates of transcripts, their alignment word by word, and the most frequent errors."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from toolkit.metrics.intervals import bootstrap
from toolkit.metrics.score import Quality, Score

if TYPE_CHECKING:
    import numpy as np

Aligned = tuple[str, str, str]
"""`equal` or one of `KINDS`, the word that was heard, and the word that was expected; empty where there is none."""
KINDS = ("substitution", "insertion", "deletion")
RATES = ("wer", "cer", *(f"{kind}s" for kind in KINDS))
TRANSCRIPTION = tuple(Score(name, greater_is_better=False) for name in RATES)
"""Errors per word of the references, except `cer`: errors per character of the references."""

_SPACES = re.compile(r"\s{2,}")


def transcription_scores(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Scores transcripts, with one reference each in the same order, exactly as jiwer 4 does.

    Returns:
        `wer`, `cer`, and `substitutions`, `insertions` and `deletions`, whose sum is `wer`. If all references are
        empty, they are numbers of errors instead of rates.

    Raises:
        ValueError: if the two differ in length.
    """
    counts = _counts(predictions, references)
    return {name: float(values[0]) for name, values in _rates(counts.sum(axis=0, keepdims=True)).items()}


def transcription_quality(predictions: Sequence[str], references: Sequence[str]) -> Quality:
    """Returns intervals of `transcription_scores` over utterances; the arguments are the same."""
    return Quality(bootstrap(_counts(predictions, references), _rates))


def transcription_error(prediction: str, reference: str) -> tuple[float, float] | None:
    """Returns the number of wrong words and of wrong characters; None if there are none."""
    *words, _, letters, _ = _counts([prediction], [reference])[0].tolist()
    return (float(sum(words)), float(letters)) if sum(words) or letters else None


def alignment(prediction: str, reference: str) -> list[Aligned]:
    """Aligns the words of a transcript with those of its reference by the fewest errors.

    Of several such alignments, it is the one that jiwer shows.
    """
    heard, expected = _words(prediction), _words(reference)
    short = min(len(heard), len(expected))
    start = next((place for place in range(short) if heard[place] != expected[place]), short)
    same = range(1, short - start + 1)
    end = next((place - 1 for place in same if heard[-place] != expected[-place]), short - start)
    row, column = len(expected) - end, len(heard) - end
    deltas, found = list(_deltas(expected[start:row], heard[start:column])), list[Aligned]()
    while row > start or column > start:
        last, (more, _) = row - start - 1, deltas[column - start]
        if row > start and more >> last & 1:
            row -= 1
            found.append(("deletion", "", expected[row]))
            continue
        column -= 1
        if row == start or deltas[column - start][1] >> last & 1:
            found.append(("insertion", heard[column], ""))
        else:
            row -= 1
            kind = "equal" if heard[column] == expected[row] else "substitution"
            found.append((kind, heard[column], expected[row]))
    both = [("equal", word, word) for word in expected]
    return [*both[:start], *reversed(found), *both[len(both) - end :]]


def frequent_errors(
    predictions: Iterable[str], references: Iterable[str], most: int = 10
) -> list[tuple[str, str, str, int]]:
    """Returns the `most` most frequent errors of each kind, and how often they occur."""
    pairs = zip(predictions, references, strict=True)
    counts = Counter(word for prediction, reference in pairs for word in alignment(prediction, reference))
    every = [(*word, count) for word, count in counts.most_common()]
    return [error for kind in KINDS for error in [each for each in every if each[0] == kind][:most]]


def _words(text: str) -> list[str]:
    """Splits at spaces, and at runs of any whitespace, as jiwer does: a single tab is part of a word."""
    return [word for word in _SPACES.sub(" ", text).strip().split(" ") if word]


def _counts(predictions: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Returns the numbers of each utterance, `[N, 6]`: the errors by kind, the words, wrong characters, characters."""
    import numpy as np

    rows = []
    for prediction, reference in zip(predictions, references, strict=True):
        kinds = Counter(kind for kind, *_ in alignment(prediction, reference))
        heard, expected = prediction.strip(), reference.strip()
        words = kinds.total() - kinds["insertion"]
        rows.append([*(kinds[kind] for kind in KINDS), words, _distance(heard, expected), len(expected)])
    return np.array(rows, dtype=np.int64).reshape(-1, 6)


def _rates(sums: np.ndarray) -> Mapping[str, np.ndarray]:
    """Returns the scores, `[sets]` by name, from the sums of `_counts` over sets of utterances, `[sets, 6]`."""
    import numpy as np

    *kinds, words, letters, all_letters = sums.T
    by_word = np.stack([sum(kinds), *kinds]) / np.where(words, words, 1)
    by_letter = letters / np.where(all_letters, all_letters, 1)
    return dict(zip(RATES, (by_word[0], by_letter, *by_word[1:]), strict=True))


def _distance(heard: str, expected: str) -> int:
    """Returns the smallest number of errors that turn one text into the other."""
    if heard == expected:
        return 0
    more, less = deque(_deltas(expected, heard), maxlen=1)[0]
    return len(heard) + more.bit_count() - less.bit_count()


def _deltas(expected: Sequence[str], heard: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yields, for none, one, two, ... of the heard items, how their distance changes along the expected items.

    Bit i of the first number is set where expected item i makes the distance greater by 1, bit i of the second one
    where it makes it smaller (Hyyrö 2003). Python's integers have any number of bits, so one step takes all of them.
    """
    places = defaultdict[str, int](int)
    for place, item in enumerate(expected):
        places[item] |= 1 << place
    every = (1 << len(expected)) - 1
    more, less = every, 0
    yield more, less
    for item in heard:
        equal = places.get(item, 0)
        same = (((equal & more) + more) ^ more) | equal | less  # the distance does not grow along the diagonal
        wider, narrower = less | (every & ~(same | more)), more & same  # changes from one heard item to the next
        wider = wider << 1 | 1
        more, less = (narrower << 1 | ~(same | wider)) & every, wider & same & every
        yield more, less
