"""Searches for the cheapest settings and the fastest splits with which a run fits; the rows per step stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from toolkit.api.mesh import SIZES, Mesh
from toolkit.base.errors import ConfigError, ToolkitError
from toolkit.checks.check import Case
from toolkit.checks.model import context_problems, expert_problems, pipeline_problems, tensor_problems
from toolkit.config.sections import Config
from toolkit.footprint.simulate import Footprint, Subject, simulate
from toolkit.lab.jobs.strategies import Technique, offloaded, plain_settings, techniques, window_settings
from toolkit.lab.plan.estimates import estimated
from toolkit.lab.plan.subject import resized
from toolkit.models import chunked
from toolkit.models.adapters import adapter_problems
from toolkit.models.unpadded.families import choose
from toolkit.optim.optimizers import argument_problems, library_problems
from toolkit.optim.presets import PRESETS

HALVING = 0.3
"""Cost of halving the rows of a micro-batch: the same results, somewhat slower."""
SWITCHES: tuple[tuple[tuple[float, str], ...], ...] = (
    ((1.0, "train.mixed_precision=bf16"),),
    ((1.2, "train.activation_checkpointing=full"),),
    ((2.0, "train.optim=adamw_bnb_8bit"), (2.5, "train.optim=adafactor")),
    ((6.0, "model.peft.method=lora"),),
)
"""Groups of mutually exclusive overrides with their cost in speed and quality: bf16 rounds, recomputing activations
takes a third more time, 8-bit Adam and Adafactor are different optimizers, and LoRA trains other weights."""


Load = Callable[[Sequence[str]], Config]
"""Returns the configuration with further overrides; raises ConfigError if they are invalid."""


@dataclass(frozen=True)
class Fit:
    """Overrides to add to the command line, and the memory that a step then needs."""

    overrides: tuple[str, ...]
    footprint: Footprint


def smallest_fit(subject: Subject, load: Load, capacity: int, peak: Callable[[Footprint], int]) -> tuple[Fit, bool]:
    """Returns the cheapest switches with which the peak fits, and True; else those with the least, and False."""
    tries = _Tries(subject, load)
    best: Fit | None = None
    hopeless: set[tuple[str, ...]] = set()
    too_large: set[tuple[str, ...]] = set()
    for switches, rows in _candidates(subject):
        # Undivided micro-batches come first: accumulated gradients can need more memory than fewer rows save.
        if _of_states(switches) in too_large or (switches in hopeless and rows < subject.rows):
            continue
        found = tries.fit(switches, rows)
        if found is None:
            continue
        if peak(found.footprint) <= capacity:
            return found, True
        least = tries.fit(switches, 1) or found
        if peak(least.footprint) > capacity:
            hopeless.add(switches)
        if peak(replace(found.footprint, peak=found.footprint.states)) > capacity:  # even without activations
            too_large.add(_of_states(switches))
        best = min([*([best] if best else []), found, least], key=lambda fit: peak(fit.footprint))
    if best is None:
        raise AssertionError("the configuration itself was rejected")
    states = _of_states(best.overrides)
    for switches in {switches for switches, _ in _candidates(subject) if _of_states(switches) == states}:
        smallest = tries.fit(switches, 1)
        if smallest is not None and peak(smallest.footprint) < peak(best.footprint):
            best = smallest
    return best, False


class _Tries:
    """Simulates a training step with further switches, and caches the results."""

    def __init__(self, subject: Subject, load: Load) -> None:
        self.subject, self.load = subject, load
        self.done: dict[tuple[str, ...], Fit | None] = {}

    def fit(self, switches: tuple[str, ...], rows: int) -> Fit | None:
        """Returns the memory of a step, or None if the switches are invalid together, here, or with this model."""
        overrides = (*switches, *_smaller(self.subject, rows))
        if overrides not in self.done:
            try:
                cfg = self.load(overrides)
                missing = library_problems(cfg.train) + argument_problems(cfg.train) + adapter_problems(cfg.model)
                self.done[overrides] = None if missing else Fit(overrides, simulate(resized(self.subject, cfg)))
            except ToolkitError:
                self.done[overrides] = None
        return self.done[overrides]


def _of_states(overrides: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides that change the memory between two steps."""
    return tuple(text for text in overrides if text.startswith(("train.optim=", "model.peft.")))


