"""Engines, which turn a `Run` into a `FitResult`. All train on the same windows, with the same hooks around a step."""

from __future__ import annotations

from toolkit.api.run import FitResult, Run
from toolkit.base.package import import_object

ENGINES = {"loop": "toolkit.engine.loop.fit", "trainer": "toolkit.engine.trainer.fit"}
"""Modules of the engines by their names in the YAML, imported on first use."""


def fit(run: Run) -> FitResult:
    """Trains a run to its end with the configured engine.

    Raises:
        ConfigError: if a setting does not fit the run.
        CheckpointError: if the checkpoint cannot be resumed.
        RunError: if an update would be non-finite, or a checkpoint cannot be written.
        Interrupted: after a stop signal, once a checkpoint has been written.
    """
    result: FitResult = import_object(ENGINES[run.cfg.engine])(run)
    return result
