"""Sequence parallelism: between layers that are split, each process of a tensor group keeps some of the tokens.

Norms, dropout and residuals treat each token by itself, so they need not be repeated on every process. In front of a
pair of split layers the tokens are gathered, and the sum behind it leaves each process its own: as many bytes as the
sum of complete outputs (Korthikanti et al. 2022, arXiv 2205.05198).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from toolkit.base.shards import is_split
from toolkit.distributed.placement import layers_of, stacks_of
from toolkit.distributed.tensor.plans import COLUMNS, FUSED_COLUMNS, GATHERED_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedConfig

TOKENS = Shard(1)
"""How hidden states `[batch, tokens, width]` are split: the first processes have a token more than the last ones."""
_CONVOLUTIONS = "convolutions among the layers, which mix tokens"
UNFIT = {
    "wav2vec2": _CONVOLUTIONS,
    "hubert": _CONVOLUTIONS,
    "olmo2": "norms of complete queries and keys, whose gradients no process has a part of",
}
"""Architectures with a tensor plan whose layers do not compute on each token by itself around what is split."""
_DROPS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
"""Fields with the probability that a layer is left out in training."""


class Tokens:
    """Splits and gathers the hidden states of one stack of layers."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.length = 0  # number of tokens of the batch in hand

    def divide(self, hidden: Tensor) -> Tensor:
        """Returns this process's tokens of complete hidden states; the gradient of these is complete, too."""
        self.length = hidden.shape[1]
        complete = DTensor.from_local(hidden, self.mesh, [Replicate()], run_check=False)
        return complete.redistribute(placements=[TOKENS]).to_local()

    def complete(self, own: Tensor) -> DTensor:
        """Returns hidden states gathered from all processes, which may each have a part of their gradient."""
        shape = torch.Size((len(own), self.length, *own.shape[2:]))
        stride = torch.empty(shape, device="meta").stride()
        split = DTensor.from_local(own, self.mesh, [TOKENS], run_check=False, shape=shape, stride=stride)
        return split.redistribute(placements=[Replicate()])

    def leave(self, layer: nn.Module, arguments: Any, output: Any) -> Any:
        """Gathers the output of the last layer, of which it may be the first of several values."""
        if isinstance(output, tuple):
            return (self.complete(output[0]).to_local(), *output[1:])
        return self.complete(output).to_local()


def split_tokens(model: Any, mesh: DeviceMesh, found: Mapping[str, tuple[nn.Module, str]]) -> None:
    """Makes each stack of a model's layers compute on this process's tokens outside of what `split_modules` found."""
    layers, modules = {*layers_of(model)}, dict(model.base_model.named_modules())
    # What begins with split layers: attention and MLP, or the layer where a block has several of them.
    readers: set[nn.Module] = set()
    for name, (module, style) in found.items():
        if style in (COLUMNS, FUSED_COLUMNS, GATHERED_COLUMNS):
            parent = modules[name.rpartition(".")[0]]
            readers.add(module if parent in layers else parent)
    for stack in stacks_of(model):
        tokens = Tokens(mesh)
        # Before the hook of a segment that is recomputed, which records what its first layer computes on.
        stack[0].register_forward_pre_hook(_on_hidden(tokens.divide), prepend=True, with_kwargs=True)
        stack[-1].register_forward_hook(tokens.leave)
        for part in (part for layer in stack for part in layer.modules() if part in readers):
            # Before the hook of a split layer, which would take the tokens for complete hidden states.
            part.register_forward_pre_hook(_on_hidden(tokens.complete), prepend=True, with_kwargs=True)


def _on_hidden(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """Returns a hook that changes a module's hidden states, its first argument."""

    def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        if arguments:
            return (change(arguments[0]), *arguments[1:]), named
        return arguments, {**named, "hidden_states": change(named["hidden_states"])}

    return hook


def of_tokens(model: nn.Module) -> Iterable[Tensor]:
    """Yields the parameters of which each process computes the gradient of its tokens only (norms)."""
    for layer in layers_of(model):
        for parameter in layer.parameters():
            mesh = cast(Any, parameter).device_mesh if is_split(parameter) else None
            if parameter.requires_grad and (mesh is None or "tensor" not in mesh.mesh_dim_names):
                yield parameter


def sequence_problems(config: PreTrainedConfig) -> list[str]:
    """Returns why the tokens between a model's split layers cannot be split."""
    if config.model_type in UNFIT:
        return [f"parallel.sequence: received true, but {config.model_type} has {UNFIT[config.model_type]}; remove it"]
    drops = [name for name in _DROPS if getattr(config, name, 0)]
    return [
        "parallel.sequence: received true, but a layer that is left out would not split or gather the tokens; set "
        f"model.config_overrides.{name} to 0, or remove parallel.sequence"
        for name in drops
    ]
