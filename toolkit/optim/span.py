"""Arguments of learning-rate schedules: the span of steps, and types of the others."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from toolkit.config.fields import EPOCHS


def _or_epochs(value: Any, steps: ValidatorFunctionWrapHandler) -> Any:
    """Accepts a length in epochs beside a number of steps."""
    if not isinstance(value, str):
        return steps(value)
    if re.match(EPOCHS, value) is None:
        raise ValueError("Input should be a number of steps, or of epochs such as '2 epochs'")
    return value


Count = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=1), WrapValidator(_or_epochs)]
"""A number of steps; in the YAML also of epochs, which `toolkit.optim.lengths` turns into steps."""
LengthOrZero = Annotated[int, Field(ge=0), WrapValidator(_or_epochs)]
CountOrZero = Annotated[int, Field(ge=0)]
Cycles = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(gt=0, le=1)]
Floor = Annotated[float, Field(ge=0)]
Growth = Annotated[float, Field(ge=1, le=10)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Curve = Literal["linear", "cosine", "1-sqrt"]


class Span(NamedTuple):
    """The length of a schedule: the number of warm-up steps, the total number of steps, and the peak rate."""

    warmup: int
    total: int
    peak: float
