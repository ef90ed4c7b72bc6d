"""Chooses the values of settings that are `auto`, by the model and the memory that is left."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from toolkit.api.mesh import Mesh
from toolkit.api.run import ASYNC_SAVE, Run
from toolkit.api.task import Task
from toolkit.base.console import format_bytes, say
from toolkit.base.shards import local_bytes
from toolkit.config.sections import Config
from toolkit.data.batching.workers import num_workers
from toolkit.distributed.collectives import objects_of_all
from toolkit.models import chunked
from toolkit.models.fast_dropout import is_chosen
from toolkit.models.unpadded import families
from toolkit.optim.presets import PRESETS
from toolkit.system.limits import available_memory

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


MARGIN = 2.0
"""How many times the memory of a copy must be free."""


def saves_in_background(run: Run) -> bool:
    """Returns what `checkpoint.async_save` becomes, the same on every process; call it before the optimizer is built.

    `auto` is false for DeepSpeed, which makes complete copies for each checkpoint anyway, and with callbacks of a user,
    which may change parameters at any moment and are told of a checkpoint right after it is written.
    """
    chosen = run.cfg.checkpoint.async_save
    if chosen != "auto":
        return chosen
    if run.cfg.parallel.backend == "deepspeed" or run.cfg.trainer.callbacks:
        return False
    copy, training = own_bytes(run)
    needed: dict[str, float] = {}
    free: dict[str, int] = {}
    for node, own, there in objects_of_all((platform.node(), MARGIN * copy + training, available_memory())):
        needed[node] = needed.get(node, 0.0) + own
        free[node] = min(there, free.get(node, there))
    if short := [node for node in needed if needed[node] > free[node]]:
        say(
            f"Training waits while a checkpoint is written: a copy would need {format_bytes(copy)} of memory, and with "
            f"a reserve and what training itself will use {format_bytes(needed[short[0]])} must be free, but "
            f"{format_bytes(free[short[0]])} are ({ASYNC_SAVE}: true copies anyway)."
        )
    return not short


def own_bytes(run: Run) -> tuple[int, int]:
    """Returns the CPU memory of this process's copy, and what training will allocate in addition to the model."""
    mesh, parameters = run.mesh, list(run.model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    own = sum(local_bytes(parameter) // parameter.element_size() for parameter in trained)
    state = round(own * PRESETS[run.cfg.train.optim].state_bytes)
    held = sum(map(local_bytes, [*parameters, *run.model.buffers()])) + state
    if run.cfg.checkpoint.format == "sharded":
        copy = held // (mesh.data_size // max(mesh.fsdp, mesh.expert) * mesh.context)
    else:
        first = mesh.data_rank < max(mesh.fsdp, mesh.expert) and mesh.context_rank == 0
        copy = held if first else 0  # the first of several that hold it
    on_cpu = run.accelerator.device.type == "cpu"
    return copy, sum(map(local_bytes, trained)) + state if on_cpu else 0


@dataclass(frozen=True)
class Circumstances:
    """What settings of `auto` depend on."""

    cfg: Config  # resolved configuration, in which settings may still be `auto`
    task: Task  # the recipe's task
    model_config: PreTrainedConfig  # the model's configuration
    device: torch.device  # the device of this process
    mesh: Mesh  # arrangement of the processes


CHOICES: dict[str, Callable[[Circumstances], bool | int | str]] = {
    "train.unpadded": lambda given: families.choose(given.cfg, given.model_config, given.device),
    "train.chunked_loss": lambda given: chunked.is_chosen(given.cfg, given.model_config),
    "train.fast_dropout": lambda given: is_chosen(given.cfg.train, given.device),
    "train.dataloader_num_workers": lambda given: num_workers(given.cfg.train, given.task, given.device),
}
"""How each setting is decided, by its dotted key; a setting that is not `auto` is returned as it is."""


def resolve(circumstances: Circumstances) -> Mapping[str, bool | int | str]:
    """Returns the value of every setting that may be `auto`, by dotted key.

    Raises ConfigError if a setting asks for what the model, the task or the machine cannot do.
    """
    return {key: choose(circumstances) for key, choose in CHOICES.items()}
