"""Values from all ranks: sums, objects, and functions that run on the main process for all."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from toolkit.api.mesh import Mesh
from toolkit.base.console import shorten
from toolkit.base.errors import ConfigError, ToolkitError
from toolkit.system.activity import task_for_all
from toolkit.system.phases import phase
from toolkit.system.rank_order import LIMIT_SECONDS, wait_for_main

if TYPE_CHECKING:
    from accelerate import Accelerator

    from toolkit.config.train import TrainConfig


T = TypeVar("T")


def on_main(accelerator: Accelerator, function: Callable[..., T], *args: Any) -> T:
    """Runs a function on the main process and returns its picklable result, or raises its error, on every process."""
    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            with task_for_all():
                outcome = [function(*args), None]
        except ToolkitError as failure:
            outcome = [None, failure]
    if accelerator.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        wait_for_main(accelerator)  # its work may take longer than a collective
        broadcast_object_list(outcome)
    result, error = outcome
    if error is not None:
        error.shared = True
        raise error
    return result


def on_every(accelerator: Accelerator, function: Callable[..., T], *args: Any) -> T:
    """Runs a function that needs no other process on each; the first error is raised on all, so that none waits."""
    return Peers(accelerator.process_index, accelerator.num_processes).on_every(function, *args)


def require_same(accelerator: Accelerator, own: Mapping[str, str]) -> None:
    """Raises ConfigError with the keys, on every process, if one has other values than the main process."""
    if accelerator.num_processes > 1:
        on_every(accelerator, _compare, own, on_main(accelerator, lambda: own), accelerator.process_index)


def _compare(own: Mapping[str, str], first: Mapping[str, str], rank: int) -> None:
    problems = [
        f"{key}: {shorten(own.get(key, 'nothing'))} on rank {rank} ({socket.gethostname()}), but "
        f"{shorten(first.get(key, 'nothing'))} on rank 0; give all ranks the same settings, code and libraries"
        for key in sorted(first.keys() | own.keys()) if own.get(key) != first.get(key)
    ]  # fmt: skip
    if problems:
        raise ConfigError(problems)


def collective_seconds(train: TrainConfig) -> float:
    """Returns how long a rank may wait in a collective: so long that the heartbeat names those that stall before."""
    return max(train.ddp_timeout, 1.25 * train.heartbeat_timeout + 1)


def sum_dtype(device: torch.device) -> torch.dtype:
    """Returns the widest floating-point type of a device, for sums."""
    return torch.float32 if device.type == "mps" else torch.float64


def all_sum(accelerator: Accelerator, *values: float) -> list[float]:
    """Sums each value over all processes; returns the same sums on each."""
    if accelerator.num_processes == 1:
        return list(values)
    with phase("exchange"):
        tensor = torch.tensor(values, dtype=sum_dtype(accelerator.device), device=accelerator.device)
        return accelerator.reduce(tensor, reduction="sum").tolist()


def data_sum(accelerator: Accelerator, mesh: Mesh, *values: float) -> list[float]:
    """Sums each value over data ranks; returns the same sums on every process.

    Each data rank counts once: of the processes that hold parts of a replica, one contributes its values.
    """
    return all_sum(accelerator, *(values if mesh.counts else [0.0] * len(values)))


def objects_of_all(own: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Returns the picklable objects of all processes of a group, by default of all, by rank, on every process."""
    if not dist.is_initialized():
        return [own]
    found: list[T] = [own] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group)
    return found


@dataclass(frozen=True)
class Peers:
    """The processes that write together; each method is called on all of them, by one thread at a time."""

    rank: int = 0  # number of this process; the first one is the main process
    size: int = 1  # number of processes
    group: dist.ProcessGroup | None = None  # their group; None for that of all processes, if there are several

    def objects(self, own: T) -> list[T]:
        """Returns the picklable objects of all processes, by rank."""
        return [own] if self.size == 1 else objects_of_all(own, self.group)

    def on_every(self, function: Callable[..., T], *args: Any) -> T:
        """Runs a function on every process and returns its own result.

        Raises ToolkitError: the error of the first process that had one, on every process.
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

        Raises ToolkitError: the error of the main process, on every process.
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
