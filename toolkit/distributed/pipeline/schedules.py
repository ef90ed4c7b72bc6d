"""Schedules of a pipeline: the order in which each process runs the passes of a window's micro-batches.

A schedule only orders passes, so every schedule computes the same gradient. Processes that hold several *chunks* of
the layers take turns: chunk `c` of process `r` is stage `c * processes + r` of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Literal

Kind = Literal["forward", "backward", "weights"]
"""A pass: `weights` computes the gradients of matrices, where a schedule separates it from the backward pass."""


@dataclass(frozen=True)
class Action:
    """A pass of one micro-batch through one chunk of a process."""

    kind: Kind  # forward pass, backward pass, or the part of the backward pass that only concerns weights
    chunk: int  # the chunk of this process's layers
    micro_batch: int  # position of the micro-batch in its window


def gpipe(rank: int, processes: int, chunks: int, micro_batches: int) -> list[Action]:
    """All forward passes, then all backward passes (Huang et al. 2018, arXiv 1811.06965).

    Each process keeps the activations of the complete window.
    """
    forward = [Action("forward", 0, number) for number in range(micro_batches)]
    return forward + [Action("backward", 0, number) for number in range(micro_batches)]


def one_forward_one_backward(rank: int, processes: int, chunks: int, micro_batches: int) -> list[Action]:
    """Backward passes as early as possible (Narayanan et al. 2019, PipeDream-Flush, arXiv 2006.09503).

    A process keeps the activations of at most `processes - rank` micro-batches.
    """
    return _alternating(*_in_turns(processes, 1, micro_batches), warm_up=processes - rank - 1)


def interleaved(rank: int, processes: int, chunks: int, micro_batches: int) -> list[Action]:
    """1F1B in which each process holds several chunks (Narayanan et al. 2021, arXiv 2104.04473).

    The bubble is smaller by the number of chunks; more is sent. The number of micro-batches must be a multiple of the
    number of processes.
    """
    warm_up = 2 * (processes - rank - 1) + (chunks - 1) * processes
    return _alternating(*_in_turns(processes, chunks, micro_batches), warm_up=warm_up)


def zero_bubble(rank: int, processes: int, chunks: int, micro_batches: int) -> list[Action]:
    """1F1B that computes the gradients of weights while it would wait (ZB-H1; Qi et al. 2023, arXiv 2401.10241).

    Process `rank` is `rank` micro-batches late with them, so every process keeps the tensors of at most as many
    micro-batches as there are processes.
    """
    actions = []
    for action in one_forward_one_backward(rank, processes, chunks, micro_batches):
        actions.append(action)
        if action.kind == "backward" and action.micro_batch >= rank:
            actions.append(Action("weights", 0, action.micro_batch - rank))
    return actions + [Action("weights", 0, number) for number in range(max(0, micro_batches - rank), micro_batches)]


def _in_turns(processes: int, chunks: int, micro_batches: int) -> tuple[list[Action], list[Action]]:
    """Returns forward and backward passes: as many micro-batches as processes through one chunk, then the next."""
    groups = [range(start, min(start + processes, micro_batches)) for start in range(0, micro_batches, processes)]
    forward = [Action("forward", c, m) for group in groups for c in range(chunks) for m in group]
    backward = [Action("backward", c, m) for group in groups for c in reversed(range(chunks)) for m in group]
    return forward, backward


def _alternating(forward: list[Action], backward: list[Action], warm_up: int) -> list[Action]:
    """Returns `warm_up` forward passes, then one forward and one backward pass at a time, then the rest."""
    pairs = zip(forward[warm_up:], backward, strict=False)
    steady = len(forward[warm_up:])
    return [*forward[:warm_up], *chain.from_iterable(pairs), *backward[steady:]]


Schedule = Callable[[int, int, int, int], list[Action]]
"""From rank, number of processes, chunks of each and micro-batches to this rank's passes, in order."""
SCHEDULES: dict[str, Schedule] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved_1f1b": interleaved,
    "zero_bubble": zero_bubble,
}
"""Schedules by their names in `parallel.schedule`."""
CHUNKS = {"interleaved_1f1b": 2}
"""Chunks per process; 1 for schedules that are not listed."""
