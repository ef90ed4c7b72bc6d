"""Engines, which turn a `Run` into a `FitResult`. All train on the same windows, with the same hooks around a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from toolkit.api.run import FitResult, Run
from toolkit.api.training import Callback
from toolkit.base.package import import_object
from toolkit.config.sections import Config
from toolkit.models.load import load_code
from toolkit.optim.optimizers import constructor

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


ENGINES = {"loop": "toolkit.engine.loop.fit", "trainer": "toolkit.engine.trainer.fit"}
"""The engines by their names in the YAML, functions that are imported on first use."""


def fit(run: Run, observers: Sequence[Callback] = ()) -> FitResult:
    """Trains a run to its end with the configured engine; `observers` are callbacks that were made before the run.

    Raises:
        ConfigError: if a setting does not fit the run.
        CheckpointError: if the checkpoint cannot be resumed.
        RunError: if an update would be non-finite, or a checkpoint cannot be written.
        Interrupted: after a stop signal, once a checkpoint has been written.
    """
    result: FitResult = import_object(ENGINES[run.cfg.engine])(run, observers)
    return result


def import_all(cfg: Config, config: PreTrainedConfig, auto_model: str) -> None:
    """Imports the modules of a run, and runs a first step that starts the libraries' threads."""
    import_object(ENGINES[cfg.engine])
    constructor(cfg.train.optim)
    load_code(config, auto_model)
    if cfg.model.peft.method != "none":
        import peft  # noqa: F401
    # The first optimizer of a process imports torch's compiler. No random numbers are drawn.
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    (torch.zeros(64, 64) @ weight).sum().backward()
    optimizer.step()
