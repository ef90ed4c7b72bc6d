"""A callback that shows the model as a graph in TensorBoard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from toolkit.api.batch import Batch, to_device
from toolkit.api.exhibits import Node
from toolkit.api.training import Callback
from toolkit.distributed.collectives import on_main
from toolkit.distributed.window import kept_buffers, seed_all
from toolkit.engine.callbacks.gradients import first_row


class Graph(Callback):
    """Sends the operations of the model's forward pass in training, without those inside compiled or fused ones."""

    def before_update(self) -> None:
        """Repeats the pass of a row of the first step, without a gradient."""
        if self.training.state.step > 0:
            return
        run = self.training.run
        row = to_device(first_row(self.training), run.accelerator.device)
        seed_all(run.cfg.seed, 0, run.mesh.data_rank)
        # `full_model` splits the model again, which no backward pass does here.
        with run.strategy.full_model() as model, torch.no_grad(), kept_buffers(model), Operations(model, row) as found:
            run.task.forward(model, row)
        on_main(run.accelerator, run.trackers.graph, found.nodes)


class Operations(TorchFunctionMode):
    """Records the operations that a model calls, in their modules, and which results they use."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self._made: dict[int, tuple[str, Tensor]] = {}  # the tensors are kept, as the numbers of lost ones return
        self._modules, self._counts = [""], Counter[str]()
        modules = [*model.named_modules()]
        self._hooks = [each.register_forward_pre_hook(partial(self._enter, name)) for name, each in modules]
        self._hooks += [each.register_forward_hook(self._leave) for _, each in modules]
        self._add("inputs", "Input", [], (each for each in batch["inputs"].items() if isinstance(each[1], Tensor)))

    def _enter(self, name: str, module: nn.Module, *_: Any) -> None:
        """Looks at the module's own tensors now, since FSDP2 has just put complete ones in their places."""
        self._modules.append(name)
        for own, tensor in chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
            if id(tensor) not in self._made:
                kind = "Parameter" if isinstance(tensor, nn.Parameter) else "Buffer"
                self._add(name.replace(".", "/"), kind, [], [(own, tensor)])

    def _leave(self, *_: Any) -> None:
        self._modules.pop()

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._made.clear()
        super().__exit__(*error)

    def _add(self, place: str, kind: str, used: Sequence[str], made: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in made:
            full = "/".join([*filter(None, [place]), *name.split(".")])
            self._counts[full] += 1
            full += f"_{self._counts[full]}" if self._counts[full] > 1 else ""
            self._made[id(tensor)] = full, tensor
            self.nodes.append(Node(full, kind, used, tuple(tensor.shape)))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls an operation and records it with its results that are new tensors."""
        result = func(*args, **(kwargs or {}))
        used = dict.fromkeys(self._made[id(each)][0] for each in tree_leaves((args, kwargs)) if id(each) in self._made)
        name, place = func.__name__.strip("_"), self._modules[-1].replace(".", "/")
        made = [(name, each) for each in tree_leaves(result) if isinstance(each, Tensor) and id(each) not in self._made]
        self._add(place, name, [*used], made)
        return result
