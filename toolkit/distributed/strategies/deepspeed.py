"""ZeRO by DeepSpeed: its engine splits optimizer state, gradients and parameters (Rajbhandari et al. 2020, 1910.02054).

The toolkit drives the engine itself, one window after another: accelerate's integration would ignore it on CPUs,
divide losses by the number of micro-batches and update before the gradient's norm is checked.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from toolkit.api.batch import Batch
from toolkit.api.strategy import Collect, Replica
from toolkit.base.errors import ConfigError
from toolkit.distributed.exchange import Wire
from toolkit.distributed.placement import Delivery, Skeleton, generating_together, trained_buffers
from toolkit.distributed.strategies.replicas import Replicas
from toolkit.distributed.window import accumulate
from toolkit.optim.state import optimizer_state, unwrapped

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

    from toolkit.config.sections import Config


LARGEST_BUCKET = 50_000_000
"""Maximum number of elements that are exchanged at once; DeepSpeed allocates a buffer of this size."""


def start_engine(model: nn.Module, optimizer: Optimizer, cfg: Config, processes: int) -> Any:
    """Returns a `deepspeed.DeepSpeedEngine`, which splits the model or its optimizer's state over all processes."""
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
    """Returns DeepSpeed's configuration of a run."""
    train, stage = cfg.train, cfg.parallel.zero_stage
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
        "train_micro_batch_size_per_gpu": train.micro_batch,
        "gradient_accumulation_steps": train.accumulation,
        "train_batch_size": train.micro_batch * train.accumulation * processes,
        "gradient_clipping": train.max_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
    }


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
    """Replaces the optimizer's state by the complete state of each trained parameter; nothing is sent."""
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


