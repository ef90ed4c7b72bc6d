"""Builds the Accelerator for the launched processes and their devices."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from toolkit.base.errors import RunError
from toolkit.config.launcher import USE_DEEPSPEED, USE_FSDP
from toolkit.config.sections import Config
from toolkit.distributed.collectives import collective_seconds
from toolkit.distributed.strategies import strategy_type

if TYPE_CHECKING:
    from accelerate import Accelerator


KNOWN_LAUNCHES = ("NO", "MULTI_CPU", "MULTI_GPU")
"""The values of `accelerate.DistributedType` that strategies support."""


def build_accelerator(cfg: Config) -> Accelerator:
    """Builds the run's only Accelerator; `toolkit.checks.machine` has already checked the device.

    Raises:
        RunError: if the launched processes do not form one group, or no strategy supports this kind of launch.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
    from accelerate.utils import AORecipeKwargs

    train = cfg.train
    # The toolkit counts items over a window and scales by that count; accelerate must not divide again. The
    # environment would win over the argument, and its value is already part of the configuration.
    os.environ.pop("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", None)
    for variable in (USE_FSDP, USE_DEEPSPEED):  # translated into `parallel`
        os.environ.pop(variable, None)
    if train.tf32 is not None:
        torch.set_float32_matmul_precision("high" if train.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = train.tf32
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    # accelerate does not tell the processes of a launch on several CPU processes to use the CPU; without this, each
    # process would be a separate run.
    kind = Accelerator if strategy_type(cfg).wraps_model else _unwrapped_kind()
    accelerator = kind(
        cpu="LOCAL_RANK" in os.environ and not torch.accelerator.is_available(),
        mixed_precision=train.mixed_precision,
        gradient_accumulation_steps=1,
        kwargs_handlers=[
            DistributedDataParallelKwargs(find_unused_parameters=train.ddp_find_unused_parameters),
            InitProcessGroupKwargs(timeout=timedelta(seconds=collective_seconds(train))),
            # torchao's, which leaves weights, and so checkpoints, as they are; accelerate would take what is installed.
            *([AORecipeKwargs()] if train.mixed_precision == "fp8" else []),
        ],
    )
    if accelerator.num_processes != launched:
        raise RunError(
            f"{launched} processes were launched, but accelerate made a group of {accelerator.num_processes}."
        )
    if (kind_of_launch := str(accelerator.distributed_type.value)) not in KNOWN_LAUNCHES:
        raise RunError(
            f"accelerate launched this training as {kind_of_launch}, which the toolkit does not support; it supports "
            f"{', '.join(KNOWN_LAUNCHES)} (CPUs and GPUs, each process with a copy of the model)."
        )
    # Process-wide state of accelerate: if earlier code left it False, optimizer.step() would silently do nothing.
    accelerator.gradient_state._set_sync_gradients(True)
    return accelerator


def _unwrapped_kind() -> type[Accelerator]:
    """Returns a class of Accelerator that does not wrap the model, so each process keeps its own gradient."""
    from accelerate import Accelerator

    class Unwrapped(Accelerator):
        def prepare_model(
            self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
        ) -> torch.nn.Module:
            # Placement, precision and compilation are those of training; only the wrapper is omitted.
            prepared: torch.nn.Module = super().prepare_model(model, device_placement, evaluation_mode=True)
            return prepared

    return Unwrapped
