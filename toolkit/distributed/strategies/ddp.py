"""Synchronous training of replicas by DDP, with compressed gradients or a split optimizer (ZeRO-1) if configured."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from toolkit.api.strategy import Replica
from toolkit.base.shards import local
from toolkit.distributed.collectives import objects_of_all
from toolkit.distributed.exchange import EXCHANGED_BYTES, EXCHANGES, Wire, share_sent
from toolkit.distributed.placement import trained_buffers
from toolkit.distributed.strategies.replicas import Replicas
from toolkit.optim.state import optimizer_state

ERROR, QUERY = "error", "query"
"""Prefixes of the names of tensors in a checkpoint."""
LEAST_SAVING = 2
"""A matrix is sent as it is unless its two factors have this many times fewer elements."""


def factor_elements(shape: torch.Size, rank: int) -> int | None:
    """Returns the number of elements sent for a gradient of a shape; None if it is sent as it is."""
    if len(shape) < 2:
        return None
    rows, columns = shape[0], shape[1:].numel()
    sent = (rows + columns) * min(rank, rows, columns)
    return sent if sent * LEAST_SAVING < rows * columns else None


class PowerSGD:
    """Sends each matrix as two factors of a low rank (Vogels et al. 2019, arXiv 1905.13727).

    One power iteration per step begins with the factor of the step before. What the factors lack is added to this
    process's next gradient (error feedback), so it is late, not lost.

    `torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook` keeps errors by bucket. Buckets are arranged anew in the
    second step of each session, so its state cannot be resumed exactly; here it belongs to parameters.
    """

    def __init__(self, model: nn.Module, rank: int, size: int) -> None:
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self.rank, self.size = rank, size
        self.errors: dict[str, Tensor] = {}
        self.queries: dict[str, Tensor] = {}
        self.gathered: dict[str, Tensor] = {}
        """What `gather` collected."""

    def register(self, model: DistributedDataParallel) -> None:
        """Makes a wrapped model call `exchange` for each bucket."""
        model.register_comm_hook(None, lambda state, bucket: self.exchange(bucket))

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Replaces the gradients of a bucket by the mean of what all processes have sent."""
        pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        low = [(self.names[p], g) for p, g in pairs if factor_elements(p.shape, self.rank) is not None]
        self._mean([gradient for p, gradient in pairs if factor_elements(p.shape, self.rank) is None])
        matrices = {name: gradient.view(gradient.shape[0], -1) for name, gradient in low}
        for name, matrix in matrices.items():
            if name in self.errors:
                matrix.add_(self.errors[name])
        left = {name: matrix @ self.query(name, matrix) for name, matrix in matrices.items()}
        self._mean(list(left.values()))
        left = {name: torch.linalg.qr(factor).Q for name, factor in left.items()}
        right = {name: matrix.T @ left[name] for name, matrix in matrices.items()}
        self._mean(list(right.values()))
        for name, matrix in matrices.items():
            approximation = left[name] @ right[name].T
            self.errors[name] = matrix - approximation
            self.queries[name] = right[name]
            matrix.copy_(approximation)
        return _done(bucket.buffer())

    def _mean(self, tensors: list[Tensor]) -> None:
        """Replaces tensors by their mean over processes."""
        if tensors:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(self.size)
            dist.all_reduce(flat)
            for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def query(self, name: str, matrix: Tensor) -> Tensor:
        """Returns the factor to begin with: that of the last step, or random numbers, the same on every process."""
        if name not in self.queries:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            made = torch.randn(matrix.shape[1], min(self.rank, *matrix.shape), generator=generator)
            self.queries[name] = made.to(matrix)
        return self.queries[name]

    def gather(self) -> None:
        """Collects the errors of all processes on the main one, for a checkpoint."""
        names = sorted(self.errors)
        if not names:
            return
        flat = torch.cat([self.errors[name].reshape(-1) for name in names])
        parts = [torch.empty_like(flat) for _ in range(self.size)] if dist.get_rank() == 0 else None
        dist.gather(flat, parts)
        sizes = [self.errors[name].numel() for name in names]
        self.gathered = {
            f"{ERROR}.{rank}.{name}": values.view_as(self.errors[name]).cpu()
            for rank, part in enumerate(parts or ())
            for name, values in zip(names, part.split(sizes), strict=True)
        }

    def state(self) -> dict[str, Tensor]:
        """Returns the errors that `gather` collected, and the factors."""
        return self.gathered | {f"{QUERY}.{name}": value for name, value in self.queries.items()}

    def restore(self, tensors: Mapping[str, Tensor], rank: int) -> None:
        """Restores what `state` returned on the main process, of as many processes as there are now."""
        for parameter, name in self.names.items():
            for prefix, kept in ((QUERY, self.queries), (f"{ERROR}.{rank}", self.errors)):
                if f"{prefix}.{name}" in tensors:
                    kept[name] = tensors[f"{prefix}.{name}"].clone().to(parameter.device)


def _done(buffer: Tensor) -> torch.futures.Future[Tensor]:
    devices: list[int | str | torch.device] = [buffer.device] if buffer.device.type == "cuda" else []
    future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
    future.set_result(buffer)
    return future


