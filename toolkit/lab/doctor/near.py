"""Rows whose inputs are nearly equal: texts of mostly the same pieces, images and audio that look or sound alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.api.task import Task, reads_files
from toolkit.base.console import counted
from toolkit.lab.doctor import duplicates
from toolkit.lab.doctor.duplicates import Print
from toolkit.lab.doctor.findings import Finding, Part, input_columns, pair
from toolkit.lab.doctor.similar import LEAST_SIMILARITY, similar_pairs, similarity, text_keys


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
    """Yields the findings about rows that are nearly equal within and across splits.

    Args:
        task: tells which columns are inputs.
        rows: the rows to compare.
        prints: the fingerprint of each row's file; empty if inputs are texts.
    """
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
        return [duplicates.of_image(part.rows[row][column], most) for part, row in rows]
    return [duplicates.of_audio(part.rows[row][column]) for part, row in rows]


def _by_file(task: Task, prints: Sequence[Print | None]) -> list[tuple[int, int, float]]:
    there = [number for number, each in enumerate(prints) if each is not None]
    known = [each for each in prints if each is not None]
    kind = "audio" if "audio" in input_columns(task) else "image"
    keys = np.stack([each.keys for each in known]) if known else np.empty((0, 1))
    found = similar_pairs(keys, lambda one, other: duplicates.likeness(known[one], known[other], kind))
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
