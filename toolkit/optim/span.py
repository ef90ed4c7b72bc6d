"""What a learning-rate schedule is given: a span of steps, and arguments of these types."""

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
    """What a shape is laid over: steps of warm-up, steps in all, and the peak rate."""

    warmup: int
    total: int
    peak: float
