"""Finds rows that repeat or nearly repeat others: by digest, text or fingerprints of images and audio."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from toolkit.api.batch import BadRow
from toolkit.api.task import Task, reads_files
from toolkit.base.console import counted
from toolkit.data.keys import NO_GROUP, first_like
from toolkit.lab.doctor.findings import Finding, Part, input_columns, pair

SIDE, COARSE = 16, 8
"""Cells on each side of the grid that is compared, and of the one whose steps are the keys."""
LEAST_STEP = 2
"""Difference of two neighbouring cells, of 255, from which it counts."""
MOST_BITS = 20
"""Two files are compared cell by cell if at most this many of their 128 bits differ."""
LEAST_CORRELATION = {"image": 0.96, "audio": 0.995}
"""Two files are nearly equal if their cells have this correlation, which brightness, contrast and loudness leave."""
MOST_SECONDS = 30.0
LOWEST_HERTZ, HIGHEST_HERTZ, RANGE_DECIBEL = 100.0, 3500.0, 60.0
WINDOW_SECONDS = 0.032
FULL_SCALE, FLAT = 0.9999, 3
"""The largest sample that 16 bits hold, nearly, and the samples of a peak that is cut off; others touch it once."""
MOST_LENGTH = 0.02
"""Relative difference of the lengths of two clips that are nearly equal."""


@dataclass(frozen=True)
class Print:
    """The fingerprint of a file."""

    # `[128]` bool, whether a cell is brighter than its left or its upper neighbour (a difference hash)
    bits: np.ndarray
    cells: np.ndarray  # `[16, 16, ...]` uint8: colours, or loudness by frequency and time
    size: tuple[float, ...]  # width and height in pixels, or the length in seconds
    clipped: float = 0.0  # share of samples that are cut off at the largest value; NaN in silence

    @property
    def keys(self) -> np.ndarray:
        """`[8]` uint64, parts of the bits."""
        return np.packbits(self.bits).view(np.uint16).astype(np.uint64)


def steps(wide: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns the bits of a fingerprint from `[8, 9]` and `[9, 8]` uint8 cells."""
    across, down = (np.diff(cells.astype(np.int16), axis=axis) for cells, axis in ((wide, 1), (high, 0)))
    return np.concatenate([across.ravel(), down.ravel()]) >= LEAST_STEP


def of_image(file: Mapping[str, Any], max_pixels: int) -> Print | None:
    """Returns the fingerprint of an image; None if it can no longer be read."""
    from PIL import Image

    from toolkit.modalities.image_files import as_channels, decode

    try:
        image = as_channels(decode(file, max_pixels), 3)
    except BadRow:
        return None
    grey, average = image.convert("L"), Image.Resampling.BOX
    wide, high = (np.asarray(grey.resize(size, average)) for size in ((COARSE + 1, COARSE), (COARSE, COARSE + 1)))
    cells = np.asarray(image.resize((SIDE, SIDE), average))
    return Print(steps(wide, high), cells, (float(image.width), float(image.height)))


def of_audio(file: Mapping[str, Any]) -> Print | None:
    """Returns the fingerprint of a clip, of its first `MOST_SECONDS`; None if it can no longer be read."""
    import soundfile

    from toolkit.modalities.audio_files import open_sound

    try:
        with open_sound(file) as opened, soundfile.SoundFile(opened) as sound:
            rate, frames = sound.samplerate, file["frames"]
            sound.seek(file["first"])
            read = sound.read(min(frames, round(MOST_SECONDS * rate)), "float32", always_2d=True)
    except (soundfile.SoundFileError, OSError, ValueError):
        return None
    samples = read.mean(axis=1)
    wide, high, cells = (
        loudness(samples, rate, *shape) for shape in ((COARSE, COARSE + 1), (COARSE + 1, COARSE), (SIDE, SIDE))
    )
    return Print(steps(wide, high), cells, (frames / rate,), clipped(read))


def clipped(samples: np.ndarray) -> float:
    """Returns the share of samples (`[frames, channels]`) in runs of `FLAT` at full scale; NaN if there is no sound."""
    from toolkit.modalities.audio import SILENCE

    if len(samples) < FLAT or np.ptp(samples) <= SILENCE:
        return float("nan")
    return float(np.lib.stride_tricks.sliding_window_view(np.abs(samples) >= FULL_SCALE, FLAT, 0).all(-1).mean())