def _candidates(subject: Subject) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yields sets of switches with rows per micro-batch, the cheapest first."""
    cfg, rows = subject.cfg, subject.rows
    if cfg.train.max_tokens_per_batch is None:
        sizes = [size for size in range(rows, 0, -1) if rows % size == 0]
    else:
        sizes = [rows >> halvings for halvings in range(rows.bit_length())]
    found = [
        (cost + HALVING * (rows // size - 1).bit_length(), switches, size)
        for cost, switches in switch_sets(cfg)
        for size in sizes
    ]
    for _, switches, size in sorted(found, key=lambda candidate: candidate[0]):
        yield switches, size


def switch_sets(cfg: Config) -> list[tuple[float, tuple[str, ...]]]:
    """Returns sets of overrides that save memory with their cost, the cheapest first: no override."""
    choices = [[(0.0, ""), *(each for each in group if _changes(cfg, each[1]))] for group in SWITCHES]
    sets = product(*choices)
    found = [(sum(cost for cost, _ in picked), tuple(text for _, text in picked if text)) for picked in sets]
    return sorted(found, key=lambda each: each[0])


def _changes(cfg: Config, override: str) -> bool:
    """Returns whether an override changes the configuration and is worth trying."""
    key, _, value = override.partition("=")
    if key == "train.mixed_precision":
        return cfg.train.mixed_precision in (None, "no")
    if key == "train.activation_checkpointing":
        return cfg.train.activation_checkpointing != value
    if key == "train.optim":
        return PRESETS[value].state_bytes < PRESETS[cfg.train.optim].state_bytes
    # Adapters beside untrained weights would learn little.
    return cfg.model.peft.method == "none" and cfg.model.from_config is None


def _smaller(subject: Subject, rows: int) -> tuple[str, ...]:
    """Returns the overrides for smaller micro-batches with as much more accumulation, or for a smaller token budget."""
    train = subject.cfg.train
    if rows == subject.rows:
        return ()
    if train.max_tokens_per_batch is not None:
        return (f"train.max_tokens_per_batch={rows * subject.longest}",)
    accumulation = train.accumulation * train.micro_batch // rows
    smaller = (f"train.per_device_train_batch_size={rows}", f"train.gradient_accumulation_steps={accumulation}")
    return smaller if train.global_batch_size is None else smaller[:1]


SIZED = {"tensor": tensor_problems, "context": context_problems, "pipeline": pipeline_problems,
         "expert": expert_problems}  # fmt: skip
"""What rules a dimension of processes out for a model, by its name."""


@dataclass(frozen=True)
class Strategy:
    """A parallel strategy and its estimated costs."""

    name: str  # common name
    memory: int  # bytes on the device that needs the most, at the peak of a step
    states: int  # bytes that it holds between two steps
    sent: int  # bytes that a device sends per optimizer step, on average
    speed: float  # rows per second relative to one device, if communication took no time
    complexity: str = ""  # how hard it is to use
    when: str = ""  # when to use it
    overrides: Sequence[str] = ()  # its settings, with those that keep the rows of a step
    waiting: float = 0.0  # share of a step in which a stage of a pipeline waits
    seconds: float = 0.0  # time of a step on `toolkit.lab.plan.estimates.MACHINE`
    sizes: Mapping[str, int] = field(default_factory=dict)  # the dimensions of its processes

    @property
    def passing(self) -> int:
        """Bytes at the peak beyond `states`."""
        return max(0, self.memory - self.states)


class Planner:
    """Estimates strategies for a step of the same rows as with data parallelism, from the step of a single device.

    `load` takes settings of `parallel` and those that keep the rows; `case` is what was checked, if it was.
    """

    def __init__(self, subject: Subject, processes: int, load: Load, case: Case | None = None) -> None:
        self.subject, self.cfg, self.processes, self.load = subject, subject.cfg, processes, load
        train = self.cfg.train
        self.rows = train.global_batch_size or train.micro_batch * train.accumulation * processes
        self._case = case or Case(self.cfg, lambda _: subject.task)
        self._problems: dict[tuple[str, str | None], list[str]] = {}
        self._footprints: dict[tuple[int | bool | str, ...], Footprint] = {}

    def footprint(self, cfg: Config) -> Footprint:
        """Returns what a micro-batch of a split needs on a single device."""
        step = resized(self.subject, cfg)
        unpadded = not step.fused_attention and choose(cfg, step.config, step.device)
        kind = (step.rows, step.window > 1, chunked.is_chosen(cfg, step.config), unpadded)
        if kind not in self._footprints:
            self._footprints[kind] = simulate(step)
        return self._footprints[kind]

    def strategies(self, splits: Sequence[Strategy]) -> tuple[list[Strategy], dict[str, str]]:
        """Returns the strategies, the single device first, and the reasons against others by name.

        Of hybrid and 3D splits, it is the first of `splits`.
        """
        f = self.footprint(self.cfg)
        found = [Strategy("single device", f.peak, f.states, 0, 1.0, "none", "it fits, and is fast enough")]
        refused: dict[str, str] = {}
        for technique in (*techniques(self.processes), offloaded(self.processes)) if self.processes > 1 else ():
            if best := next((split for split in splits if split.name == technique.name), None):
                found.append(replace(best, complexity=technique.complexity, when=technique.when))
                continue
            if technique.processes != self.processes:
                refused[technique.name] = f"needs {technique.processes} processes"
                continue
            try:
                found.append(self.estimate(technique))
            except ConfigError as error:
                refused[technique.name] = "; ".join(error.problems)
        return found, refused

    def estimate(self, technique: Technique) -> Strategy:
        """Returns the costs of a strategy; raises ConfigError if the model or a setting rules it out."""
        settings = plain_settings(self.cfg) | dict(technique.settings)
        for name in SIZED:  # what other splits have shown, before any further check
            self._refuse(name, settings.get(f"parallel.{name}"))
        settings |= window_settings(self.cfg, technique, self.rows)
        overrides = [f"{key}={value}" for key, value in settings.items()]
        cfg = self.load(overrides)
        self._case.cfg = cfg  # of the same model, whose configuration was loaded
        for name, problems in SIZED.items():
            size = settings.get(f"parallel.{name}")
            if (name, size) not in self._problems:
                self._problems[name, size] = problems(self._case)
            self._refuse(name, size)
        costs = estimated(self.footprint(cfg), cfg, self.processes)
        return Strategy(
            technique.name, costs.peak, costs.states, costs.sent, costs.speed, technique.complexity, technique.when,
            overrides, costs.waiting, costs.seconds, Mesh.of(cfg.parallel, self.processes).sizes,
        )  # fmt: skip

    def _refuse(self, name: str, size: str | None) -> None:
        if found := self._problems.get((name, size)):
            raise ConfigError(found)

    def splits(self, offloaded: bool = False) -> list[Strategy]:
        """Returns all splits of the model over the processes, or all with offloading, the fastest first."""
        found = []
        for settings in _splits(self.processes, offloaded, has_experts=self.footprint(self.cfg).experts > 0):
            with suppress(ConfigError):  # not a way to train this model
                found.append(self.estimate(Technique(_kind(settings), self.processes, settings, "", "")))
        return sorted(found, key=lambda split: (split.seconds, split.memory))


def _splits(processes: int, offloaded: bool, has_experts: bool) -> Iterator[dict[str, str]]:
    """Yields the settings of ZeRO-1 and 2, and of every product of sizes, or of those with FSDP2 and offloading."""
    divisors = [size for size in range(1, processes + 1) if processes % size == 0]
    if not offloaded:
        yield from ({"parallel.zero_stage": stage} for stage in "12")
        for expert, fsdp in product(divisors[1:] if has_experts else (), divisors):
            of_data = {"expert": expert, "fsdp": fsdp, "replicas": processes // fsdp}
            yield {f"parallel.{name}": str(size) for name, size in of_data.items() if size > 1}
    for sizes in product(divisors, repeat=4):
        named = dict(zip(SIZES[1:], sizes, strict=True))
        if processes % prod(sizes) or min(named["context"], named["pipeline"]) > 1:
            continue
        settings = {f"parallel.{name}": str(size) for name, size in named.items() if size > 1}
        if settings and prod(sizes) < processes:
            settings = {"parallel.replicas": str(processes // prod(sizes))} | settings
        if not offloaded or named["fsdp"] > 1:
            yield settings | ({"parallel.offload": "true"} if offloaded else {})


KINDS = {
    "": "DDP",
    "context": "context",
    "fsdp": "FSDP2 (ZeRO-3)",
    "fsdp replicas": "HSDP",
    "expert replicas": "expert",
    "tensor": "tensor",
    "pipeline": "pipeline, 1F1B",
}
"""Names of splits by their dimensions, as in `toolkit.lab.jobs.strategies.techniques`."""


def _kind(settings: Mapping[str, str]) -> str:
    """Returns the common name of a split."""
    ways = sorted({key.removeprefix("parallel.") for key in settings} - {"offload", "zero_stage"})
    if stage := settings.get("parallel.zero_stage"):
        return f"ZeRO-{stage}"
    name = KINDS.get(" ".join(ways), f"{len({'data' if each in ('fsdp', 'replicas') else each for each in ways})}D")
    return f"{name.partition(' ')[0]}, offload" if "parallel.offload" in settings else name


@dataclass(frozen=True)
class Splits:
    """The splits of a model that fit devices."""

    switches: Sequence[str]  # further settings of all
    fitting: Sequence[Strategy]  # those that fit, the fastest first
    smallest: Strategy  # the one that needs the least memory


def fitting_splits(
    choices: Iterable[tuple[Sequence[str], Sequence[Strategy]]], capacity: int, peak: Callable[[Strategy], int]
) -> Splits:
    """Finds the splits that fit devices of `capacity` bytes; `peak` returns the bytes that a split needs there.

    `choices` are further settings and the splits with them; the first are taken with which one fits.
    """
    tried = []
    for switches, splits in choices:
        found = [replace(split, memory=peak(split)) for split in splits]
        if fitting := [split for split in found if split.memory <= capacity]:
            return Splits(switches, fitting, min(fitting, key=lambda split: split.memory))
        if found:
            tried.append((switches, min(found, key=lambda split: split.memory)))
    switches, smallest = min(tried, key=lambda each: each[1].memory)
    return Splits(switches, [], smallest)
