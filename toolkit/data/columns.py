"""The columns that a task reads with its options, and the check that a source has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.api.batch import BadRow
from toolkit.api.task import Task
from toolkit.base.errors import DataError
from toolkit.config.fields import Column
from toolkit.config.messages import did_you_mean, nearest
from toolkit.config.paths import aligned_files
from toolkit.config.sections import DataConfig
from toolkit.config.templates import escaped, fill, is_template, parts_of
from toolkit.data.media.files import is_archive
from toolkit.data.readers.plain import LINE
from toolkit.data.readers.raw import RawRow
from toolkit.data.sources import Source, folder_of, is_files

LONG_NAME = 40
"""Characters of the name of a column, above which it looks like a text."""


@dataclass(frozen=True)
class Beside:
    """Columns that are read beside those of the task, as in `data.columns`; None for none."""

    group: str | None = None  # whose equal values make a group
    id: str | None = None  # which names rows in predictions
    slices: tuple[str, ...] = ()  # by whose values scores are shown
    file: str | None = None  # no column: the name of the file, if rows of several are read together

    @classmethod
    def of(cls, data: DataConfig, task: Task, slices: Sequence[str] = (), split: str = "") -> Beside:
        """Returns the columns that a run's settings name; the task may group rows by a column of its own."""
        if split == "train" and data.validation_file is not None and not data.test_split:
            slices = ()  # no training row is evaluated
        own = task.group_column()
        group = data.columns.get(own, own) if own is not None else None
        if data.group_column is not None:
            group = escaped(data.group_column)
        return cls(group, data.id_column and escaped(data.id_column), tuple(map(escaped, slices)))

    def named(self) -> list[tuple[str, str]]:
        """Returns the settings that name a column, with its name."""
        slices = [("eval.slices or --slices", name) for name in self.slices]
        given = [("data.group_column", self.group), ("data.id_column", self.id), *slices]
        return [(setting, name) for setting, name in given if name is not None]


NO_COLUMNS = Beside()


def unused_columns(present: Iterable[str], task: Task, columns: Mapping[str, str], beside: Beside) -> list[str]:
    """Returns the columns of a source that a run does not read."""
    used = {*roles(task, columns), *(part for _, given in beside.named() for part in parts_of(given))}
    return [name for name in present if name not in used]


def roles(task: Task, columns: Mapping[str, str]) -> dict[str, str]:
    """Returns the task's name of each column of a source that it reads; several are one text in a template."""
    return {part: name for name in task.read_columns() for part in parts_of(columns.get(name, name))}


def value_in(values: Mapping[str, Any], given: str) -> Any:
    """Returns the value of a raw row for a value of `data.columns`; raises BadRow if a template cannot show it."""
    if not is_template(given):
        return values.get(parts_of(given)[0])
    for part in parts_of(given):
        if isinstance(values.get(part), list | Mapping | bytes):
            raise BadRow(f"column {part!r} holds {type(values[part]).__name__}; templates take text and numbers")
    return fill(given, values)


def file_columns(source: Source, task: Task, columns: Mapping[str, str]) -> list[str]:
    """Returns a source's columns with paths of files; none for an archive, which has the files."""
    if is_archive(folder_of(source)):
        return []
    return [part for part, name in roles(task, columns).items() if task.columns[name].file]


def columns_of(rows: Iterable[RawRow]) -> list[str]:
    """Returns the columns that occur in any of the rows; JSON rows may omit empty ones."""
    return list(dict.fromkeys(name for row in rows if not row.reason for name in row.values or {}))


def is_needed(column: Column, labelled: bool) -> bool:
    """Whether every row must have a value; label columns are needed only if rows are `labelled`."""
    return column.required and (labelled or not column.label)


