"""Splits the layers of a model over the processes of a tensor group, as its plan says, dropout included."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

from toolkit.base.errors import RunError
from toolkit.base.shards import is_split, local
from toolkit.distributed.placement import Delivery, layers_of
from toolkit.distributed.tensor import plans
from toolkit.distributed.tensor.plans import COLUMNS, FUSED_COLUMNS, ROWS
from toolkit.distributed.tensor.sequence import TOKENS, split_tokens
from toolkit.distributed.tensor.vocabulary import split_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class OwnDropout:
    """Gives each process of a tensor group its own random numbers inside split layers, while training.

    The seed is drawn from the common random numbers. These are then the same on all processes again, and activation
    checkpointing, which restores them, repeats the masks. Without dropout nothing is drawn.
    """

    def __init__(self, config: PreTrainedConfig, mesh: DeviceMesh) -> None:
        rates = [value for name, value in config.to_dict().items() if "dropout" in name or "pdrop" in name]
        self.needed = any(isinstance(rate, float) and rate > 0 for rate in rates)
        self.rank, self.device = mesh.get_local_rank(), mesh.device_type
        self.common: AbstractContextManager[None] | None = None

    def follow(self, module: nn.Module, style: str) -> None:
        """Watches a split layer if its outputs, or its inputs, differ between processes."""
        if self.needed and style in (COLUMNS, FUSED_COLUMNS):
            module.register_forward_pre_hook(self._begin)
        elif self.needed and style == ROWS:
            module.register_forward_pre_hook(self._end)

    def follow_layer(self, layer: nn.Module) -> None:
        """Watches a layer all of which differs between processes, as with sequence parallelism."""
        if self.needed:
            layer.register_forward_pre_hook(self._begin)
            layer.register_forward_hook(self._end, always_call=True)  # a repeated pass may end early

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        if module.training and self.common is None:
            seed = int(torch.randint(2**62, ()))
            devices = [] if self.device == "cpu" else [torch.accelerator.current_device_index()]
            self.common = torch.random.fork_rng(devices, device_type=self.device)
            self.common.__enter__()
            torch.manual_seed(seed + self.rank)

    def _end(self, module: nn.Module, inputs: Any, output: Any = None) -> None:
        if self.common is not None:
            self.common.__exit__(None, None, None)
            self.common = None


DIFFERENT = 0.01
"""Relative difference of the gradients' norms on two processes that rounding cannot explain."""


