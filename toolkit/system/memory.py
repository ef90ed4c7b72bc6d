"""Measures the memory of training: what the main process uses in addition to its use before the model was built."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from toolkit.base.shards import local_bytes
from toolkit.system.limits import give_back_freed


@dataclass(frozen=True)
class MemoryUse:
    """Memory of a run's main process, in bytes."""

    parameters: int  # weights and buffers
    gradients: int  # gradients of all trained weights
    optimizer_state: int
    baseline: int  # use before the model was built, libraries and rows included
    train_peak: int  # peak of the training steps above the baseline, weights included
    peak: int  # peak of the process since then, baseline included
    checkpoint_copy: int = 0  # the copy of a checkpoint that is written during training, on a CPU

    @property
    def rest(self) -> int:
        """The remaining memory of training steps: activations, batches and the libraries' working memory."""
        states = self.parameters + self.gradients + self.optimizer_state + self.checkpoint_copy
        return max(0, self.train_peak - states)


class MemoryWatch:
    """Measures the peak of training steps and that of everything else; create it before the model is built.

    On a GPU it counts allocated memory, otherwise the resident memory of the process. Only Linux lets a process reset
    its peak; on other systems both peaks are measured since the start of the process.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        give_back_freed()  # the next allocations would reuse it, and would not be measured
        self.baseline = held_bytes(device)
        self._train_peak = self._peak = 0
        self._training = False
        _reset_peak(device)

    @property
    def peak(self) -> int:
        """Peak of the process since the measurement began, in bytes."""
        return max(self._peak, peak_memory_bytes(self.device))

    def train(self) -> None:
        """Marks the beginning of training steps."""
        if not self._training:
            self._peak = self.peak
            give_back_freed()  # by loading or an evaluation
            _reset_peak(self.device)
            self._training = True

    def pause(self) -> None:
        """Marks the end of training steps, until `train` is called again."""
        if self._training:
            self._train_peak = max(self._train_peak, peak_memory_bytes(self.device))
            self._training = False

    def use(self, model: nn.Module, optimizer_state: int, checkpoint_copy: int = 0) -> MemoryUse:
        """Returns the memory use so far; `optimizer_state` and `checkpoint_copy` (in CPU memory) are bytes."""
        return MemoryUse(
            parameters=_bytes(model.parameters()) + _bytes(model.buffers()),
            gradients=_bytes(parameter for parameter in model.parameters() if parameter.requires_grad),
            optimizer_state=optimizer_state,
            baseline=self.baseline,
            train_peak=max(0, self._train_peak - self.baseline),
            peak=self.peak,
            checkpoint_copy=checkpoint_copy if self.device.type == "cpu" else 0,
        )


def held_bytes(device: torch.device) -> int:
    """Returns the bytes that this process uses now: allocated on the GPU, or resident on other devices."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    import psutil

    return psutil.Process().memory_info().rss


def peak_memory_bytes(device: torch.device) -> int:
    """Returns the peak in bytes since it was last reset: allocated on the GPU, or resident on other devices."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on Linux, at least that of the process that started it
    return peak if sys.platform == "darwin" else peak * 1024


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # not Linux, or a sandbox that forbids it
            Path("/proc/self/clear_refs").write_text("5")


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(map(local_bytes, tensors))


MEMORY = {
    "parameters": "weights and buffers",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "checkpoint_copy": "copy of a checkpoint",
    "rest": "activations and the rest",
    "train_peak": "peak of training steps",
}
"""Parts of `MemoryUse`, and their names in reports."""
