"""Estimates what a process holds and sends if a model is trained by several, from its footprint on one device.

Sources: all-reduces, which send twice the share of `share_sent` (Patarasuk and Yuan 2009); local SGD (Stich 2018, arXiv
1805.09767); ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), whose third stage is FSDP (Zhao et al. 2023, arXiv
2304.11277); tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053); pipelines (Huang et al. 2018, arXiv 1811.06965)
in the order 1F1B (Narayanan et al. 2020, arXiv 2006.09503).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from toolkit.api.mesh import Mesh
from toolkit.api.task import Task
from toolkit.base.errors import ConfigError
from toolkit.checks.check import Case
from toolkit.checks.model import pipeline_problems, tensor_problems
from toolkit.config.sections import Config
from toolkit.data.batching.budget import num_micro_batches
from toolkit.distributed.exchange import share_sent
from toolkit.distributed.pipeline.partition import partition
from toolkit.distributed.pipeline.schedules import CHUNKS, SCHEDULES
from toolkit.distributed.tensor.vocabulary import divides
from toolkit.footprint.simulate import Footprint
from toolkit.lab.jobs.strategies import Technique, offloaded, plain_settings, techniques, window_settings


@dataclass(frozen=True)
class Estimate:
    """What a strategy costs."""

    parameters: int  # bytes of weights and buffers of the process that holds the most
    gradients: int  # bytes of its gradients after a window; before, they may be complete
    optimizer_state: int  # bytes of its optimizer's state
    peak: int  # bytes of its tensors at the peak of a step
    states: int  # bytes that it holds between two steps
    sent: int  # bytes that a process sends per step, on average over processes
    speed: float  # rows per second relative to one device, if communication took no time

    @property
    def passing(self) -> int:
        """Bytes at the peak beyond `states`."""
        return max(0, self.peak - self.states)


def estimated(f: Footprint, cfg: Config, processes: int) -> Estimate:
    """Estimates the costs of a configuration for each of several processes, from its footprint on a single device."""
    mesh, parallel, window = Mesh.of(cfg.parallel, processes), cfg.parallel, num_micro_batches(cfg.train, f.rows)
    replica = max(_stages(f, mesh, parallel.schedule)) / f.parameters  # share of the weights, gathered if they are
    own = (replica + (mesh.fsdp - 1) * f.single_rows / f.parameters) / mesh.fsdp
    state = max(1 / processes, f.largest / f.parameters) if parallel.zero_stage == 1 else own
    # Unless gradients of shards are exchanged in each micro-batch, they are complete until the window's end.
    accumulated = replica if window > 1 and not _synced(cfg) else own
    spared = f.activations - _activations(f, mesh, parallel.schedule, window)
    held = (0.0, accumulated if window > 1 else 0.0, 0.0) if parallel.offload else (own, accumulated, state)
    chunks, logits = _chunks(parallel.schedule, mesh), f.logits / (_vocabulary(f, mesh) * mesh.context)
    if mesh.fsdp > 1:
        early = (held[1] * f.gradients if window > 1 else 0.0) + f.activations - spared + logits + f.batch
        states = f.states - (1 - held[0]) * f.parameters - (1 - held[2]) * (f.optimizer_state + f.copies)
        peak = states + max(early, held[1] * f.gradients, f.step_peak - f.states - (1 - held[1]) * f.gradients)
    else:
        peak = _peak(f, replica, *held, spared, logits)
    return Estimate(
        parameters=round(own * f.parameters) + f.buffers,
        gradients=round(own * f.gradients),
        optimizer_state=round(state * f.optimizer_state),
        peak=round(peak + _copies(f, cfg, mesh, replica)),
        states=round(f.buffers + held[0] * f.parameters + held[2] * (f.optimizer_state + f.copies)),
        sent=round(_sent(f, cfg, mesh)),
        speed=processes * window * chunks / (window * chunks + mesh.pipeline - 1),
    )


def _gathers_16_bits(cfg: Config, mesh: Mesh) -> bool:
    """Returns whether shards are gathered in 16 bits, so that no other copies of weights are made."""
    return mesh.fsdp > 1 and cfg.train.mixed_precision == "bf16"


def _chunks(schedule: str, mesh: Mesh) -> int:
    return CHUNKS.get(schedule, 1) if mesh.pipeline > 1 else 1


def _vocabulary(f: Footprint, mesh: Mesh) -> int:
    """Returns the number of processes over which the vocabulary is split."""
    split = f.vocabulary_rows and divides(f.vocabulary_rows, mesh.tensor, mesh.fsdp)
    return mesh.tensor if split else 1


def _stages(f: Footprint, mesh: Mesh, schedule: str) -> list[float]:
    """Returns the bytes of the weights of each stage, of which tensor ranks hold a part; shards count as gathered."""
    spared, of_vocabulary = 1 - 1 / mesh.tensor, 1 - 1 / _vocabulary(f, mesh)
    if mesh.pipeline == 1:
        return [f.parameters - spared * f.tensor_parameters - of_vocabulary * f.vocabulary_parameters]
    in_layers = 1 - spared * f.tensor_parameters / sum(f.stage_layers)
    ranges = partition(f.stage_costs, mesh.pipeline * _chunks(schedule, mesh))
    held = [
        in_layers * sum(f.stage_layers[layer] for stage in ranges[rank :: mesh.pipeline] for layer in stage)
        for rank in range(mesh.pipeline)
    ]
    held[0] += f.stage_front - of_vocabulary * f.vocabulary_front
    held[-1] += f.stage_back - of_vocabulary * f.vocabulary_back
    return held


def _activations(f: Footprint, mesh: Mesh, schedule: str, window: int) -> float:
    """Returns the bytes of the activations that the first stage keeps, where the most micro-batches are under way."""
    # Tensor parallelism does not split what passes from layer to layer.
    complete = min(f.crossing, f.activations)
    kept = complete + (f.activations - complete) / mesh.tensor
    if mesh.pipeline == 1:
        return kept / mesh.context
    chunks, under_way, most = _chunks(schedule, mesh), 0, 0
    actions = SCHEDULES[schedule](0, mesh.pipeline, chunks, window)
    frees = actions[-1].kind  # backward passes, or those for weights, if they are separate
    for action in actions:
        under_way += (action.kind == "forward") - (action.kind == frees)
        most = max(most, under_way)
    return kept * most / (mesh.pipeline * chunks)


def _peak(
    f: Footprint, replica: float, parameters: float, gradients: float, state: float, spared: float, logits: float
) -> int:
    """Returns the peak in bytes of a process that holds only these shares of a single device's memory.

    `replica` is the share of weights that it computes with, `parameters` that it holds between two steps; `spared` are
    bytes of activations that it does not hold. Without all gradients, the peak may move to the backward pass's start.
    """
    states = f.states - (1 - parameters) * f.parameters - (1 - state) * (f.optimizer_state + f.copies)
    copies = (1 - replica) * f.weight_copies
    late = f.gradients_at_peak > f.gradients / 2  # weight copies are freed as gradients are created
    passing = f.passing - (1 - gradients) * f.gradients_at_peak - spared - (0 if late else copies)
    turning = f.activations + logits + f.batch + f.weight_copies - copies - spared
    stepping = f.step_peak - f.states - (1 - gradients) * f.gradients
    return round(states + max(0.0, passing, turning, stepping))


def _copies(f: Footprint, cfg: Config, mesh: Mesh, replica: float) -> int:
    """Returns the bytes that a strategy needs in addition, given the share of the weights when they are gathered."""
    parallel, train = cfg.parallel, cfg.train
    if mesh.fsdp > 1:
        if parallel.zero_stage == 2 or not parallel.reshard_after_forward:
            return round(replica * f.parameters)
        # Of a layer, or of all that is in none: gathered, flat and in parts, one ahead of its use; its gradient, and
        # what is sent of it. Of the other one, a gathered copy.
        parts = sorted((f.layer_parameters, f.parameters - f.layers * f.layer_parameters))
        width, times = (0.5, 2.5) if _gathers_16_bits(cfg, mesh) else (1.0, 4.0)
        return round(replica * min(f.parameters, (times + 1 / mesh.fsdp) * parts[1] + width * parts[0]))
    if mesh.is_split or mesh.size == 1:
        return 0
    if train.strategy == "local_sgd":
        return 2 * f.gradients if train.local_sgd_outer_lr is not None else 0
    return f.gradients  # the buckets of DistributedDataParallel


def _synced(cfg: Config) -> bool:
    return cfg.parallel.gradient_sync == "micro_batch"


def _sent(f: Footprint, cfg: Config, mesh: Mesh) -> float:
    """Returns the bytes that a process sends per step, on average over processes."""
    parallel, train, window = cfg.parallel, cfg.train, num_micro_batches(cfg.train, f.rows)
    away, all_reduced = share_sent(mesh.fsdp), 2 * (share_sent(mesh.replicas) + share_sent(mesh.context))
    if not mesh.is_split:
        if train.strategy == "local_sgd":
            moments = f.optimizer_state if train.local_sgd_average_moments else 0
            return all_reduced * (f.gradients + moments) / train.local_sgd_steps
        updated = f.gradients if parallel.zero_stage == 1 else 0  # each owner sends its weights to all
        return all_reduced * (f.gradients + (f.buffers + updated) / 2)
    stages = _stages(f, mesh, parallel.schedule)
    weights = sum(stages) / mesh.pipeline
    gradients = weights * f.gradients / f.parameters
    keeps = parallel.zero_stage == 2 or not parallel.reshard_after_forward
    # Collectives of shards have the same size on every process, so what has a single row is padded.
    padded = 1 + (mesh.fsdp - 1) * f.single_rows / f.parameters
    times = 1.0 if keeps else 2.0 * window
    times, exchanges = times / 2 if _gathers_16_bits(cfg, mesh) else times, window if _synced(cfg) else 1
    gathered = away * (times * weights + exchanges * gradients) * padded
    sums = f.tensor_summed + (f.vocabulary_summed if _vocabulary(f, mesh) > 1 else 0)
    summed = 2 * share_sent(mesh.tensor) * sums * window / mesh.pipeline
    passed = 0.0
    if mesh.pipeline > 1:
        tied = (f.stage_front + sum(f.stage_layers) + f.stage_back - f.parameters) / _vocabulary(f, mesh)
        borders = mesh.pipeline * _chunks(parallel.schedule, mesh) - 1
        passed = 2 * (borders * f.boundary * window + tied) / mesh.pipeline
    return gathered + all_reduced * gradients / mesh.fsdp + summed + passed


@dataclass(frozen=True)
class Strategy:
    """A parallel strategy and its estimated costs."""

    name: str  # common name
    memory: int  # bytes on the device that needs the most
    sent: int  # bytes that a device sends per optimizer step, on average
    speed: float  # rows per second relative to one device, if communication took no time
    complexity: str  # how hard it is to use
    when: str  # when to use it
    overrides: Sequence[str] = ()  # its settings, with those that keep the rows of a step


Load = Callable[[Sequence[str]], Config]
"""Returns the configuration with further overrides; raises ConfigError if they are invalid."""


class Planner:
    """Estimates strategies for one configuration; every step has the same rows as with data parallelism."""

    def __init__(self, footprint: Footprint, task: Task, cfg: Config, processes: int, load: Load) -> None:
        self.footprint, self.task, self.cfg, self.processes, self.load = footprint, task, cfg, processes, load
        self.rows = cfg.train.global_batch_size or cfg.train.micro_batch * cfg.train.accumulation * processes
        self._problems: dict[tuple[int, int], list[str]] = {}

    def strategies(self) -> tuple[list[Strategy], dict[str, str]]:
        """Returns the strategies, the single device first, and the reasons against others by name."""
        f = self.footprint
        found = [Strategy("single device", f.peak, 0, 1.0, "none", "it fits, and is fast enough")]
        refused: dict[str, str] = {}
        for technique in (*techniques(self.processes), offloaded(self.processes)) if self.processes > 1 else ():
            if technique.processes != self.processes:
                refused[technique.name] = f"needs {technique.processes} processes"
                continue
            try:
                overrides, costs = self.estimate(technique)
            except ConfigError as error:
                refused[technique.name] = "; ".join(error.problems)
                continue
            found.append(Strategy(
                technique.name, costs.peak, costs.sent, costs.speed, technique.complexity, technique.when, overrides
            ))  # fmt: skip
        return found, refused

    def estimate(self, technique: Technique) -> tuple[list[str], Estimate]:
        """Returns the overrides and costs of a strategy; raises ConfigError if the model or a setting rules it out."""
        settings = plain_settings(self.cfg) | dict(technique.settings)
        settings |= window_settings(self.cfg, technique, self.rows)
        overrides = [f"{key}={value}" for key, value in settings.items()]
        cfg = self.load(overrides)
        split = (cfg.parallel.tensor, cfg.parallel.pipeline)
        if split not in self._problems:
            case = Case(cfg, lambda _: self.task)
            self._problems[split] = [*tensor_problems(case), *pipeline_problems(case)]
        if self._problems[split]:
            raise ConfigError(self._problems[split])
        return overrides, estimated(self.footprint, cfg, self.processes)

    def splits(self) -> list[tuple[list[str], Estimate]]:
        """Returns the overrides and costs of all splits of the model over the processes; see `_splits`."""
        found = []
        for settings in _splits(self.processes):
            try:
                found.append(self.estimate(Technique("", self.processes, settings, "", "")))
            except ConfigError:  # not a way to train this model
                continue
        return found


def _splits(processes: int) -> Iterator[dict[str, str]]:
    """Yields the settings of ZeRO-1 and 2, and of every product of sizes, FSDP2 also with offloading."""
    yield {"parallel.zero_stage": "1"}
    yield {"parallel.zero_stage": "2"}
    divisors = [size for size in range(1, processes + 1) if processes % size == 0]
    for sizes in product(divisors, repeat=3):
        if processes % prod(sizes):
            continue
        named = dict(zip(("fsdp", "tensor", "pipeline"), sizes, strict=True))
        settings = {f"parallel.{name}": str(size) for name, size in named.items() if size > 1}
        if settings and prod(sizes) < processes:
            settings = {"parallel.replicas": str(processes // prod(sizes))} | settings
        yield settings
        if named["fsdp"] > 1:
            yield settings | {"parallel.offload": "true"}


@dataclass(frozen=True)
class Splits:
    """The splits of a model that fit devices."""

    fitting: Sequence[Strategy]  # those that fit; without offloading first, then those that send the least
    smallest: Strategy  # the one that needs the least memory


def fitting_splits(planner: Planner, capacity: int, peak: Callable[[Estimate], int]) -> Splits:
    """Finds the splits that fit devices of `capacity` bytes; `peak` returns the bytes that an estimate needs there."""
    found = [
        Strategy(_shown(overrides), peak(costs), costs.sent, costs.speed, "", "", overrides)
        for overrides, costs in planner.splits()
    ]
    found.sort(key=lambda split: ("parallel.offload=true" in split.overrides, split.sent, split.memory))
    return Splits([s for s in found if s.memory <= capacity], min(found, key=lambda split: split.memory))


def _shown(overrides: Sequence[str]) -> str:
    sizes = [text.removeprefix("parallel.") for text in overrides if text.startswith("parallel.")]
    return " ".join(sizes) or "DDP"


@dataclass(frozen=True)
class Scaling:
    """Speed-up of n processes over one, from measured step time and bandwidth."""

    processes: int  # number of processes n
    amdahl: float  # speed-up with the same rows per step, split over the processes (Amdahl 1967)
    # speed-up with n times the rows per step, over one process that trains all of them (Gustafson 1988)
    gustafson: float


def scaling(seconds: float, serial: float, sent: int, bandwidth: float, processes: int) -> list[Scaling]:
    """Returns speed-ups of synchronous data parallelism for 1, 2, 4 and so on, and `processes`.

    `seconds` are those of a step of one process, of which the part `serial` does not shrink; `sent` are bytes of
    gradients, `bandwidth` bytes per second that one process sends in an all-reduce.
    """
    found = []
    for n in sorted({*(2**power for power in range(processes.bit_length())), processes}):
        exchange = 2 * (n - 1) / n * sent / bandwidth
        found.append(Scaling(
            n,
            amdahl=seconds / (serial + (seconds - serial) / n + exchange),
            gustafson=(serial + n * (seconds - serial)) / (seconds + exchange),
        ))  # fmt: skip
    return found
