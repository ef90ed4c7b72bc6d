"""What the device can do: the speed of a large matrix product, and the time of the smallest operation."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

SIZE = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices, by type of device."""
ROUNDS, CALLS = 5, 1000


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Returns the floating-point operations per second of a product of two square matrices, the fastest of `ROUNDS`."""
    size = SIZE.get(device.type, 4096)
    one, other = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = min(_timed(device, lambda: torch.mm(one, other)) for _ in range(ROUNDS + 1))
    return 2 * size**3 / seconds


def smallest_operation(device: torch.device) -> float:
    """Returns the seconds of an operation on one number: no operation of a step takes less, however little it does."""
    number = torch.zeros(1, device=device)

    def repeated() -> None:
        for _ in range(CALLS):
            number.add_(1)

    with torch.no_grad():
        return min(_timed(device, repeated) for _ in range(ROUNDS)) / CALLS


def compute_dtype(mixed_precision: str, parameters: torch.dtype) -> torch.dtype:
    """Returns the type in which matrix products are computed; fp8 ones are compared with those in bfloat16."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}.get(mixed_precision, parameters)


def _timed(device: torch.device, function: Callable[[], object]) -> float:
    """Returns the seconds of a call, with the device's work."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
    begun = time.perf_counter()
    function()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - begun
