"""A column of a task's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column of the task's rows.

    Args:
        help: what it holds, for messages and documentation.
        required: whether every row must have it.
        label: whether it is (part of) the answer: not needed to predict.
        file: whether it holds a file (see `toolkit.data.files`): a path, relative to the file that names it.
        used: whether it is read at all, given the task's options.
    """

    help: str
    required: bool = True
    label: bool = False
    file: bool = False
    used: Callable[[Any], bool] = lambda options: True
