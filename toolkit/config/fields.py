"""Types of settings, and the declaration of a column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

STRICT = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)
"""The `__pydantic_config__` of every section: unknown keys and wrong types are errors."""

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Every = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] | Literal["epoch"] | None
EPOCHS = r"^([1-9]\d{0,5}(\.\d{1,9})?|0\.\d{0,8}[1-9]) epochs?$"
"""Pattern of a length in epochs."""
Epochs = Annotated[str, Field(pattern=EPOCHS, examples=["2 epochs"])]
"""A length in epochs, such as `2 epochs` or `0.5 epochs`."""
ColumnName = Annotated[
    str,
    BeforeValidator(lambda name: str(name) if type(name) is int else name),
    WithJsonSchema({"type": ["string", "integer"]}),
]
"""Name of a column; a number from 1 becomes text."""
Room = Annotated[
    str,
    BeforeValidator(lambda size: str(size) if type(size) is int else size),
    Field(pattern=r"^(auto|0|[1-9]\d{0,5}(KiB|MiB|GiB|TiB))$"),
    WithJsonSchema({"type": ["string", "integer"]}),
]
"""A number of bytes, such as `20GiB`; `auto`, or 0."""


@dataclass(frozen=True)
class Column:
    """A column of the task's rows.

    Args:
        help: description of its content, for messages and documentation.
        required: whether every row must have a value.
        label: whether it is (part of) the label, which prediction does not need.
        file: whether it holds the path of a file, relative to the data file (see `toolkit.data.media.files`).
        opt_in: whether it is read only if `data.columns` names it, because its name may mean something else in a file.
        key: whether it only names the row, so that rows with equal inputs may differ in it.
        used: whether the column is read, given the task's options.
    """

    help: str
    required: bool = True
    label: bool = False
    file: bool = False
    opt_in: bool = False
    key: bool = False
    used: Callable[[Any], bool] = lambda options: True
