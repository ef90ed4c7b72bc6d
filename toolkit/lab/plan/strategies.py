"""What several devices would make of a plan: memory of each, what they send, how fast they may be.

Sources: data parallelism with a ring all-reduce, 2(n-1)/n of the gradient sent by each device (Patarasuk and Yuan
2009); local SGD (Stich 2018, arXiv 1805.09767); ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054) whose third stage is
FSDP (Zhao et al. 2023, arXiv 2304.11277); tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053): two all-reduces
of a layer's output in its forward pass and two in its backward pass; pipelines (Huang et al. 2018, arXiv 1811.06965)
in the order 1F1B (Narayanan et al. 2020, arXiv 2006.09503): at most as many micro-batches under way as stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.config.sections import TrainConfig
from toolkit.footprint.footprint import Footprint


@dataclass(frozen=True)
class Strategy:
    """One way to use several devices.

    Args:
        name: as people call it.
        memory: bytes on the device that has the most.
        sent: bytes that a device sends in an optimizer step, on average.
        speed: rows per second against one device, if sending took no time.
        here: whether the toolkit runs it today.
        complexity: what it asks of whoever uses it.
        when: when to use it.
    """

    name: str
    memory: int
    sent: int
    speed: float
    here: bool
    complexity: str
    when: str


def strategies(footprint: Footprint, train: TrainConfig, processes: int) -> list[Strategy]:
    """Returns the table for so many processes of one device each, micro-batches as large as on one device.

    Args:
        footprint: what one device needs alone.
        train: for accumulation and local SGD.
        processes: number of devices n; of one device only that itself is told.
    """
    f, n = footprint, processes
    found = [Strategy("single device", f.peak, 0, 1.0, True, "none", "it fits, and is fast enough")]
    if n == 1:
        return found
    ring, away = 2 * (n - 1) / n, (n - 1) / n
    window = train.gradient_accumulation_steps or 1
    layers, across = max(1, f.layers), f.crossing
    outer = 2 * f.gradients if train.local_sgd_outer_lr is not None else 0
    averaged = f.gradients + (f.optimizer_state if train.local_sgd_average_moments else 0)
    # What a device of a tensor-parallel group holds whole: what goes from layer to layer.
    whole = min(across, f.activations)
    under_way = min(window, n)
    found += [
        Strategy("DDP", f.peak + f.gradients, round(ring * f.gradients), n, True, "low",
                 "it fits one device: the usual choice"),
        Strategy(f"local SGD (every {train.local_sgd_steps})", _held(f) + outer,
                 round(ring * averaged / train.local_sgd_steps), n, True, "low; another algorithm",
                 "the network is slow"),
        Strategy("ZeRO-1", _held(f, optimizer=away), round(ring * f.gradients), n, False, "medium",
                 "the optimizer's state is what does not fit"),
        Strategy("ZeRO-2", _held(f, optimizer=away, gradients=away), round(away * f.gradients * (window + 1)), n, False,
                 "medium", "gradients do not fit either"),
        Strategy("FSDP / ZeRO-3", _held(f, away, away, away) + min(f.parameters, 2 * f.layer_parameters),
                 round(away * window * (2 * f.parameters + f.gradients)), n, False, "medium",
                 "the weights do not fit; needs a fast network"),
        Strategy("tensor parallel", _held(f, away, away, away, round((f.activations - whole) * away)),
                 round(ring * (6 if f.recomputed else 4) * across * window), n, False, "high; per architecture",
                 "one layer does not fit; devices are closely linked"),
        Strategy("pipeline parallel", _held(f, away, away, away, round(f.activations * (1 - under_way / n))),
                 2 * f.boundary * window, n * window / (window + n - 1), False, "high; needs accumulation",
                 "layers fit, the model does not; the network is slow"),
    ]  # fmt: skip
    return found if layers > 1 else found[:-2]


def _held(
    f: Footprint, parameters: float = 0.0, gradients: float = 0.0, optimizer: float = 0.0, activations: int = 0
) -> int:
    """Peak of a device that is spared parts of what one alone holds, and so many bytes of activations.

    It may be at another moment than on one device: where gradients are spared, when the backward pass begins.
    """
    states = f.states - parameters * f.parameters - optimizer * (f.optimizer_state + f.copies)
    copies = parameters * f.weight_copies
    late = f.gradients_at_peak > f.gradients / 2  # most copies are gone when most gradients are there
    passing = f.passing - gradients * f.gradients_at_peak - activations - (0 if late else copies)
    turning = f.activations + f.logits + f.batch + f.weight_copies - copies - activations
    stepping = f.step_peak - f.states - gradients * f.gradients
    return round(states + max(0.0, passing, turning, stepping))


@dataclass(frozen=True)
class Scaling:
    """Speed of n processes against one, by measured computing and sending.

    Args:
        processes: n.
        amdahl: the same rows in a step, shared out (Amdahl 1967).
        gustafson: n times the rows in a step, against one process that does them all (Gustafson 1988).
    """

    processes: int
    amdahl: float
    gustafson: float


def scaling(seconds: float, serial: float, sent: int, bandwidth: float, processes: int) -> list[Scaling]:
    """Returns speed-ups of synchronous data parallelism for 1..`processes`.

    Args:
        seconds: of a step of one process.
        serial: part of them that every process does in full: the optimizer's step, and what starts a pass.
        sent: bytes of gradients.
        bandwidth: bytes per second of an all-reduce, as one process sends them.
        processes: the most.
    """
    found = []
    for n in _numbers(processes):
        exchange = 2 * (n - 1) / n * sent / bandwidth
        found.append(Scaling(
            n,
            amdahl=seconds / (serial + (seconds - serial) / n + exchange),
            gustafson=(serial + n * (seconds - serial)) / (seconds + exchange),
        ))  # fmt: skip
    return found


def _numbers(most: int) -> Sequence[int]:
    """1, 2, 4 and so on, and the last one."""
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})
