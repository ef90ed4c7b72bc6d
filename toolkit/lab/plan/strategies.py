"""Compares parallel strategies and splits of a model: memory per device, communication and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from toolkit.api.task import Task
from toolkit.base.errors import ConfigError
from toolkit.checks.model import pipeline_problems, tensor_problems
from toolkit.config.sections import Config
from toolkit.footprint.simulate import Footprint
from toolkit.lab.jobs.strategies import Technique, offloaded, plain_settings, techniques, window_settings
from toolkit.lab.plan.estimates import Estimate, estimated


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
        overrides: its settings, with those that keep the rows of a step.
    """

    name: str
    memory: int
    sent: int
    speed: float
    complexity: str
    when: str
    overrides: Sequence[str] = ()


Load = Callable[[Sequence[str]], Config]
"""Returns the configuration with further overrides; raises ConfigError if they are invalid."""


class Planner:
    """Estimates strategies for one configuration; every step has the same rows as with data parallelism.

    Args:
        footprint: memory of a step on a single device.
        task: the recipe's task.
        cfg: the configured settings.
        processes: number of processes, with one device each.
        load: loads variants of the configuration.
    """

    def __init__(self, footprint: Footprint, task: Task, cfg: Config, processes: int, load: Load) -> None:
        self.footprint, self.task, self.cfg, self.processes, self.load = footprint, task, cfg, processes, load
        self.rows = cfg.train.per_device_train_batch_size * (cfg.train.gradient_accumulation_steps or 1) * processes
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
        """Returns the overrides and the costs of a strategy.

        Raises:
            ConfigError: if the model or a setting does not allow it.
        """
        settings = plain_settings(self.cfg) | dict(technique.settings)
        settings |= window_settings(self.cfg, technique, self.rows)
        overrides = [f"{key}={value}" for key, value in settings.items()]
        cfg = self.load(overrides)
        split = (cfg.parallel.tensor, cfg.parallel.pipeline)
        if split not in self._problems:
            self._problems[split] = [*tensor_problems(cfg, self.task), *pipeline_problems(cfg, self.task)]
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
    """The splits of a model that fit devices.

    Args:
        fitting: those that fit; without offloading first, then those that send the least.
        smallest: the one that needs the least memory.
    """

    fitting: Sequence[Strategy]
    smallest: Strategy


def fitting_splits(planner: Planner, capacity: int, peak: Callable[[Estimate], int]) -> Splits:
    """Finds the splits that fit.

    Args:
        planner: the configuration and the number of processes.
        capacity: memory of each device in bytes.
        peak: returns the bytes that an estimate needs on these devices.
    """
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
