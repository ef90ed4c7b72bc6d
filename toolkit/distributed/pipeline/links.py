"""Messages between the stages of a pipeline: hidden states forward, their gradients backward."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from toolkit.api.mesh import Mesh
from toolkit.distributed.pipeline.schedules import Kind
from toolkit.system.phases import in_phase


class Links:
    """Sends to and receives from the other processes of a pipeline. Sending does not wait for the receiver.

    Each direction, and the way from the last process to the first one, has a process group of its own: NCCL performs
    the messages of two processes in one group one after another, so a process that waits to send would block the
    message that the other one waits for.

    Every process must construct it at the same time.

    Args:
        mesh: the run's processes.
        timeout: how long a message may take, in seconds.
    """

    def __init__(self, mesh: Mesh, timeout: float) -> None:
        self._mesh = mesh
        self._groups = _groups(dist.group.WORLD, timeout)
        self._sent: dict[int, list[tuple[Any, Tensor]]] = {}

    @in_phase("exchange")
    def send(self, tensor: Tensor, kind: Kind, to: int, stage: int, number: int) -> None:
        """Sends a tensor and keeps it until `wait`.

        Args:
            tensor: any shape.
            kind: the pass that produced it.
            to: pipeline rank of the receiver.
            stage: the stage of the model that produced it.
            number: position of the micro-batch.
        """
        tensor = tensor.detach().contiguous()
        group = self._group(kind, self._mesh.pipeline_rank, to)
        # gloo matches messages by their tag; NCCL, which ignores it, by their order.
        work = dist.isend(tensor, self._rank(to), group, tag=self._tag(stage, number))
        self._sent.setdefault(number, []).append((work, tensor))

    @in_phase("exchange")
    def receive(self, like: Tensor, kind: Kind, source: int, stage: int, number: int) -> Tensor:
        """Waits for a tensor and returns it; arguments as for `send`.

        Args:
            like: a tensor of the same shape, type and device.
            kind: the pass that produced it.
            source: pipeline rank of the sender.
            stage: the stage of the model that produced it.
            number: position of the micro-batch.
        """
        tensor = torch.empty_like(like, memory_format=torch.contiguous_format, requires_grad=False)
        group = self._group(kind, source, self._mesh.pipeline_rank)
        dist.recv(tensor, self._rank(source), group, tag=self._tag(stage, number))
        return tensor

    @in_phase("exchange")
    def wait(self, number: int | None = None) -> None:
        """Waits until what was sent for a micro-batch, or for all of them, has arrived."""
        # Each only once: gloo waits for its timeout if a message that has arrived is waited for again.
        for each in list(self._sent) if number is None else [number]:
            for work, _ in self._sent.pop(each, ()):
                work.wait()

    def _rank(self, pipeline_rank: int) -> int:
        """Returns the rank among all processes of a process of this pipeline."""
        mesh = self._mesh
        return mesh.rank + (pipeline_rank - mesh.pipeline_rank) * mesh.size // mesh.pipeline

    def _group(self, kind: Kind, source: int, to: int) -> dist.ProcessGroup:
        return self._groups[2 * (kind == "backward") + (source > to)]

    def _tag(self, stage: int, number: int) -> int:
        return number * 1024 + stage


@cache  # groups keep their threads and connections until they are destroyed, so the runs of a process share them
def _groups(world: dist.ProcessGroup | None, timeout: float) -> list[dist.ProcessGroup]:
    return [dist.new_group(timeout=timedelta(seconds=timeout)) for _ in range(4)]
