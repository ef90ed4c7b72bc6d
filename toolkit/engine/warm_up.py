"""Imports all code of a training before memory is measured, so that the measurement does not include code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from toolkit.base.package import import_object
from toolkit.config.sections import Config
from toolkit.engine import ENGINES
from toolkit.models.load import load_code
from toolkit.optim.optimizers import constructor

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def import_all(cfg: Config, config: PreTrainedConfig, auto_model: str) -> None:
    """Imports the modules of a run, and runs a first step that starts the libraries' threads.

    Args:
        cfg: resolved settings.
        config: the model's configuration.
        auto_model: name of the auto class that will build the model.
    """
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