def columns_in(source: Source, task: Task, columns: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the names in a source of the columns that are named differently there.

    Those of image and audio files and of .txt files are fixed, whatever `data.columns` says: the column of a .txt file
    is the task's only input column, if there is one.
    """
    if is_files(source):
        return {}
    if not isinstance(source, str | Path) or Path(source).suffix.lower() != ".txt" or aligned_files(str(source)):
        return columns
    inputs = {name: column for name, column in task.read_columns().items() if not column.label}
    needed = [name for name, column in inputs.items() if column.required] or list(inputs)[:1]
    is_line = len(needed) == 1 and not is_template(columns.get(needed[0], ""))
    return {needed[0]: LINE} if is_line else columns


def require_columns(source: str, present: list[str], task: Task, columns: Mapping[str, str], labelled: bool) -> None:
    """Raises DataError that names each missing column that is needed, or named by the user."""
    missing = {}
    known = task.read_columns()
    used = roles(task, columns)
    free = [theirs for theirs in present if theirs not in used] or present
    for name, column in known.items():
        given = columns.get(name, name)
        named = name in columns and (labelled or not column.label)
        for wanted in parts_of(given) if named or is_needed(column, labelled) else ():
            if wanted in present:
                continue
            ours = f" (the task's {name!r})" if given != name else ""
            likely = _similar(wanted, free) or _similar(name, free)
            example = f", for instance to {likely!r}" if likely and not is_template(given) else ""
            meant = f" Did you mean {{{likely}}}?" if likely and is_template(given) else ""
            missing[name, wanted] = (
                f"{source} has no column {wanted!r}{ours}: {column.help}. Its columns are {', '.join(present)}. "
                f"Set data.columns.{name}{example}.{meant}"
            )
    if missing:
        raise DataError("\n".join([*missing.values(), *_about_header(present, next(iter(missing))[0])]))


def is_ragged(source: str) -> bool:
    """Whether each row of a source, given by its name, has columns of its own, as JSON objects do."""
    return Path(source).suffix.lower() in (".json", ".jsonl")


def require_present(
    source: str,
    first: Iterable[RawRow],
    every: Callable[[], Iterable[RawRow]] | None,
    task: Task,
    columns: Mapping[str, str],
    labelled: bool,
    beside: Beside,
) -> None:
    """Checks that a source has the columns that are needed, unless none of its first rows is readable.

    Args:
        source: the file or hub split, for the message.
        first: its first rows.
        every: reads all rows, among which a column may first occur later; None if all rows have all columns.
        task: defines the columns.
        columns: maps the toolkit's column names to the source's.
        labelled: whether label columns are needed.
        beside: columns that the task does not read.

    Raises:
        DataError: naming each missing column that is needed, or named by the user.
    """

    def require(present: list[str]) -> None:
        require_columns(source, present, task, columns, labelled)
        require_beside(source, present, beside)

    if not (present := columns_of(first)):
        return
    try:
        require(present)
    except DataError:
        if every is None:
            raise
        require(columns_of(every()))


def _similar(wanted: str, names: Sequence[str]) -> str | None:
    """Returns the name that contains a word, or else the most similar one, if there is one; case is ignored."""
    lower = {name.lower(): name for name in names}
    holding = [name for name in lower if wanted.lower() in re.split(r"[\W_]+", name)]
    found = holding if len(holding) == 1 else nearest(wanted.lower(), lower)
    return lower[found[0]] if found else None


def _about_header(present: Sequence[str], missing: str) -> list[str]:
    """Returns what else may be wrong with a header whose names do not look like names of columns."""
    if present == [str(number) for number in range(1, len(present) + 1)]:
        return []  # it is known that there is no header
    if any(len(name) > LONG_NAME or name.isdigit() for name in present):
        return [
            "If the first line is a row and not a header, set data.header=false and name the columns by number, as in "
            f"data.columns.{missing}=1."
        ]
    if len(present) == 1 and re.search(r"\w *[^\w\s.()-] *\w", present[0]):
        return ["If the file has several columns, set data.delimiter to the character between them."]
    return []


def require_beside(source: str, present: list[str], beside: Beside) -> None:
    """Raises DataError if a column of groups, ids or slices is not among the source's columns."""
    for setting, given in beside.named():
        for name in [part for part in parts_of(given) if part not in present]:
            raise DataError(
                f"{setting}: {source} has no column {name!r}{did_you_mean(name, present)}. "
                f"Its columns are {', '.join(present)}."
            )
