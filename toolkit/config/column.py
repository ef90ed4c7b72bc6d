"""A column of a task's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column of the task's rows.

    Args:
        help: description of its content, for messages and documentation.
        required: whether every row must have a value.
        label: whether it is (part of) the label, which prediction does not need.
        file: whether it holds the path of a file, relative to the data file (see `toolkit.data.media.files`).
        key: whether it only names the row, so that rows with equal inputs may differ in it.
        used: whether the column is read, given the task's options.
    """

    help: str
    required: bool = True
    label: bool = False
    file: bool = False
    key: bool = False
    used: Callable[[Any], bool] = lambda options: True