class DeepSpeed(Replicas):
    """Synchronous training with DeepSpeed's ZeRO stages 1, 2 and 3."""

    name = "sync"
    hidden_exchange = (
        "DeepSpeed exchanges inside the backward pass and the update, in stage 3 also inside the forward pass, where "
        "that time counts."
    )
    engine: Any = None  # before there is an optimizer, nothing is split

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the model, which the engine splits once there is an optimizer.

        Raises ConfigError if parameters are not float32.
        """
        if others := {str(p.dtype) for p in model.parameters() if p.dtype != torch.float32}:
            raise ConfigError([
                f"parallel.backend: received 'deepspeed', which updates parameters in float32, but this model has "
                f"{', '.join(sorted(others))}; set parallel.backend to torch"
            ])  # fmt: skip
        if self.mesh.is_split:  # the others built it without weights
            Delivery(self.accelerator.device)(model.modules())
        self.skeleton = Skeleton(model)
        return super().prepare(model)

    def prepare_optimizer(self, optimizer: Optimizer) -> None:
        """Splits the model and a copy of the optimizer; each step clips the gradient and updates the split one."""
        self.split = copy.copy(optimizer)
        self.split.state = defaultdict(dict)
        self.split.param_groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
        self.engine = start_engine(self.own, self.split, self.cfg, self.mesh.size)
        self.wire = Wire()

        def step(optimizer: Optimizer, closure: Any = None) -> None:
            for own, given in zip(self.split.param_groups, optimizer.param_groups, strict=True):
                own.update({key: value for key, value in given.items() if key != "params"})
            self.engine.step()

        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    def bind(self, replica: Replica) -> None:
        """Takes the prepared model and optimizer, whose state is that of the split one from now on."""
        super().bind(replica)
        unwrapped(replica.optimizer).state = self.split.state

    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes the gradient of a window; returns this rank's summed loss, a scalar."""
        backward = partial(self.engine.backward, scale_wrt_gas=False)
        total = accumulate(self, self.engine, window, scale, self._exchange, backward)
        self.wire.copy_main(trained_buffers(self.own))
        return total

    @contextmanager
    def _exchange(self, last: bool) -> Iterator[None]:
        self.engine.set_gradient_accumulation_boundary(last)
        yield

    def clip(self, max_norm: float) -> float:
        """Returns the gradient's norm, or infinity; DeepSpeed clips in its step, to `train.max_grad_norm`."""
        zero, stage = self.engine.optimizer, self.engine.zero_optimization_stage()
        norms = [*map(float, zero._get_norm_groups() if stage == 3 else [zero.scaled_global_norm()])]
        # DeepSpeed marks the norm of a group that is not finite as negative.
        return math.hypot(*norms) if all(norm >= 0 for norm in norms) else math.inf

    @contextmanager
    def full_model(self) -> Iterator[nn.Module]:
        """Yields the model; in stage 3 every rank must call it equally often, and `generate` waits for all ranks."""
        splits = self.cfg.parallel.zero_stage == 3 and self.engine is not None
        with generating_together(self.model) if splits else nullcontext():
            yield self.model
        if splits:
            self.engine.empty_partition_cache()  # parameters that a forward pass without a backward pass has gathered

    def own_parameters(self) -> Mapping[str, Tensor]:
        """Returns complete copies of this process's share of the parameters, and all buffers."""
        return self._complete(lambda number: number % self.mesh.size == self.mesh.rank)

    def complete_model(self, collect: Collect) -> PreTrainedModel:
        """Returns a complete copy of the model on the main process, and ends the engine."""
        tensors = collect(self.own_parameters())
        self.engine.destroy()
        return self.skeleton.filled(tensors) if self.mesh.rank == 0 else self.own

    def _complete(self, keeps: Callable[[int], bool]) -> dict[str, Tensor]:
        """Returns complete copies of the parameters whose numbers this process `keeps`, on the CPU, and the buffers."""
        kept: dict[int, Tensor] = {}
        for number, parameter in enumerate(complete_parameters(self.own.parameters())):
            if keeps(number):
                values = parameter.detach().to("cpu", copy=True)
                kept[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
        tensors = self.own.state_dict(keep_vars=True)
        return {
            name: kept.get(id(tensor), tensor)
            for name, tensor in tensors.items()
            if id(tensor) in kept or not isinstance(tensor, nn.Parameter)
        }

    def own_optimizer(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Returns complete copies of this process's share of the optimizer's state, and its plain values."""
        model = self.skeleton.model
        optimizer, twins = self._on(model)
        for number, (parameter, state) in enumerate(parameter_states(self.engine)):
            owner = number % self.mesh.size == self.mesh.rank
            optimizer.state[twins[parameter]] = {
                key: value.to("cpu" if owner else "meta") if isinstance(value, Tensor) else value
                for key, value in state.items()
            }
        tensors, scalars = optimizer_state(optimizer, model)
        return {key: tensor for key, tensor in tensors.items() if not tensor.is_meta}, scalars

    @contextmanager
    def loading(self, model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[nn.Module, Optimizer]]:
        """Yields a complete model and its optimizer, on the CPU, and splits what was loaded into them."""
        empty = {name: torch.empty(p.shape, dtype=p.dtype) for name, p in self.skeleton.model.named_parameters()}
        complete = Skeleton(self.skeleton.model).filled(empty)
        loaded, twins = self._on(complete)
        yield complete, loaded
        set_parameters(twins)
        own, saved = dict(self.own.named_buffers()), dict(complete.named_buffers())
        for name, buffer in own.items():
            buffer.copy_(saved[name])
        if loaded.state:
            set_states(self.engine, {p: loaded.state[twin] for p, twin in twins.items() if twin in loaded.state})
            for own_group, group in zip(unwrapped(optimizer).param_groups, loaded.param_groups, strict=True):
                own_group.update({key: value for key, value in group.items() if key != "params"})

    def _on(self, model: nn.Module) -> tuple[Optimizer, dict[nn.Parameter, nn.Parameter]]:
        """Returns an optimizer without state for a copy of the model, and the copy of each parameter."""
        copies = dict(model.named_parameters())
        twins = {parameter: copies[name] for name, parameter in self.own.named_parameters()}
        outer = unwrapped(self.replica.optimizer)
        optimizer = copy.copy(outer)
        optimizer.state = defaultdict(dict)
        optimizer.param_groups = [
            {**group, "params": [twins[parameter] for parameter in group["params"]]} for group in outer.param_groups
        ]
        return optimizer, twins
