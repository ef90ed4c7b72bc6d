"""Finds rows that are nearly equal, in a time that grows with the number of rows and not with that of pairs.

Each row has a few keys, which similar rows are likely to share. Only rows that share a key are compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from toolkit.data.keys import first_like

BANDS, BINS = 16, 64
LEAST_SIMILARITY = 0.8
"""Texts are nearly equal if they share this fraction of their pieces, in every column."""
PIECE = 5
"""Characters of a piece."""
MOST_CHARACTERS = 20_000
"""Characters of a text that are compared."""
_FACTOR, _MIX = np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)
_WORD = re.compile(r"\w+")


def pieces(text: str) -> np.ndarray:
    """Returns the hashes of the different pieces of a text, sorted; case, punctuation and blanks do not count.

    Returns:
        `[N]` uint64; N is 1 for a text that is shorter than a piece.
    """
    plain = " ".join(_WORD.findall(text[:MOST_CHARACTERS].casefold()))
    codes = np.frombuffer(plain.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    size = min(PIECE, max(len(codes), 1))
    windows = np.zeros(max(len(codes) - size + 1, 1), dtype=np.uint64)
    for place in range(min(size, len(codes))):
        windows = windows * _FACTOR + codes[place : len(codes) - size + 1 + place]
    return np.unique(_mixed(windows))


def _mixed(values: np.ndarray) -> np.ndarray:
    """Returns hashes whose bits all depend on all bits of the values (`[N]` uint64)."""
    values = (values ^ (values >> np.uint64(29))) * _MIX
    values = (values ^ (values >> np.uint64(32))) * _MIX
    return values ^ (values >> np.uint64(30))


def band_keys(found: np.ndarray) -> np.ndarray:
    """Returns keys of a text: two texts share a key with a probability that rises steeply with their similarity.

    The smallest hashes of `BINS` ranges of hashes are equal in two texts with the probability of their Jaccard
    similarity (MinHash, Broder 1997; in one pass: Li, Owen and Zhang 2012, arXiv 1208.1259; empty ranges borrow from
    the next: Shrivastava and Li 2014). A key is made of `BINS / BANDS` of them.

    Args:
        found: `[N]` uint64 hashes of the pieces.

    Returns:
        `[BANDS]` uint64.
    """
    smallest = np.full(BINS, np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(smallest, (found >> np.uint64(58)).astype(np.int64), found)
    filled = np.flatnonzero(smallest != np.iinfo(np.uint64).max)
    lender = np.searchsorted(filled, np.arange(BINS))
    distance = (filled[lender % len(filled)] - np.arange(BINS)) % BINS
    smallest = smallest[filled[lender % len(filled)]] + distance.astype(np.uint64)
    keys = np.zeros(BANDS, dtype=np.uint64)
    for column in smallest.reshape(BANDS, -1).T:
        keys = _mixed(keys * _FACTOR + column)
    return keys


def similarity(one: str, other: str) -> float:
    """Returns the Jaccard similarity of the pieces of two texts: the fraction that both have."""
    left, right = pieces(one), pieces(other)
    shared = len(np.intersect1d(left, right, assume_unique=True))
    return shared / (len(left) + len(right) - shared)


def text_keys(rows: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns the keys of rows with one or several texts; rows share a key if all their texts do.

    Returns:
        `[rows, BANDS]` uint64.
    """
    keys = np.zeros((len(rows), BANDS), dtype=np.uint64)
    for number, texts in enumerate(rows):
        for text in texts:
            keys[number] = _mixed(keys[number] * _FACTOR + band_keys(pieces(text)))
    return keys


def similar_pairs(keys: np.ndarray, likeness: Callable[[int, int], float | None]) -> list[tuple[int, int, float]]:
    """Returns each row that is like an earlier one.

    A row is compared with the first row of each of its keys, and with the one before it that has the key.

    Args:
        keys: `[rows, K]`.
        likeness: returns how similar two rows are, or None if they are not.

    Returns:
        The earlier row, the row, and their likeness, in the order of the rows; each row once, with the first that it
        is like.
    """
    if not len(keys):
        return []
    candidates = []
    for column in keys.T:
        first = first_like(column)
        order = np.lexsort((np.arange(len(first)), first))
        follows = first[order][1:] == first[order][:-1]
        before = np.stack([order[:-1][follows], order[1:][follows]], axis=1)
        later = np.flatnonzero(first != np.arange(len(first)))
        candidates += [before, np.stack([first[later], later], axis=1)]
    pairs = np.unique(np.concatenate(candidates), axis=0)
    found: dict[int, tuple[int, int, float]] = {}
    for earlier, row in pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))].tolist():
        if row not in found and (how := likeness(earlier, row)) is not None:
            found[row] = earlier, row, how
    return list(found.values())
