"""Runs the passes of a window on one process of a pipeline, and exchanges tensors between stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from toolkit.api.batch import Batch, ModelOutput, logits_at_labels, to_device
from toolkit.api.mesh import Mesh
from toolkit.api.task import Task
from toolkit.distributed.collectives import sum_dtype
from toolkit.distributed.pipeline.schedules import Action, Kind
from toolkit.distributed.pipeline.stage import Stage, WeightGradients
from toolkit.system.phases import in_phase, phase

STAGES = 1024
"""More stages than any model has, so that a tag tells the micro-batch and the stage."""


class Links:
    """Sends to and receives from the other processes of a pipeline. Sending does not wait for the receiver.

    Each direction, and the way from the last process to the first one, has a process group of its own: NCCL performs
    the messages of two processes in one group one after another, so a process that waits to send would block the
    message that the other one waits for.

    Every process must construct it at the same time. A message may take `timeout` seconds.
    """

    def __init__(self, mesh: Mesh, timeout: float) -> None:
        self._mesh = mesh
        self._groups = _groups(dist.group.WORLD, timeout)
        self._sent: dict[int, list[tuple[Any, Tensor]]] = {}

    @in_phase("exchange")
    def send(self, tensor: Tensor, kind: Kind, to: int, stage: int, number: int) -> None:
        """Sends a tensor of a stage and micro-batch to a pipeline rank, and keeps it until `wait`."""
        tensor = tensor.detach().contiguous()
        group = self._group(kind, self._mesh.pipeline_rank, to)
        # gloo matches messages by their tag; NCCL, which ignores it, by their order.
        work = dist.isend(tensor, self._rank(to), group, tag=number * STAGES + stage)
        self._sent.setdefault(number, []).append((work, tensor))

    @in_phase("exchange")
    def receive(self, like: Tensor, kind: Kind, source: int, stage: int, number: int) -> Tensor:
        """Waits for the tensor of a stage and micro-batch, of the shape, type and device of `like`, and returns it."""
        tensor = torch.empty_like(like, memory_format=torch.contiguous_format, requires_grad=False)
        group = self._group(kind, source, self._mesh.pipeline_rank)
        dist.recv(tensor, self._rank(source), group, tag=number * STAGES + stage)
        return tensor

    @in_phase("exchange")
    def wait(self, number: int | None = None) -> None:
        """Waits until the tensors of a micro-batch, or of all of them, have arrived."""
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


@cache  # groups keep their threads and connections until they are destroyed, so all runs of a process share them
def _groups(world: dist.ProcessGroup | None, timeout: float) -> list[dist.ProcessGroup]:
    return [dist.new_group(timeout=timedelta(seconds=timeout)) for _ in range(4)]


@dataclass(frozen=True)
class Span:
    """The time of one pass on one process."""

    process: int  # pipeline rank
    kind: Kind  # the kind of pass
    chunk: int  # the chunk of the process's layers
    micro_batch: int  # position of the micro-batch in its window
    begin: float  # when its input had arrived, in seconds of a clock that the processes of one machine share
    end: float  # when its output was ready


@dataclass
class Executor:
    """One process of a pipeline."""

    stage: Stage  # its part of the model
    links: Links  # its connections to the other processes
    rank: int  # its pipeline rank
    processes: int  # number of processes of the pipeline
    device: torch.device  # where it computes
    weights: WeightGradients | None = None  # gradients of weights that are computed later than those of inputs, or None
    spans: list[Span] | None = None  # receives the time of each pass, or None; on a GPU, each pass is then waited for
    _received_at: float = field(default=0.0, init=False)

    @property
    def _last(self) -> int:
        """Number of the model's last stage."""
        return len(self.stage.ranges) - 1

    def gradient(
        self,
        task: Task,
        actions: Sequence[Action],
        window: Sequence[Batch],
        scale: float,
        seed: Callable[[int, int], None],
        beat: Callable[[], None],
        exchange: Callable[[bool], None],
    ) -> Tensor:
        """Adds up the gradient of a window, the same on every process of the pipeline, in this process's parameters.

        Random numbers of a stage and a micro-batch start from `seed`, so that they do not depend on the schedule.
        After each pass, `beat` is called; before each backward pass `exchange`, given whether it is its stage's last.

        Returns:
            The summed loss, a detached scalar; zero on processes that do not hold the last stage.
        """
        total = torch.zeros((), dtype=sum_dtype(self.device), device=self.device)
        kept: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = {}
        for action in actions:
            begin = time.perf_counter()
            stage, number = action.chunk * self.processes + self.rank, action.micro_batch
            if action.kind == "backward":
                exchange(number == len(window) - 1)
                self._backward(stage, number, *kept.pop((stage, number)))
            elif action.kind == "weights":
                assert self.weights is not None, "the schedule separates gradients of weights"
                with phase("backward"):
                    self.weights.compute(stage, number)
            else:
                seed(stage, number)
                with phase("forward"):
                    batch = to_device(window[number], self.device)
                    with logits_at_labels(batch):
                        output, received = self.forward(stage, number, batch["inputs"])
                    if stage == self._last:
                        loss = task.loss_sum(output, batch)
                        total += loss.detach()
                        output = loss * scale
                kept[stage, number] = output, received
            self._note(action, begin)
            beat()
        self.links.wait()
        return total

    def forward(self, stage: int, number: int, inputs: Mapping[str, Any]) -> tuple[Any, Tensor | None]:
        """Runs a stage and sends its output on; returns the output and the received tensor."""
        received: list[Tensor] = []

        def receive(like: Tensor) -> Tensor:
            source = (stage - 1) % self.processes
            hidden = self.links.receive(like, "forward", source, stage - 1, number)
            self._received_at = time.perf_counter()
            received.append(hidden.requires_grad_(torch.is_grad_enabled()))
            return hidden

        output = self.stage.forward(stage, inputs, receive)
        if stage != self._last:
            self.links.send(output, "forward", (stage + 1) % self.processes, stage, number)
        return output, received[0] if received else None

    @in_phase("backward")
    def _backward(self, stage: int, number: int, output: Tensor, received: Tensor | None) -> None:
        if stage == self._last:
            output.backward()
        else:
            gradient = self.links.receive(output, "backward", (stage + 1) % self.processes, stage + 1, number)
            self._received_at = time.perf_counter()
            if output.requires_grad:  # not if everything up to here is frozen
                output.backward(gradient)
        if self.weights is not None:
            self.weights.keep(stage, number)
        if received is not None:
            gradient = torch.zeros_like(received) if received.grad is None else received.grad
            self.links.send(gradient, "backward", (stage - 1) % self.processes, stage, number)

    def _note(self, action: Action, begin: float) -> None:
        if self.spans is None:
            return
        if self.device.type != "cpu":
            torch.accelerator.synchronize()
        begin, end = max(begin, self._received_at), time.perf_counter()
        self.spans.append(Span(self.rank, action.kind, action.chunk, action.micro_batch, begin, end))


class ForwardOnly(nn.Module):
    """The model for evaluation: each process runs its stages, and only the last one returns outputs.

    The mode of `model` changes with that of this module.
    """

    IN_FLIGHT = 2
    """Batches that a process may be ahead of the next one."""

    def __init__(self, executor: Executor, model: nn.Module) -> None:
        super().__init__()
        self.model, self._executor, self._number = model, executor, 0
        self.training = model.training

    def forward(self, **inputs: Any) -> ModelOutput | None:
        """Runs this process's stages on a batch, which every process of the pipeline must give.

        Returns:
            The model's output on the process that holds the last stage, None on the others.
        """
        executor = self._executor
        executor.links.wait(self._number - self.IN_FLIGHT)
        outputs = [executor.forward(stage, self._number, inputs)[0] for stage in executor.stage.own]
        self._number += 1
        return outputs[-1] if executor.rank == executor.processes - 1 else None