def split_layers(
    model: PreTrainedModel, mesh: DeviceMesh, deliver: Delivery, shards: int = 1, sequence: bool = False
) -> None:
    """Splits the layers of a model's plan, and a vocabulary, over the processes of a mesh, in place.

    `deliver` provides the weights of a layer, which the main process has, before it is split; each part is sharded over
    `shards` further processes (FSDP). With `sequence`, each process keeps its tokens only between split layers. Raises
    ConfigError if the plan does not fit the model.
    """
    plan, own_dropout = plans.plan_of(model.config), OwnDropout(model.config, mesh)
    assert plan is not None, "checked before the weights are loaded"
    found = plans.split_modules(model, mesh.size())
    for module, style in found.values():
        deliver(module.modules())
        frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        parallelize_module(module, mesh, _style(module, style, sequence))
        for name in frozen:
            module.get_parameter(name).requires_grad_(False)
        if not sequence:
            own_dropout.follow(module, style)
    if sequence:
        for layer in layers_of(model):
            own_dropout.follow_layer(layer)
        split_tokens(model, mesh, found)
    for name, module in model.base_model.named_modules():
        for pattern, attributes in plan.divided.items():
            if re.fullmatch(pattern, name):
                for attribute in attributes:
                    setattr(module, attribute, getattr(module, attribute) // mesh.size())
    split_vocabulary(model, mesh, deliver, shards)


def _style(module: nn.Module, style: str, sequence: bool) -> ParallelStyle:
    summed = TOKENS if sequence else Replicate()
    if not isinstance(module, nn.Linear | nn.Embedding) and style != plans.HEAD_NORM:
        # GPT-2's layers, which torch's styles do not know.
        return Conv1DRows(summed) if style == plans.ROWS else Conv1DColumns(3 if style == plans.FUSED_COLUMNS else 1)
    makers: dict[str, Callable[[], ParallelStyle]] = {
        plans.COLUMNS: ColwiseParallel,
        plans.ROWS: partial(RowwiseParallel, output_layouts=summed),
        plans.GATHERED_COLUMNS: partial(ColwiseParallel, output_layouts=Replicate()),
        plans.SCATTERED_ROWS: partial(RowwiseParallel, input_layouts=Replicate(), output_layouts=summed),
        # Which dimension holds the heads does not matter: each head is normalised by itself.
        plans.HEAD_NORM: partial(SequenceParallel, use_local_output=True),
    }
    return makers[style]()


class Conv1DColumns(ParallelStyle):
    """Splits the outputs of transformers' `Conv1D`, whose weight is transposed; it may hold `parts` equal matrices."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        columns = _StridedShard(1, split_factor=self.parts) if self.parts > 1 else Shard(1)
        _distribute(module, device_mesh, weight=columns, bias=Replicate())
        module.forward = partial(self._forward, module, device_mesh)
        return module

    def _forward(self, module: Any, mesh: DeviceMesh, inputs: Tensor) -> Tensor:
        """Returns this process's outputs `[..., width]` of complete inputs `[..., width]`."""
        # Each process computes the part of the gradient that comes through its outputs.
        placed = isinstance(inputs, DTensor)
        complete: Any = inputs if placed else DTensor.from_local(inputs, mesh, [Replicate()], run_check=False)
        biases = module.bias.to_local(grad_placements=[Partial()]).view(self.parts, mesh.size(), -1)
        own = complete.to_local(grad_placements=[Partial()])
        return own @ module.weight.to_local() + biases[:, mesh.get_local_rank()].flatten()


class Conv1DRows(ParallelStyle):
    """Splits the inputs of transformers' `Conv1D`, a linear layer with a transposed weight.

    Each process gets the sum of outputs, or its part of them, as `outputs` says.
    """

    def __init__(self, outputs: Placement) -> None:
        super().__init__()
        self.outputs = outputs

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _distribute(module, device_mesh, weight=Shard(0), bias=Replicate())
        module.forward = partial(self._forward, module, device_mesh)
        return module

    def _forward(self, module: Any, mesh: DeviceMesh, inputs: Tensor) -> Tensor:
        """Returns outputs `[..., width]` of this process's inputs `[..., width]`."""
        own = DTensor.from_local(inputs @ module.weight.to_local(), mesh, [Partial()], run_check=False)
        of_bias = [Replicate()] if self.outputs.is_replicate() else [Partial()]
        summed = own.redistribute(placements=[self.outputs]).to_local()
        return summed + module.bias.to_local(grad_placements=of_bias)


def _distribute(module: nn.Module, mesh: DeviceMesh, **placements: Any) -> None:
    for name, placement in placements.items():
        parameter = module.get_parameter(name)
        split = distribute_tensor(parameter, mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(split, parameter.requires_grad))


@torch.no_grad()
def complete_gradients(parameters: Iterable[Tensor]) -> None:
    """Sums gradients of which each process has computed a part, in place."""
    for parameter in parameters:
        gradient: Any = parameter.grad
        if is_split(parameter) and gradient is not None and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
            parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]


@torch.no_grad()
def check_equal_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Checks that processes of a tensor group have computed the same gradients of parameters that are not split.

    Raises RunError on every process, if a gradient differs by more than rounding.
    """
    norms = {
        name: torch.linalg.vector_norm(local(parameter.grad)).double()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not _splits(parameter, mesh)
    }
    if not norms:
        return
    own = torch.stack(list(norms.values()))
    least, most = own.clone(), own.clone()
    torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, mesh.get_group())
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX, mesh.get_group())
    wrong = [name for name, differs in zip(norms, (most - least > DIFFERENT * most).tolist(), strict=True) if differs]
    if wrong:
        raise RunError(
            f"parallel.tensor: the processes computed different gradients of {wrong[0]} and {len(wrong) - 1} other "
            "parameters, so the plan for splitting this model is wrong; set parallel.fsdp instead, and report this"
        )


def _splits(parameter: Tensor, mesh: DeviceMesh) -> bool:
    """Returns whether a parameter is split over the dimension of a mesh."""
    if not is_split(parameter):
        return False
    of, dimensions = cast(Any, parameter), mesh.mesh_dim_names or ()
    places = zip(of.device_mesh.mesh_dim_names, of.placements, strict=True)
    return any(name in dimensions and not place.is_replicate() for name, place in places)