def loudness(samples: np.ndarray, rate: int, bands: int, stretches: int) -> np.ndarray:
    """Returns the loudness by band and stretch of time, uint8: 255 is the loudest cell, 0 `RANGE_DECIBEL` below it."""
    wide = max(round(WINDOW_SECONDS * rate), 2)
    padded = np.pad(samples, (0, max(0, stretches * wide - len(samples))))
    frames = padded[: len(padded) // wide * wide].reshape(-1, wide) * np.hanning(wide).astype(np.float32)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    edges = np.geomspace(LOWEST_HERTZ, HIGHEST_HERTZ, bands + 1) * wide / rate
    columns = np.clip(np.floor(edges).astype(int), 0, power.shape[1] - 1)
    found = np.stack([power[:, a : max(b, a + 1)].sum(axis=1) for a, b in pairwise(columns)])
    cells = np.stack([part.mean(axis=1) for part in np.array_split(found, stretches, axis=1)], axis=1)
    decibel = 10 * np.log10(np.maximum(cells / max(float(cells.max()), 1e-20), 1e-20))
    return np.clip(255 * (1 + decibel / RANGE_DECIBEL), 0, 255).astype(np.uint8)


def likeness(one: Print, other: Print, kind: str) -> float | None:
    """Returns the correlation of the cells of two images or clips of nearly one length; None if they are not alike."""
    if kind == "audio" and abs(one.size[0] - other.size[0]) > MOST_LENGTH * max(one.size[0], other.size[0]):
        return None
    if int((one.bits != other.bits).sum()) > MOST_BITS:
        return None
    left, right = (each.cells.ravel() - each.cells.mean() for each in (one, other))
    scale = float(np.sqrt((left**2).sum() * (right**2).sum()))
    correlation = float((left * right).sum()) / scale if scale else float(np.array_equal(one.cells, other.cells))
    return correlation if correlation >= LEAST_CORRELATION[kind] else None


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
    """Returns the sorted uint64 hashes of a text's distinct pieces, at least one, ignoring case and punctuation."""
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
    """Returns `[BANDS]` keys of a text: the probability of a shared key rises steeply with the similarity of two texts.

    The smallest hashes of `BINS` ranges of hashes are equal in two texts with the probability of their Jaccard
    similarity (MinHash, Broder 1997; in one pass: Li, Owen and Zhang 2012, arXiv 1208.1259; empty ranges borrow from
    the next: Shrivastava and Li 2014). A key combines `BINS / BANDS` of them.
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
    """Returns the `[rows, BANDS]` keys of rows with one or several texts; rows share a key if all their texts do."""
    keys = np.zeros((len(rows), BANDS), dtype=np.uint64)
    for number, texts in enumerate(rows):
        for text in texts:
            keys[number] = _mixed(keys[number] * _FACTOR + band_keys(pieces(text)))
    return keys


def similar_pairs(keys: np.ndarray, likeness: Callable[[int, int], float | None]) -> list[tuple[int, int, float]]:
    """Returns the first row, row and likeness of each row that is like an earlier one with a common key."""
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


def different_rows(parts: Sequence[Part]) -> list[tuple[Part, int]]:
    """Returns the first row of each input, over all splits: equal rows are found by their digests."""
    seen: set[int] = set()
    found = []
    for part in parts:
        for row, digest in enumerate(part.keys.inputs.tolist()):
            if digest not in seen:
                seen.add(digest)
                found.append((part, row))
    return found


def near_rows(task: Task, rows: Sequence[tuple[Part, int]], prints: Sequence[Print | None]) -> Iterator[Finding]:
    """Yields the findings about rows that are nearly equal within and across splits; texts have no `prints`."""
    pairs = _by_file(task, prints) if reads_files(task) else _by_text(task, rows)
    inside: list[dict[str, Any]] = []
    across: list[dict[str, Any]] = []
    for earlier, row, how in pairs:
        (one, first), (other, second) = rows[earlier], rows[row]
        (inside if one is other else across).append(pair(other, second, one, first, similarity=round(how, 4)))
    if inside:
        said = f"{counted(len(inside), 'row')} with nearly the inputs of an earlier row."
        yield Finding("near_duplicates", len(inside), said, inside)
    for split, like in dict.fromkeys((each["split"], each["like_split"]) for each in across):
        found = [each for each in across if (each["split"], each["like_split"]) == (split, like)]
        total = next(len(part.numbers) for part, _ in rows if part.name == split)
        verb = "is" if len(found) == 1 else "are"
        said = f"{len(found):,} of {counted(total, f'{split} row')} {verb} nearly equal to one of the {like} rows."
        yield Finding("near_leaked", len(found), said, found)


def fingerprints(task: Task, rows: Sequence[tuple[Part, int]]) -> list[Print | None]:
    """Returns the fingerprints of the files of rows; empty if the task's inputs are texts."""
    if not reads_files(task):
        return []
    (column,) = (name for name in input_columns(task) if task.columns[name].file)
    if column == "image":
        most = task.options.image.max_pixels
        return [of_image(part.rows[row][column], most) for part, row in rows]
    return [of_audio(part.rows[row][column]) for part, row in rows]


def _by_file(task: Task, prints: Sequence[Print | None]) -> list[tuple[int, int, float]]:
    there = [number for number, each in enumerate(prints) if each is not None]
    known = [each for each in prints if each is not None]
    kind = "audio" if "audio" in input_columns(task) else "image"
    keys = np.stack([each.keys for each in known]) if known else np.empty((0, 1))
    found = similar_pairs(keys, lambda one, other: likeness(known[one], known[other], kind))
    return [(there[earlier], there[row], how) for earlier, row, how in found]


def _by_text(task: Task, rows: Sequence[tuple[Part, int]]) -> list[tuple[int, int, float]]:
    columns = input_columns(task)
    values = {part.name: {name: part.rows[name][:] for name in columns} for part, _ in rows}
    texts = [[plain(values[part.name][name][row]) for name in columns] for part, row in rows]

    def likeness(one: int, other: int) -> float | None:
        least = min(similarity(left, right) for left, right in zip(texts[one], texts[other], strict=True))
        return least if least >= LEAST_SIMILARITY else None

    return similar_pairs(text_keys(texts), likeness)


def plain(value: Any) -> str:
    """Returns a value of a checked row, for instance a list of words or of messages, as text."""
    if isinstance(value, Mapping):
        return " ".join(map(plain, value.values()))
    if isinstance(value, list):
        return " ".join(map(plain, value))
    return "" if value is None else str(value)


def equal_rows(task: Task, parts: Sequence[Part]) -> Iterator[Finding]:
    """Yields the findings about equal rows within and across splits; of files, the content is compared."""
    repeated, contrary = [], []
    for part in parts:
        keys = part.keys
        same = first_like(keys.inputs, keys.labels)
        later = np.flatnonzero(same != np.arange(len(same))).tolist()
        repeated += [pair(part, row, part, int(same[row])) for row in later]
        first = first_like(keys.inputs)
        others = [] if task.several_labels else np.flatnonzero(keys.labels != keys.labels[first]).tolist()
        contrary += [pair(part, row, part, int(first[row])) for row in others]
    if repeated:
        rows = counted(len(repeated), "row")
        yield Finding("duplicates", len(repeated), f"{rows} with inputs and label of an earlier row.", repeated)
    if contrary:
        rows = counted(len(contrary), "row")
        yield Finding("contradictory", len(contrary), f"{rows} with the inputs of an earlier row, but another label.",
                      contrary)  # fmt: skip
    for one, other in combinations(parts, 2):
        values, places = np.unique(one.keys.inputs, return_index=True)
        shared = np.flatnonzero(np.isin(other.keys.inputs, values))
        if len(shared):
            first = places[np.searchsorted(values, other.keys.inputs[shared])]
            leaked = [pair(other, row, one, like) for row, like in zip(shared.tolist(), first.tolist(), strict=True)]
            total = counted(len(other.numbers), f"{other.name} row")
            verb = "is" if len(leaked) == 1 else "are"
            said = f"{len(leaked):,} of {total} {verb} also in the {one.name} rows; scores on them are optimistic."
            yield Finding("leaked", len(leaked), said, leaked)


def equal_texts(task: Task, parts: Sequence[Part]) -> Iterator[Finding]:
    """Yields the rows with the same text in two columns, for instance as a query and as what answers it."""
    read, schema = task.read_columns(), task.schema()
    names = [name for name, feature in schema.items() if name in read and getattr(feature, "dtype", "") == "string"]
    for one, other in combinations(names, 2):
        rows = [
            part.place(row)
            for part in parts
            for row, (first, second) in enumerate(zip(part.rows[one][:], part.rows[other][:], strict=True))
            if first and second and first.strip().lower() == second.strip().lower()
        ]
        if rows:
            said = f"{counted(len(rows), 'row')} with the same text in {one!r} and {other!r}."
            yield Finding("equal_texts", len(rows), said, rows)


def shared_groups(parts: Sequence[Part], column: str | None) -> Iterator[Finding]:
    """Yields the groups that are in two splits."""
    for one, other in combinations(parts, 2):
        groups = np.setdiff1d(np.intersect1d(one.keys.groups, other.keys.groups), [NO_GROUP])
        if not len(groups):
            continue
        rows = np.flatnonzero(np.isin(other.keys.groups, groups))
        sets = counted(len(groups), "group")
        yield Finding(
            "shared_groups", len(groups),
            f"{sets} by {column!r} with {counted(len(rows), f'{other.name} row')} "
            f"{'is' if len(groups) == 1 else 'are'} also in the {one.name} rows.",
            [other.place(row) for row in rows.tolist()],
        )  # fmt: skip
