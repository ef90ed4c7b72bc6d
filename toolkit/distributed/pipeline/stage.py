"""The part of a model that one process of a pipeline holds, split off without rewriting the model.

The model's own forward pass runs on every process. A gate at each layer decides: in front of a process's layers it
replaces the hidden state by the one received from the previous stage, and behind them it ends the pass. Modules keep
their names. Layers of other processes are replaced by empty modules; the parameters around the stack, whose modules
other processes may run to make masks, are replaced by a single zero that is only viewed in their shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from toolkit.base.package import replaced
from toolkit.distributed.pipeline.partition import Parts, parts_of


class _Cut(Exception):  # noqa: N818 - ends a forward pass, never shown as an error
    """Carries the hidden state behind a stage's last layer out of the model's forward pass."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


def held_modules(model: nn.Module, ranges: Sequence[range], own: Collection[int]) -> set[nn.Module]:
    """Returns the modules whose own parameters a process needs; arguments as for `Stage`."""
    parts = parts_of(model)
    held = {module for stage in own for index in ranges[stage] for module in parts.stack[index].modules()}
    if 0 in own:
        held.update(parts.before)
    if len(ranges) - 1 in own:
        held.update(parts.after)
    return held


class Stage:
    """The layers of one process, in one or several chunks; its first and last stage also hold the modules around them.

    The complete `model` has the weights of `held_modules`; those of other processes are removed. Of the stages,
    `ranges` has the layers of all, in order, and `own` names those of this process.
    """

    def __init__(self, model: nn.Module, ranges: Sequence[range], own: Collection[int], device: torch.device) -> None:
        self.model, self.ranges, self.own = model, ranges, own
        self._layers = ranges[0]
        self._receive: Callable[[Tensor], Tensor] = _nothing
        parts = parts_of(model)
        first, last = 0 in own, len(ranges) - 1 in own
        tied = _shared(parts) if first or last else []
        self._tied = [name for name, parameter in model.named_parameters() if any(parameter is each for each in tied)]
        if not first:
            _empty(parts.before, device, keep=tied if last else ())
            for module in parts.before:  # tied embeddings are only held, not looked up
                if isinstance(module, nn.Embedding):
                    module.forward = partial(_no_embeddings, module)  # type: ignore[method-assign]
        if not last:
            _empty(parts.after, device)
        held = {layer for stage in own for layer in ranges[stage]}
        for index, layer in enumerate(parts.stack):
            kept = layer if index in held else nn.Identity()
            parts.stack[index] = kept
            # That of its class when it is called: FSDP2 gives a layer another one, whose `forward` recomputes it.
            kept.forward = self._gate(index, vars(kept).get("forward") or partial(_of_class, kept))
        # Inside the model's own hooks: FSDP2's must see the end of each pass.
        model.forward = partial(self._until_cut, model.forward)

    @property
    def tied(self) -> list[nn.Parameter]:
        """Parameters that the first and the last process both hold (tied embeddings)."""
        return [self.model.get_parameter(name) for name in self._tied]

    def forward(self, stage: int, inputs: Mapping[str, Any], receive: Callable[[Tensor], Tensor]) -> Any:
        """Runs one stage of the model on its inputs, which are the same for every stage.

        Except for the first, `receive` returns the output of the stage before, given a tensor of its shape and type.

        Returns:
            The hidden state behind the stage's layers; the model's output for the last stage.
        """
        self._layers = self.ranges[stage]
        with replaced(self, "_receive", receive):
            return self.model(**inputs)

    def _until_cut(self, forward: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return forward(*arguments, **named)
        except _Cut as cut:
            return cut.hidden

    def _gate(self, index: int, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def gate(hidden_states: Tensor, *arguments: Any, **named: Any) -> Tensor:
            if index >= self._layers.stop:
                raise _Cut(hidden_states)
            if index in self._layers:
                return forward(hidden_states, *arguments, **named)
            return self._receive(hidden_states) if index == self._layers.start - 1 else hidden_states

        return gate


def _of_class(layer: nn.Module, *arguments: Any, **named: Any) -> Tensor:
    return cast(Tensor, type(layer).forward(layer, *arguments, **named))


def _no_embeddings(module: nn.Embedding, ids: Tensor) -> Tensor:
    return torch.zeros((), dtype=module.weight.dtype, device=ids.device).expand(*ids.shape, module.embedding_dim)


def _nothing(hidden: Tensor) -> Tensor:
    raise AssertionError("the model is run outside its pipeline")


def _shared(parts: Parts) -> list[nn.Parameter]:
    """Returns parameters of modules in front of the stack that modules behind it share, each once."""
    behind = {id(parameter) for module in parts.after for parameter in module.parameters(recurse=False)}
    front = {id(p): p for module in parts.before for p in module.parameters(recurse=False)}
    return [parameter for key, parameter in front.items() if key in behind]


def _empty(modules: Iterable[nn.Module], device: torch.device, keep: Iterable[nn.Parameter] = ()) -> None:
    """Replaces the modules' own parameters by constants that take no memory."""
    kept = {id(parameter) for parameter in keep}
    for module in modules:
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and id(parameter) not in kept:
                del module._parameters[name]
                setattr(module, name, torch.zeros((), dtype=parameter.dtype, device=device).expand(parameter.shape))


class WeightGradients:
    """The gradients of the matrices of a model's linear layers that are still to be computed.

    Until then, the inputs of the layers and the gradients of their outputs are kept.
    """

    def __init__(self, model: nn.Module) -> None:
        self._new: list[Callable[[], None]] = []
        self._kept: dict[tuple[int, int], list[Callable[[], None]]] = {}
        for module in model.modules():
            if type(module) in (nn.Linear, Conv1D) and "forward" not in vars(module):
                module.forward = partial(_forward, module, self._new)

    def keep(self, stage: int, number: int) -> None:
        """Keeps the inputs and gradients of the last backward pass, of a stage and micro-batch, for `compute`."""
        self._kept[stage, number] = [*self._new]
        self._new.clear()

    def compute(self, stage: int, number: int) -> None:
        """Adds the gradients of a micro-batch's weights, as a backward pass would."""
        kept = self._kept.pop((stage, number))
        with torch.no_grad():
            while kept:  # each is freed when it is added
                kept.pop()()


def _forward(module: nn.Module, left: list[Callable[[], None]], inputs: Tensor) -> Tensor:
    return cast(Tensor, _Linear.apply(inputs, module.weight, module.bias, module, left))


class _Linear(torch.autograd.Function):
    """A linear layer that leaves the gradient of its weight for later; arithmetic as in PyTorch's own."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Any, module: nn.Module, left: list[Any]) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.module, ctx.left = module, left
        return type(module).forward(module, inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (inputs,) = gradients, ctx.saved_tensors
        of_inputs, of_weight, of_bias, *_ = ctx.needs_input_grad
        if of_weight:
            ctx.left.append(partial(_add, ctx.module, inputs, gradient))
        matrix = ctx.module.weight.to(gradient.dtype)
        return (
            gradient @ (matrix.t() if isinstance(ctx.module, Conv1D) else matrix) if of_inputs else None,
            None,
            _flat(gradient).sum(0) if of_bias else None,
            None,
            None,
        )


def _add(module: nn.Linear | Conv1D, inputs: Tensor, gradient: Tensor) -> None:
    # In mixed precision, gradients have the type of the layer's output, and so has the product.
    rows, columns = _flat(gradient), _flat(inputs).to(gradient.dtype)
    if isinstance(module, Conv1D):  # its weight is [inputs, outputs]
        rows, columns = columns, rows
    weight = module.weight
    own = (rows.t() @ columns).to(weight.dtype)
    weight.grad = own if weight.grad is None else weight.grad.add_(own)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])
