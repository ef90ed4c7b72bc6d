"""What replicas send instead of their gradients: fewer bits, or matrices of a low rank.

These are communication hooks of `DistributedDataParallel`, called for one bucket of gradients after another during the
last backward pass of a window. The gradient that results is not that of one process: it depends on the number of
processes, which `train.ddp_comm_hook` gives up for fewer bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

ERROR, QUERY = "error", "query"
"""Prefixes of the names of tensors in a checkpoint."""
LEAST_SAVING = 2
"""A matrix is sent as it is unless its two factors have this many times fewer elements."""


def factor_elements(shape: torch.Size, rank: int) -> int | None:
    """Returns the number of elements that are sent for a gradient, or None if it is sent as it is.

    Args:
        shape: its shape; kernels count as matrices of their first dimension by all others.
        rank: rank of the factors.
    """
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

    Args:
        model: the unwrapped model.
        rank: rank of the factors.
        size: number of processes.
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
        left = {name: matrix @ self._query(name, matrix) for name, matrix in matrices.items()}
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

    def _query(self, name: str, matrix: Tensor) -> Tensor:
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
        """Restores what `state` returned on the main process.

        Args:
            tensors: the tensors, of as many processes as there are now.
            rank: this process's rank.
        """
        for parameter, name in self.names.items():
            for prefix, kept in ((QUERY, self.queries), (f"{ERROR}.{rank}", self.errors)):
                if f"{prefix}.{name}" in tensors:
                    kept[name] = tensors[f"{prefix}.{name}"].clone().to(parameter.device)


def _done(buffer: Tensor) -> torch.futures.Future[Tensor]:
    devices: list[int | str | torch.device] = [buffer.device] if buffer.device.type == "cuda" else []
    future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
    future.set_result(buffer)
    return future
