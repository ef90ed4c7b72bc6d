"""One model whose layers are split over processes in stages, and replicas of it (Huang et al. 2018, arXiv 1811.06965).

Layers can also be split over processes themselves (tensor parallel), and each stage's parameters sharded (FSDP2).
The micro-batches of a window pass through the stages one after another. Every process of a pipeline reads the same
micro-batches, with their masks and labels, so only hidden states and their gradients are sent, in any shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch import distributed as dist

from toolkit.api.batch import Batch
from toolkit.api.mesh import Mesh
from toolkit.base.shards import local
from toolkit.distributed.collectives import collective_seconds, sum_dtype
from toolkit.distributed.exchange import counted
from toolkit.distributed.pipeline.execution import Executor, ForwardOnly, Links
from toolkit.distributed.pipeline.partition import partition, parts_of
from toolkit.distributed.pipeline.schedules import CHUNKS, SCHEDULES, Action
from toolkit.distributed.pipeline.stage import Stage, WeightGradients, held_modules
from toolkit.distributed.placement import Delivery, Skeleton
from toolkit.distributed.strategies.split import Split
from toolkit.distributed.tensor.layers import split_layers
from toolkit.distributed.window import clip_split, scale_gradients, seed_all
from toolkit.system.phases import in_phase, phase

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from toolkit.config.sections import Config


class Pipeline(Split):
    """Synchronous training of a model whose layers are split over processes; arguments as for `Split`."""

    hidden_exchange = "Layers that are split exchange inside the forward and the backward pass, where that time counts."

    def __init__(self, accelerator: Accelerator, mesh: Mesh, cfg: Config) -> None:
        super().__init__(accelerator, mesh, cfg)
        self.column = self.devices["pipeline"].get_group()
        self.links = Links(mesh, collective_seconds(cfg.train))

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Splits layers over `tensor`, keeps those of this process's stages, frees the others, shards over `fsdp`."""
        self.skeleton = Skeleton(model)
        self.outline = self.skeleton.model
        rank, processes = self.mesh.pipeline_rank, self.mesh.pipeline
        stages = processes * CHUNKS.get(self.cfg.parallel.schedule, 1)
        ranges = partition(parts_of(model).costs(), stages)
        deliver = Delivery(self.accelerator.device)
        if self.mesh.tensor > 1:
            split_layers(model, self.devices["tensor"], deliver, self.mesh.fsdp)
        own = range(rank, stages, processes)
        deliver(model.modules(), held_modules(model, ranges, own).__contains__)
        self.stage = Stage(model, ranges, own, self.accelerator.device)
        weights = WeightGradients(model) if self.cfg.parallel.schedule == "zero_bubble" else None
        self.executor = Executor(self.stage, self.links, rank, processes, self.accelerator.device, weights)
        if self.mesh.fsdp > 1:
            self.shard(model, deliver)
        self.own = self.model = model
        return model

    def actions(self, micro_batches: int) -> list[Action]:
        """Returns this process's passes of a window, in order."""
        schedule, mesh = SCHEDULES[self.cfg.parallel.schedule], self.mesh
        return schedule(mesh.pipeline_rank, mesh.pipeline, len(self.stage.own), micro_batches)

    @counted
    def window_gradient(self, window: Sequence[Batch], scale: float) -> Tensor:
        """Computes the gradient of a window; returns the summed loss of this pipeline, a scalar."""
        r, step = self.replica, self.replica.state.step

        def seed(stage: int, number: int) -> None:
            seed_all(self.cfg.seed, step, self.mesh.data_rank, stage, number)

        actions = self.actions(len(window))
        total = self.executor.gradient(r.task, actions, window, scale, seed, r.beat, self.exchange_gradients)
        self.reshard()  # a stage that trains nothing has no backward pass
        self.complete_tensor_gradients()
        self._add_shared_gradients()
        self.average_over_replicas()
        with phase("exchange"):
            dist.all_reduce(total, group=self.column)
        return total

    @in_phase("exchange")
    def _add_shared_gradients(self) -> None:
        """Adds the gradients of parameters that the first and the last process both hold (tied embeddings)."""
        rank, last = self.mesh.pipeline_rank, self.mesh.pipeline - 1
        if rank not in (0, last):
            return
        other = last - rank
        for number, parameter in enumerate(self.stage.tied):
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            own = local(parameter.grad)
            self.links.send(own, "backward", other, rank, number)
            theirs = self.links.receive(own, "backward", other, other, number)
            self.links.wait()
            own.add_(theirs)  # a sum of two numbers does not depend on their order: the same bits on both processes

    def clip(self, max_norm: float) -> float:
        """Clips the gradient to a norm over all stages and returns its norm before clipping."""
        elsewhere, device = self._held_by_first(), self.accelerator.device
        own_norm = clip_split((p for p in self.model.parameters() if id(p) not in elsewhere), 0.0)
        squares = torch.tensor(own_norm**2, dtype=sum_dtype(device), device=device)
        dist.all_reduce(squares, group=self.column)
        norm = math.sqrt(squares) if squares >= 0 else math.nan
        scale_gradients(self.model.parameters(), norm, max_norm)
        return norm

    @contextmanager
    def full_model(self) -> Iterator[nn.Module]:
        """Yields the pipeline, which returns outputs on the last stage and None on the others."""
        try:
            yield ForwardOnly(self.executor, self.model)
            self.links.wait()
        finally:
            self.reshard()

    def own_parameters(self) -> Mapping[str, Tensor]:
        """Returns the tensors of this process's stages; the first process provides those that the last one shares."""
        elsewhere = self._held_by_first()
        return {name: tensor for name, tensor in super().own_parameters().items() if id(tensor) not in elsewhere}

    def _held_by_first(self) -> set[int]:
        """Returns the `id` of each parameter of this process that the first process holds as well."""
        return {id(parameter) for parameter in self.stage.tied} if self.mesh.pipeline_rank > 0 else set()
