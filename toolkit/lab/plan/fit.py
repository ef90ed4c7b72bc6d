"""Searches for the cheapest settings with which a run fits a device; the rows per step stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from toolkit.base.errors import ToolkitError
from toolkit.config.sections import Config
from toolkit.footprint.simulate import Footprint, Subject, simulate
from toolkit.lab.plan.subject import resized
from toolkit.models.adapters import adapter_problems
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


@dataclass(frozen=True)
class Fit:
    """Overrides to add to the command line, and the memory that a step then needs."""

    overrides: tuple[str, ...]
    footprint: Footprint


def smallest_fit(
    subject: Subject, load: Callable[[Sequence[str]], Config], capacity: int, peak: Callable[[Footprint], int]
) -> tuple[Fit, bool]:
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

    def __init__(self, subject: Subject, load: Callable[[Sequence[str]], Config]) -> None:
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
    choices = [[(0.0, ""), *(each for each in group if _changes(cfg, each[1]))] for group in SWITCHES]
    found = []
    for picked in product(*choices):
        switches = tuple(text for _, text in picked if text)
        cost = sum(price for price, _ in picked)
        found += [(cost + HALVING * (rows // size - 1).bit_length(), switches, size) for size in sizes]
    for _, switches, size in sorted(found, key=lambda candidate: candidate[0]):
        yield switches, size


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
