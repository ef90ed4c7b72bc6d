"""Arguments of learning-rate schedules: the span of steps, and types of the others."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Cycles = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(gt=0, le=1)]
Floor = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Curve = Literal["linear", "cosine", "1-sqrt"]


class Span(NamedTuple):
    """The length of a schedule: the number of warm-up steps, the total number of steps, and the peak rate."""

    warmup: int
    total: int
    peak: float
