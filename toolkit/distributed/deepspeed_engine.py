"""DeepSpeed's ZeRO engine: its configuration, its gradient norm, and the state that it splits over processes."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from toolkit.config.sections import Config

LARGEST_BUCKET = 50_000_000
"""Maximum number of elements that are exchanged at once; DeepSpeed allocates a buffer of this size."""


def start_engine(model: nn.Module, optimizer: Optimizer, cfg: Config, processes: int) -> Any:
    """Returns a `deepspeed.DeepSpeedEngine`, which splits the model or its optimizer's state over all processes.

    Args:
        model: the complete model; its parameters are replaced.
        optimizer: an optimizer of its parameters; DeepSpeed replaces them by flat parts of this process.
        cfg: the run's settings.
        processes: number of processes.
    """
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise it warns that it found no GPU
    import deepspeed

    # Otherwise the first run on CPUs would compile a kernel for shared memory, which ZeRO does not use.
    import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.utils.logger.setLevel(logging.ERROR)
    # It still uses the former names of collectives.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)
    elements = sum(parameter.numel() for parameter in model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=engine_config(cfg, processes, elements))
    return engine


def engine_config(cfg: Config, processes: int, elements: int) -> dict[str, Any]:
    """Returns DeepSpeed's configuration of a run.

    Args:
        cfg: the run's settings.
        processes: number of processes.
        elements: number of elements of the model's parameters.
    """
    train, stage = cfg.train, cfg.parallel.zero_stage
    accumulation = train.gradient_accumulation_steps or 1
    bucket = min(LARGEST_BUCKET, elements + elements % 2)  # DeepSpeed takes only even numbers
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if stage == 3:
        # By default each process keeps small parameters, and whatever it will need again soon, complete.
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}
        zero["stage3_prefetch_bucket_size"] = bucket
    if cfg.parallel.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": train.per_device_train_batch_size,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": train.per_device_train_batch_size * accumulation * processes,
        "gradient_clipping": train.max_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
    }


def gradient_norm(engine: Any) -> float:
    """Returns the norm of the exchanged gradient, as DeepSpeed's step will compute it; infinite if it is not finite."""
    zero = engine.optimizer
    norms = zero._get_norm_groups() if engine.zero_optimization_stage() == 3 else [zero.scaled_global_norm()]
    values = [float(norm) for norm in norms]
    # DeepSpeed marks the norm of a group that is not finite as negative.
    return math.hypot(*values) if all(value >= 0 for value in values) else math.inf


def split_parameters(engine: Any) -> Iterator[tuple[Tensor, list[nn.Parameter]]]:
    """Yields the flat tensors that this process updates, each with the model's parameters that are split into it."""
    zero = engine.optimizer
    if engine.zero_optimization_stage() == 3:
        yield from zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups, strict=True)
    else:
        yield from zip(zero.single_partition_of_fp32_groups, zero.bit16_groups, strict=True)


def complete_parameters(parameters: Iterable[nn.Parameter]) -> Iterator[nn.Parameter]:
    """Yields parameters, each complete until the next one is requested; every process must request all."""
    import deepspeed

    for parameter in parameters:
        with deepspeed.zero.GatheredParameters([parameter]):
            yield parameter


def parameter_states(engine: Any) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
    """Yields each trained parameter with its complete state; every process must request all of them."""
    from deepspeed.utils import safe_get_full_optimizer_state

    _link_states(engine)
    for flat, parameters in split_parameters(engine):
        state = engine.optimizer.optimizer.state.get(flat, {})
        split = [key for key, value in state.items() if _is_split(key, value)]  # in the same order on every process
        for parameter in parameters if state else ():
            complete = {key: safe_get_full_optimizer_state(parameter, key) for key in split}
            yield parameter, {key: complete.get(key, value) for key, value in state.items()}


@torch.no_grad()
def set_parameters(values: Mapping[nn.Parameter, Tensor]) -> None:
    """Replaces parameters by complete values, which must be the same on every process; each must call it."""
    import deepspeed
    from deepspeed.utils import safe_set_full_fp32_param

    for parameter, value in values.items():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.copy_(value)
        if parameter.requires_grad:  # the copy that is updated
            safe_set_full_fp32_param(parameter, value.to(parameter.device))


def set_states(engine: Any, states: Mapping[nn.Parameter, Mapping[str, Any]]) -> None:
    """Replaces the optimizer's state; nothing is sent.

    Args:
        engine: the engine.
        states: the complete state of each trained parameter. Parameters that are split together have the same number
            of steps.
    """
    from deepspeed.utils import safe_set_full_optimizer_state

    zero = engine.optimizer
    for flat, parameters in split_parameters(engine):
        zero.optimizer.state[flat] = {
            key: torch.zeros_like(flat, requires_grad=False) if _is_split(key, value) else value
            for key, value in states[parameters[0]].items()
        }
    _link_states(engine)
    for parameter, state in states.items():
        for key, value in state.items():
            if _is_split(key, value):
                safe_set_full_optimizer_state(parameter, value.to(parameter.device), key)


def _link_states(engine: Any) -> None:
    """Lets the accessors of stages 1 and 2 see all states; DeepSpeed looks once, after the first group's first step."""
    if engine.zero_optimization_stage() < 3:
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()


def _is_split(key: str, value: Any) -> bool:
    return isinstance(value, Tensor) and key != "step"
