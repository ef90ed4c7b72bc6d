"""The columns that a task reads with its options, and the check that a source has them."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.api.task import Task
from toolkit.base.errors import DataError
from toolkit.config.column import Column
from toolkit.config.messages import did_you_mean, nearest


def used_columns(task: Task) -> dict[str, Column]:
    """Returns the columns that the task reads with its options, by the toolkit's names."""
    options = getattr(task, "options", None)
    return {name: column for name, column in task.columns.items() if column.used(options)}


def is_needed(column: Column, labelled: bool) -> bool:
    """Whether every row must have a value; label columns are needed only if rows are `labelled`."""
    return column.required and (labelled or not column.label)


def require_columns(source: str, present: list[str], task: Task, columns: Mapping[str, str], labelled: bool) -> None:
    """Checks a source's header.

    Args:
        source: the file or hub split, for the message.
        present: names of its columns.
        task: the task, which defines the columns.
        columns: maps the toolkit's column names to the source's.
        labelled: whether label columns are needed.

    Raises:
        DataError: naming each missing column that is needed, or named by the user.
    """
    missing = []
    known = used_columns(task)
    for name, column in known.items():
        wanted = columns.get(name, name)
        named = name in columns and (labelled or not column.label)
        if wanted in present or not (named or is_needed(column, labelled)):
            continue
        used = {columns.get(other, other) for other in known}
        free = [theirs for theirs in present if theirs not in used] or present
        likely, *_ = *nearest(wanted, free), *free
        ours = f" (the task's {name!r})" if wanted != name else ""
        missing.append(
            f"{source} has no column {wanted!r}{ours}: {column.help}. Its columns are {', '.join(present)}. "
            f"Name the right one, for instance `data.columns.{name}: {likely}`."
        )
    if missing:
        raise DataError("\n".join(missing))


def require_group(source: str, present: list[str], group: str | None) -> None:
    """Checks that a source has the group column, if there is one.

    Args:
        source: the file or hub split, for the message.
        present: names of its columns.
        group: name of the group column, or None.

    Raises:
        DataError: if the column is missing.
    """
    if group is not None and group not in present:
        raise DataError(
            f"data.group_column: {source} has no column {group!r}{did_you_mean(group, present)}. "
            f"Its columns are {', '.join(present)}."
        )
