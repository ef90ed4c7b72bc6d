"""The processes of a run as they write together: through a group of their own, which a thread can use during training.

Two threads of a process must not use one group at the same time, because each process may order their collectives in
another way. The group sends through the CPU, and needs no store: the launcher that hosts it may have been killed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from toolkit.base.errors import ToolkitError
from toolkit.system.activity import task_for_all
from toolkit.system.rank_order import LIMIT_SECONDS

T = TypeVar("T")


@dataclass(frozen=True)
class Peers:
    """The processes that write together; each method is called on all of them, by one thread at a time.

    Args:
        rank: number of this process; the first one is the main process.
        size: number of processes.
        group: their group; None for a single process.
    """

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def objects(self, own: T) -> list[T]:
        """Returns the picklable objects of all processes, by rank."""
        if self.group is None:
            return [own]
        found: list[T] = [own] * self.size
        dist.all_gather_object(found, own, self.group)
        return found

    def on_every(self, function: Callable[..., T], *args: Any) -> T:
        """Runs a function on every process and returns its own result.

        Raises:
            ToolkitError: the error of the first process that had one, on every process.
        """
        result: Any = None
        error: ToolkitError | None = None
        try:
            with task_for_all():
                result = function(*args)
        except ToolkitError as failure:
            error = failure
        for found in self.objects(error):
            if found is not None:
                found.shared = self.size > 1
                raise found
        return result

    def on_first(self, function: Callable[..., T], *args: Any) -> T:
        """Runs a function on the main process and returns its picklable result on every process.

        Raises:
            ToolkitError: the error of the main process, on every process.
        """
        result = self.on_every(lambda: function(*args) if self.rank == 0 else None)
        found: Any = self.objects(result)[0]
        return found

    def send(self, tensor: Tensor, to: int) -> None:
        """Sends a tensor of any type to another process, which receives it."""
        dist.send(tensor.cpu().contiguous().view(-1).view(torch.uint8), dst=to, group=self.group)

    def receive(self, tensor: Tensor, sender: int) -> None:
        """Fills a contiguous tensor on the CPU with the one that another process sends."""
        dist.recv(tensor.view(-1).view(torch.uint8), src=sender, group=self.group)


def peers_of_run() -> Peers:
    """Returns the processes of the run; may create a process group, so every process must call it."""
    if not dist.is_initialized():
        return Peers()
    return Peers(dist.get_rank(), dist.get_world_size(), _group(dist.group.WORLD))


@cache  # groups keep their threads and connections until they are destroyed, so the runs of a process share them
def _group(world: dist.ProcessGroup | None) -> dist.ProcessGroup:
    # What one process does for all may take longer than a collective of the training.
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=LIMIT_SECONDS))
    return group
