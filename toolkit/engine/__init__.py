"""Engines turn a `Run` into a `FitResult`; all of them train on the same windows with the same beats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.api.run import FitResult, Run

Engine = Callable[["Run"], "FitResult"]


def _loop() -> Engine:
    from toolkit.engine.loop import fit

    return fit


def _trainer() -> Engine:
    from toolkit.engine.trainer import fit

    return fit


ENGINES: dict[str, Callable[[], Engine]] = {"loop": _loop, "trainer": _trainer}
"""Engines by the name in the YAML; each is imported when it is asked for."""
