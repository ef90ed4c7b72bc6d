"""Types of settings."""

from __future__ import annotations

from typing import Annotated, Literal

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
