"""What training takes of the main process's memory: measured above what was there before the model was built."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn


@dataclass(frozen=True)
class MemoryUse:
    """Memory of a run's main process, in bytes.

    Args:
        parameters: weights and buffers.
        gradients: of all weights that are trained.
        optimizer_state: the optimizer's.
        baseline: what the process held before the model was built, libraries and rows included.
        train_peak: most that training steps held above that, weights included.
        peak: most that the process held since, everything included.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    baseline: int
    train_peak: int
    peak: int

    @property
    def rest(self) -> int:
        """What training steps held besides: activations, batches and the libraries' working memory."""
        return max(0, self.train_peak - self.parameters - self.gradients - self.optimizer_state)


class MemoryWatch:
    """Keeps the peaks of training steps and of all the rest apart; begins before the model is built.

    On a GPU it counts what is allocated there, elsewhere the pages that the process holds. Only Linux lets a process
    start its peak anew; on other systems both peaks are those of the process's whole life.

    Args:
        device: where the model will be.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        _give_back_freed()
        self.baseline = held_bytes(device)
        self._train_peak = self._peak = 0
        self._training = False
        _reset_peak(device)

    @property
    def peak(self) -> int:
        """Most that the process held since the watch began."""
        return max(self._peak, peak_memory_bytes(self.device))

    def train(self) -> None:
        """Says that from here on training steps are done."""
        if not self._training:
            self._peak = self.peak
            _reset_peak(self.device)
            self._training = True

    def pause(self) -> None:
        """Says that from here on something else is done, until `train` is called again."""
        if self._training:
            self._train_peak = max(self._train_peak, peak_memory_bytes(self.device))
            self._training = False

    def use(self, model: nn.Module, optimizer_state: int) -> MemoryUse:
        """Returns what was measured so far, for a model and the bytes of its optimizer's state."""
        return MemoryUse(
            parameters=_bytes(model.parameters()) + _bytes(model.buffers()),
            gradients=_bytes(parameter for parameter in model.parameters() if parameter.requires_grad),
            optimizer_state=optimizer_state,
            baseline=self.baseline,
            train_peak=max(0, self._train_peak - self.baseline),
            peak=self.peak,
        )


def held_bytes(device: torch.device) -> int:
    """Memory that this process holds now: allocated on the GPU, or resident where there is none."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    import psutil

    return psutil.Process().memory_info().rss


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory that this process held since its peak was last reset: on the GPU, or resident where there is none."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # not Linux, or a sandbox that forbids it
            Path("/proc/self/clear_refs").write_text("5")


def _give_back_freed() -> None:
    """Gives freed memory back to the system: what is built next would fill it, and would not be seen."""
    with suppress(OSError, AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


MEMORY = {
    "parameters": "weights and buffers",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "rest": "activations and the rest",
    "train_peak": "peak of training steps",
}
"""Parts of `toolkit.base.memory.MemoryUse`, and their names."""