class DataParallel(Replicas):
    """The default: accelerate's wrapper of the model exchanges gradients in the last backward pass of a window."""

    name = "sync"
    wraps_model = True
    hidden_exchange = (
        "Gradients are exchanged during the backward pass of each step's last micro-batch, where that time counts."
    )
    power: PowerSGD | None = None
    """What PowerSGD keeps, if gradients are exchanged in that way."""

    def bind(self, replica: Replica) -> None:
        """Takes the prepared model and optimizer; sets how gradients are sent (`train.ddp_comm_hook`)."""
        super().bind(replica)
        self._buffers_wire = Wire()
        hook, model = self.cfg.train.ddp_comm_hook, replica.model
        if not isinstance(model, DistributedDataParallel):
            return
        if hook == "fp16":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            model.register_comm_hook(None, fp16_compress_hook)
        elif hook == "power_sgd":
            self.power = PowerSGD(self.model, self.cfg.train.power_sgd_rank, self.mesh.data_size)
            self.power.register(model)

    def synchronize(self, for_checkpoint: bool = False) -> None:
        """Gives all processes the main one's buffers, and collects for a checkpoint what each has not sent yet.

        DDP copies buffers before each forward pass only, so after it each process has statistics of its own rows.
        """
        if self.mesh.data_size > 1:
            self._buffers_wire.copy_main(trained_buffers(self.model))
        if for_checkpoint and self.power is not None:
            self.power.gather()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Returns what PowerSGD keeps, of all processes."""
        return None if self.power is None else (self.power.state(), {})

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restores what PowerSGD keeps; a single process, which sends nothing, needs none of it."""
        if self.power is not None:
            self.power.restore(tensors, self.mesh.data_rank)

    def exchanged(self) -> dict[str, float]:
        """Returns what this process sent: gradients in buckets, and buffers."""
        model, steps = self.replica.model, self.replica.state.step
        if not isinstance(model, DistributedDataParallel):
            return {}
        facts = model._get_ddp_logging_data()
        buckets = [int(size) for size in str(facts.get("rebuilt_bucket_sizes") or facts["bucket_sizes"]).split(",")]
        buffers = [buffer for buffer in model.modules_buffers if model.broadcast_buffers]
        broadcast = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
        gradients, per_bucket = sum(buckets), 1
        if self.cfg.train.ddp_comm_hook == "fp16":
            gradients = sum(2 * parameter.numel() for parameter in trained(model))
        elif self.power is not None:
            gradients = sum(self._factor_bytes(parameter) for parameter in trained(model))
            per_bucket = 3  # at most: what is not compressed, and two factors
        sent = share_sent(self.mesh.data_size) * (2 * gradients + broadcast)
        return {EXCHANGES: float((len(buckets) * per_bucket + bool(buffers)) * steps), EXCHANGED_BYTES: sent * steps}

    def _factor_bytes(self, parameter: Tensor) -> int:
        elements = factor_elements(parameter.shape, self.cfg.train.power_sgd_rank)
        return (parameter.numel() if elements is None else elements) * parameter.element_size()


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Returns the parameters whose gradients are exchanged."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class ZeroOne(DataParallel):
    """Synchronous training of replicas whose optimizer state is distributed over the processes."""

    def prepare_optimizer(self, optimizer: Optimizer) -> None:
        """Makes each step update this process's parameters only, and receive the others from their owners."""
        self.updates = Wire()
        share_steps(optimizer, self.updates, self.mesh.data_rank, self.mesh.data_size)

    def own_optimizer(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Returns the tensors of the optimizer's state that this process has, and the other values of all processes."""
        tensors, scalars = optimizer_state(self.replica.optimizer, self.model)
        return tensors, merged_scalars(objects_of_all(scalars))

    def exchanged(self) -> dict[str, float]:
        """Returns what this process sent: gradients, buffers and updated parameters."""
        found = super().exchanged()
        return {name: value + found.get(name, 0.0) for name, value in self.updates.exchanged().items()}


def merged_scalars(own_of_all: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the values of `toolkit.optim.state.optimizer_state` for one process, from those of all that share it."""
    groups = []
    for parts in zip(*(own["groups"] for own in own_of_all), strict=True):
        names = dict.fromkeys(name for part in parts for name in part["params"])
        settings = next((part["settings"] for part in parts if part["params"]), parts[0]["settings"])
        groups.append({"params": list(names), "settings": settings})
    merged = {
        key: {name: value for own in reversed(own_of_all) for name, value in own[key].items()}
        for key in ("values", "shapes")
    }
    return {"optimizer": own_of_all[0]["optimizer"], "groups": groups, **merged}


def share_steps(optimizer: Optimizer, wire: Wire, rank: int, size: int) -> None:
    """Makes each step of an optimizer update this process's parameters only, and receive the others from their owners.

    `wire` connects the replicas, of which this is number `rank`. They may be parts of models that are split: of each
    parameter, then, every one of them holds the same part.
    """
    step = optimizer.step
    owners = owners_of([p for group in optimizer.param_groups for p in group["params"]], size)

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
            for owner in range(size):
                wire.copy_from([local(p) for p in owners if owners[p] == owner], owner)

    optimizer.step = MethodType(own_step, optimizer)  # type: ignore[method-assign]


def owners_of(parameters: list[Tensor], size: int) -> dict[Tensor, int]:
    """Assigns each parameter to the process that has the fewest elements so far, largest parameters first."""
    load = [0] * size
    owners: dict[Tensor, int] = {}
    for parameter in sorted(parameters, key=lambda p: -p.numel()):
        owner = load.index(min(load))
        owners[parameter] = owner
        load[owner] += parameter.numel()
    return owners
