"""What settings of `auto` become in a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.api.mesh import Mesh
from toolkit.api.task import Task
from toolkit.config.sections import Config

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Circumstances:
    """What settings of `auto` depend on.

    Args:
        cfg: resolved configuration, in which settings may still be `auto`.
        task: the recipe's task.
        model_config: the model's configuration.
        device: the device of this process.
        mesh: arrangement of the processes.
    """

    cfg: Config
    task: Task
    model_config: PreTrainedConfig
    device: torch.device
    mesh: Mesh


CHOICES: dict[str, Callable[[Circumstances], bool | int]] = {}
"""How each setting is decided, by its dotted key; a setting that is not `auto` is returned as it is."""


def resolve(circumstances: Circumstances) -> Mapping[str, bool | int]:
    """Returns the value of every setting that may be `auto`, by dotted key.

    Raises:
        ConfigError: if a setting asks for what the model, the task or the machine cannot do.
    """
    return {key: choose(circumstances) for key, choose in CHOICES.items()}
