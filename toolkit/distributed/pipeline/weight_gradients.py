"""Backward passes in two parts: the gradient of a stage's input first, the gradients of its weights later.

The previous stage waits only for the first part, so a schedule can compute the second while a process would wait
(Qi et al. 2023, arXiv 2401.10241). The matrices of linear layers are computed later; biases, norms and embeddings, and
matrices that are used in another way, cost little and have their gradients in the first part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


class WeightGradients:
    """The gradients of a stage's matrices that are still to be computed.

    Until then, what their layers received in the forward and in the backward pass is kept.

    Args:
        model: the model whose linear layers leave the gradient of their weight to this object.
    """

    def __init__(self, model: nn.Module) -> None:
        self._new: list[Callable[[], None]] = []
        self._kept: dict[tuple[int, int], list[Callable[[], None]]] = {}
        for module in model.modules():
            if type(module) in (nn.Linear, Conv1D) and "forward" not in vars(module):
                module.forward = partial(_forward, module, self._new)

    def keep(self, stage: int, number: int) -> None:
        """Keeps what the last backward pass has left for `compute`.

        Args:
            stage: the stage of the model.
            number: position of the micro-batch.
        """
        self._kept[stage, number] = [*self._new]
        self._new.clear()

    def compute(self, stage: int, number: int) -> None:
        """Adds the gradients that one micro-batch has left, as a backward pass would; arguments as for `keep`."""
        with torch.no_grad():
            for add in self._kept.pop((stage, number)):
                add()


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
