"""What settings of `auto` become in a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.api.mesh import Mesh
from toolkit.api.task import Task
from toolkit.config.sections import Config
from toolkit.data.batching.workers import num_workers
from toolkit.models.fast_dropout import is_chosen
from toolkit.models.unpadded import families

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


def _num_workers(it: Circumstances) -> int:
    return num_workers(it.cfg.train, it.task, it.device)


CHOICES: dict[str, Callable[[Circumstances], bool | int]] = {
    "train.unpadded": lambda given: families.choose(given.cfg, given.model_config, given.device),
    "train.fast_dropout": lambda given: is_chosen(given.cfg.train, given.device),
    "train.dataloader_num_workers": _num_workers,
}
"""How each setting is decided, by its dotted key; a setting that is not `auto` is returned as it is."""


def resolve(circumstances: Circumstances) -> Mapping[str, bool | int]:
    """Returns the value of every setting that may be `auto`, by dotted key.

    Raises:
        ConfigError: if a setting asks for what the model, the task or the machine cannot do.
    """
    return {key: choose(circumstances) for key, choose in CHOICES.items()}
