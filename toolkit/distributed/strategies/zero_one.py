"""ZeRO stage 1: complete models, gradients averaged as usual, and each process keeps a part of the optimizer's state.

Rajbhandari et al. 2020 (arXiv 1910.02054). Each parameter has an owner, which alone updates it and sends the result to
the others, so the numbers are those of replicas bit for bit, with any optimizer that updates each parameter by itself.

`torch.distributed.optim.ZeroRedundancyOptimizer` does the same, but builds the optimizer from a class and its defaults,
which do not describe all presets (the groups of Muon, bitsandbytes' manager), and collects its state by pickling.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from toolkit.distributed.collect import objects_of_all
from toolkit.distributed.exchange import Wire
from toolkit.distributed.strategies.ddp import DataParallel
from toolkit.optim.state import optimizer_state

if TYPE_CHECKING:
    from torch.optim import Optimizer


class ZeroOne(DataParallel):
    """Synchronous training of replicas whose optimizer state is distributed over the processes."""

    def prepare_optimizer(self, optimizer: Optimizer) -> None:
        """Makes each step update this process's parameters only, and receive the others from their owners."""
        self.updates = Wire()
        step, rank = optimizer.step, self.mesh.data_rank
        parameters_of_all = [p for group in optimizer.param_groups for p in group["params"]]
        owners = owners_of(parameters_of_all, self.mesh.data_size)

        def own_step(optimizer: Optimizer, closure: Any = None) -> None:
            groups = optimizer.param_groups  # accelerate and a resumed run replace the list
            members = [group["params"] for group in groups]
            for group, parameters in zip(groups, members, strict=True):
                group["params"] = [p for p in parameters if owners[p] == rank]
            for parameter in [p for p in optimizer.state if owners[p] != rank]:
                del optimizer.state[parameter]  # a resumed run has loaded all of it
            step()
            for group, parameters in zip(groups, members, strict=True):
                group["params"] = parameters
            with torch.no_grad():
                for owner in range(self.mesh.data_size):
                    self.updates.copy_from([p for p in owners if owners[p] == owner], owner)

        optimizer.step = MethodType(own_step, optimizer)  # type: ignore[method-assign]

    def own_optimizer(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Returns the tensors of the optimizer's state that this process has, and the other values of all processes."""
        tensors, scalars = optimizer_state(self.replica.optimizer, self.model)
        for values, shapes in objects_of_all((scalars["values"], scalars["shapes"])):
            scalars["values"] = values | scalars["values"]
            scalars["shapes"] = shapes | scalars["shapes"]
        return tensors, scalars

    def exchanged(self) -> dict[str, float]:
        """Returns what this process sent: gradients, buffers and updated parameters."""
        found = super().exchanged()
        return {name: value + found.get(name, 0.0) for name, value in self.updates.exchanged().items()}


def owners_of(parameters: list[Tensor], size: int) -> dict[Tensor, int]:
    """Assigns each parameter to the process that has the fewest elements so far, largest parameters first."""
    load = [0] * size
    owners: dict[Tensor, int] = {}
    for parameter in sorted(parameters, key=lambda p: -p.numel()):
        owner = load.index(min(load))
        owners[parameter] = owner
        load[owner] += parameter.numel()
    return owners
