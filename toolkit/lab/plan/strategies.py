"""Estimates memory per device, communication and speed of parallel strategies.

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
    """A parallel strategy and its estimated costs.

    Args:
        name: common name.
        memory: bytes on the device that needs the most.
        sent: bytes that a device sends per optimizer step, on average.
        speed: rows per second relative to one device, if communication took no time.
        complexity: how hard it is to use.
        when: when to use it.
    """

    name: str
    memory: int
    sent: int
    speed: float
    complexity: str
    when: str


def strategies(footprint: Footprint, train: TrainConfig, processes: int) -> list[Strategy]:
    """Returns the strategies for `processes` processes with one device and one full micro-batch each.

    Args:
        footprint: memory of a step on a single device.
        train: settings, for accumulation and local SGD.
        processes: number of devices n; for 1, only the single device is returned.
    """
    f, n = footprint, processes
    found = [Strategy("single device", f.peak, 0, 1.0, "none", "it fits, and is fast enough")]
    if n == 1:
        return found
    ring, away = 2 * (n - 1) / n, (n - 1) / n
    window = train.gradient_accumulation_steps or 1
    layers, across = max(1, f.layers), f.crossing
    outer = 2 * f.gradients if train.local_sgd_outer_lr is not None else 0
    averaged = f.gradients + (f.optimizer_state if train.local_sgd_average_moments else 0)
    # Tensor parallelism does not shard the tensors that pass from layer to layer.
    unsharded = min(across, f.activations)
    in_flight = min(window, n)
    # Gradients are exchanged once per window; until then, sharded models accumulate complete ones.
    shared = away if window == 1 else 0.0
    found += [
        Strategy("DDP", f.peak + f.gradients, round(ring * f.gradients), n, "low",
                 "it fits one device: the usual choice"),
        Strategy(f"local SGD (every {train.local_sgd_steps})", _held(f) + outer,
                 round(ring * averaged / train.local_sgd_steps), n, "low; another algorithm",
                 "the network is slow"),
        Strategy("ZeRO-1", _held(f, optimizer=away), round(ring * f.gradients), n, "medium",
                 "the optimizer's state is what does not fit"),
        Strategy("ZeRO-2", _held(f, optimizer=away, gradients=shared), round(away * (f.parameters + f.gradients)), n,
                 "medium", "gradients do not fit either"),
        Strategy("FSDP / ZeRO-3", _held(f, away, shared, away) + min(f.parameters, 2 * f.layer_parameters),
                 round(away * (2 * window * f.parameters + f.gradients)), n, "medium",
                 "the weights do not fit; needs a fast network"),
        Strategy("tensor parallel", _held(f, away, away, away, round((f.activations - unsharded) * away)),
                 round(ring * (6 if f.recomputed else 4) * across * window), n, "high; per architecture",
                 "one layer does not fit; devices are closely linked"),
        Strategy("pipeline parallel", _held(f, away, away, away, round(f.activations * (1 - in_flight / n))),
                 2 * f.boundary * window, n * window / (window + n - 1), "high; needs accumulation",
                 "layers fit, the model does not; the network is slow"),
    ]  # fmt: skip
    return found if layers > 1 else found[:-2]


def _held(
    f: Footprint, parameters: float = 0.0, gradients: float = 0.0, optimizer: float = 0.0, activations: int = 0
) -> int:
    """Returns the peak in bytes of a device that holds only parts of a single device's memory.

    Without all gradients, the peak may move to the beginning of the backward pass.

    Args:
        f: memory of a step on a single device.
        parameters: share of the weights that the device does not hold.
        gradients: share of the gradients that it does not hold.
        optimizer: share of the optimizer's state and copies of weights that it does not hold.
        activations: bytes of activations that it does not hold.
    """
    states = f.states - parameters * f.parameters - optimizer * (f.optimizer_state + f.copies)
    copies = parameters * f.weight_copies
    late = f.gradients_at_peak > f.gradients / 2  # weight copies are freed as gradients are created
    passing = f.passing - gradients * f.gradients_at_peak - activations - (0 if late else copies)
    turning = f.activations + f.logits + f.batch + f.weight_copies - copies - activations
    stepping = f.step_peak - f.states - gradients * f.gradients
    return round(states + max(0.0, passing, turning, stepping))


@dataclass(frozen=True)
class Scaling:
    """Speed-up of n processes over one, from measured step time and bandwidth.

    Args:
        processes: number of processes n.
        amdahl: speed-up with the same rows per step, split over the processes (Amdahl 1967).
        gustafson: speed-up with n times the rows per step, over one process that trains all of them (Gustafson 1988).
    """

    processes: int
    amdahl: float
    gustafson: float


def scaling(seconds: float, serial: float, sent: int, bandwidth: float, processes: int) -> list[Scaling]:
    """Returns speed-ups of synchronous data parallelism for 1..`processes`.

    Args:
        seconds: seconds of a step of one process.
        serial: the part of `seconds` that does not shrink with more processes, see `serial_seconds`.
        sent: bytes of gradients.
        bandwidth: bytes per second that one process sends in an all-reduce.
        processes: largest number of processes.
    """
    found = []
    for n in _powers_of_two(processes):
        exchange = 2 * (n - 1) / n * sent / bandwidth
        found.append(Scaling(
            n,
            amdahl=seconds / (serial + (seconds - serial) / n + exchange),
            gustafson=(serial + n * (seconds - serial)) / (seconds + exchange),
        ))  # fmt: skip
    return found


def _powers_of_two(last: int) -> Sequence[int]:
    """Returns 1, 2, 4 and so on, and `last` itself."""
    return sorted({2**power for power in range(last.bit_length()) if 2**power <= last} | {last})
