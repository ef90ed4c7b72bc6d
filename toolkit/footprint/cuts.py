"""Measures how the weights and messages of a model divide if it is split over processes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from toolkit.base.errors import ConfigError
from toolkit.distributed.pipeline.partition import ARCHITECTURES, parts_of
from toolkit.distributed.tensor import plans
from toolkit.distributed.tensor.vocabulary import vocabulary_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PER_TOKEN = 4
"""Numbers per token that the cross entropy of split logits sums."""
_BY_INPUTS = (plans.ROWS, plans.SCATTERED_ROWS)


class Cuts:
    """Watches a model's passes for the fields of `toolkit.footprint.simulate.Footprint` about splits (`figures`)."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.figures: dict[str, Any] = {
            "largest": max((_bytes([parameter]) for parameter in model.parameters()), default=0),
            "single_rows": _bytes(p for p in model.parameters() if p.dim() > 0 and p.shape[0] == 1),
            "tensor_parameters": 0, "tensor_summed": 0, "vocabulary_summed": 0, "linear": 0, "routed": 0,
        }  # fmt: skip
        self._inputs: set[int] = set()
        for module in model.modules():
            if isinstance(module, nn.Linear | Conv1D):
                module.register_forward_hook(self._count_linear)
            elif hasattr(module, "_is_expert_parallel"):
                self.figures["experts"] = self.figures.get("experts", 0) + _bytes(module.parameters())
                module.register_forward_hook(self._count_routed)
        if plans.plan_of(model.config):
            with suppress(ConfigError):  # a plan that does not fit the model: a run would reject it
                for module, style in plans.split_modules(model, 1).values():
                    self._watch(module, style)
            if modules := vocabulary_modules(model):
                self._watch_vocabulary(*modules)
        with suppress(ValueError):  # layers that are not in one stack
            if model.config.model_type in ARCHITECTURES:
                self._divide(model)

    def _divide(self, model: nn.Module) -> None:
        parts = parts_of(model)
        front, back = (
            _bytes(parameter for module in modules for parameter in module.parameters(recurse=False))
            for modules in (parts.before, parts.after)
        )
        self.figures |= {
            "stage_layers": [_bytes(layer.parameters()) for layer in parts.stack],
            "stage_costs": parts.costs(), "stage_front": front, "stage_back": back,
        }  # fmt: skip

    def _count_linear(self, module: nn.Module, arguments: Any, output: Tensor) -> None:
        inputs = arguments[0].untyped_storage()._cdata
        self._sum(output, "linear")
        if inputs not in self._inputs:  # several layers may have the same
            self._inputs.add(inputs)
            self._sum(arguments[0], "linear")

    def _count_routed(self, module: nn.Module, arguments: Any, output: Tensor) -> None:
        for _ in range(arguments[1].shape[-1]):  # experts of a token
            self._sum(output, "routed")

    def _watch(self, module: nn.Module, style: str) -> None:
        weights = list(module.parameters(recurse=False))
        # Where inputs are split, the bias is complete, and in the layers of GPT-2 it always is.
        whole = style in _BY_INPUTS or not isinstance(module, nn.Linear | nn.Embedding)
        self.figures["tensor_parameters"] += _bytes(weights[:1] if whole else weights)
        if style in _BY_INPUTS:
            module.register_forward_hook(lambda module, arguments, output: self._sum(output))
        elif style != plans.HEAD_NORM:
            module.register_forward_pre_hook(lambda module, arguments: self._sum_gradient(arguments[0]))

    def _watch_vocabulary(self, head: nn.Module, *tables: nn.Module) -> None:
        front = [parameter for table in tables for parameter in table.parameters()]
        self.figures |= {
            "vocabulary_front": _bytes(front), "vocabulary_back": _bytes(head.parameters()),
            "vocabulary_parameters": _bytes([*front, *head.parameters()]),
            "vocabulary_rows": [len(cast(Tensor, module.weight)) for module in (head, *tables)],
        }  # fmt: skip
        for table in tables:
            table.register_forward_hook(lambda module, arguments, output: self._sum(output, "vocabulary_summed"))
        head.register_forward_pre_hook(lambda module, inputs: self._sum_gradient(inputs[0], "vocabulary_summed"))
        head.register_forward_hook(self._sum_losses)

    def _sum_losses(self, head: nn.Module, inputs: Any, logits: Any) -> None:  # which may be `chunked.Deferred`
        self.figures["vocabulary_summed"] += _PER_TOKEN * logits.shape[:-1].numel() * logits.dtype.itemsize

    def _sum(self, tensor: Tensor, figure: str = "tensor_summed") -> None:
        self.figures[figure] += tensor.numel() * tensor.element_size()

    def _sum_gradient(self, inputs: Tensor, figure: str = "tensor_summed") -> None:
        if inputs.requires_grad:  # the hook is not called for a repeated forward pass
            inputs.register_hook(lambda gradient: self._sum(gradient, figure))


def _bytes(parameters: Iterable[Tensor]) -> int:
    return sum({id(p): p.numel() * p.element_size() for p in parameters}.values())
