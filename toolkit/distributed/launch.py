"""Builds the Accelerator for the launched processes, and the state of a process that a run changes and restores."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import torch

from toolkit.base.errors import RunError
from toolkit.base.package import replaced
from toolkit.config.launcher import USE_DEEPSPEED, USE_FSDP
from toolkit.config.sections import Config
from toolkit.distributed.collectives import collective_seconds
from toolkit.distributed.strategies import strategy_type
from toolkit.system.limits import freed_memory_kept, threads_per_process

if TYPE_CHECKING:
    from accelerate import Accelerator


KNOWN_LAUNCHES = ("NO", "MULTI_CPU", "MULTI_GPU")
"""The values of `accelerate.DistributedType` that strategies support."""


def build_accelerator(cfg: Config) -> Accelerator:
    """Builds the run's only Accelerator; `toolkit.checks.machine` has already checked the device.

    Raises RunError if the launched processes do not form one group, or no strategy supports this kind of launch.
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


@contextmanager
def own_process_state() -> Iterator[None]:
    """Isolates a run's process-wide state: accelerate's state, the launcher's variables, precision, threads, memory."""
    launcher = {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE_")}
    try:
        with (
            own_accelerate_state(),
            float32_precision(None),
            fitting_threads(),
            flushed_denormals(),
            freed_memory_kept(),
        ):
            yield
    finally:
        for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
            del os.environ[name]
        os.environ.update(launcher)


@contextmanager
def own_accelerate_state() -> Iterator[None]:
    """Gives a run its own accelerate state, and restores the caller's afterwards.

    accelerate stores precision, plugins and accumulation once per process, in a dictionary that all instances of a
    state class share: a second run could not use another precision, and would change a caller's Accelerator. Here the
    classes get a new dictionary for the duration of the run; existing instances keep theirs. The process group is not
    included: under a launcher it can be created only once.
    """
    from accelerate.state import AcceleratorState, GradientState

    # accelerate can clear them, but not put them back.
    with replaced(AcceleratorState, "_shared_state", {}), replaced(GradientState, "_shared_state", {}):
        yield


@contextmanager
def float32_precision(tf32: bool | None) -> Iterator[None]:
    """Sets whether float32 products may use TensorFloat32 inside the block; None does not change it."""
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        if tf32 is not None:
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = tf32
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution


@contextmanager
def fitting_threads() -> Iterator[None]:
    """Lowers the number of torch's threads to what the process may use, unless `OMP_NUM_THREADS` says how many."""
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(before, threads_per_process(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Rounds results below the smallest normal number (1e-38 in float32) to 0 on the CPU.

    Adam's moments of rows that get no gradient any more, such as embeddings of rare tokens, shrink in every step until
    they reach such numbers, some 700 steps later, and stay there. CPUs compute with them many times more slowly.
    """
    denormal = torch.tensor([torch.finfo(torch.float32).tiny])
    before = float(denormal / 2) == 0.0
    torch.set_flush_denormal(True)  # of this thread, and of those that it starts
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restores the global random state of torch (all devices), NumPy and Python on exit."""
    python, array, tensor = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(array)
        torch.set_rng_state(tensor)
        if devices:
            torch.cuda.set_rng_state_all(devices)
