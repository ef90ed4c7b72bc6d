"""Engines turn a `Run` into a `FitResult`; all of them train on the same windows with the same beats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.config.sections import Config
    from toolkit.engine.run import FitResult, Run

Engine = Callable[["Run"], "FitResult"]


def _loop() -> Engine:
    from toolkit.engine.loop import fit

    return fit


def _trainer() -> Engine:
    from toolkit.engine.trainer import fit

    return fit


ENGINES: dict[str, Callable[[], Engine]] = {"loop": _loop, "trainer": _trainer}
"""Engines by the name in the YAML; each is imported when it is asked for."""


def check_engine(cfg: Config) -> None:
    """Checks what only the installed libraries can tell of an engine's own settings.

    Raises:
        ConfigError: with everything that is wrong with them.
    """
    if cfg.engine == "trainer" and (cfg.trainer.args or cfg.trainer.callbacks):
        from toolkit.engine.arguments import check

        check(cfg)
