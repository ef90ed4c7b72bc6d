"""The smallest set of switches with which a run fits a device, the rows of a step staying the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from toolkit.base.errors import ToolkitError
from toolkit.config.sections import Config
from toolkit.footprint.footprint import Footprint
from toolkit.footprint.simulate import Subject, simulate
from toolkit.lab.plan.subject import resized
from toolkit.models.adapter_checks import adapter_problems
from toolkit.optim.optimizers import argument_problems, library_problems
from toolkit.optim.presets import PRESETS

HALVING = 0.3
"""Cost of half as many rows in a micro-batch: the same numbers, somewhat slower."""
SWITCHES: tuple[tuple[tuple[float, str], ...], ...] = (
    ((1.0, "train.mixed_precision=bf16"),),
    ((1.2, "train.activation_checkpointing=full"),),
    ((2.0, "train.optim=adamw_bnb_8bit"), (2.5, "train.optim=adafactor")),
    ((6.0, "model.peft.method=lora"),),
)
"""Mutually exclusive overrides, ordered by their cost in speed and quality: bf16 rounds, recomputed activations add a
third to the time, 8-bit Adam and Adafactor are different optimizers, and LoRA trains other weights."""


@dataclass(frozen=True)
class Fit:
    """A configuration and what it needs.

    Args:
        overrides: what is to be added to the command line.
        footprint: memory under them.
    """

    overrides: tuple[str, ...]
    footprint: Footprint


def smallest_fit(
    subject: Subject, load: Callable[[Sequence[str]], Config], capacity: int, peak: Callable[[Footprint], int]
) -> tuple[Fit, bool]:
    """Looks for the cheapest set of switches that fits.

    Args:
        subject: what is planned.
        load: makes a configuration of further overrides; raises ConfigError for what cannot go together.
        capacity: bytes that there are.
        peak: bytes that a footprint needs.

    Returns:
        It, and whether it fits; if nothing does, that which needs the least.
    """
    tries = _Tries(subject, load)
    best: Fit | None = None
    hopeless: set[tuple[str, ...]] = set()
    too_large: set[tuple[str, ...]] = set()
    for switches, rows in _candidates(subject):
        # All rows at once come first: accumulated gradients can take more than the rows that are spared.
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
        if peak(replace(found.footprint, peak=found.footprint.states)) > capacity:  # whatever becomes of activations
            too_large.add(_of_states(switches))
        best = min([*([best] if best else []), found, least], key=lambda fit: peak(fit.footprint))
    if best is None:
        raise AssertionError("the configuration itself was refused")
    states = _of_states(best.overrides)
    for switches in {switches for switches, _ in _candidates(subject) if _of_states(switches) == states}:
        smallest = tries.fit(switches, 1)
        if smallest is not None and peak(smallest.footprint) < peak(best.footprint):
            best = smallest
    return best, False


class _Tries:
    """Simulations of a subject under further switches, each done once."""

    def __init__(self, subject: Subject, load: Callable[[Sequence[str]], Config]) -> None:
        self.subject, self.load = subject, load
        self.done: dict[tuple[str, ...], Fit | None] = {}

    def fit(self, switches: tuple[str, ...], rows: int) -> Fit | None:
        """Returns what a step takes; None if the switches cannot be had together, here, or with this model."""
        overrides = (*switches, *_smaller(self.subject.cfg, rows))
        if overrides not in self.done:
            try:
                cfg = self.load(overrides)
                missing = library_problems(cfg.train) + argument_problems(cfg.train) + adapter_problems(cfg.model)
                self.done[overrides] = None if missing else Fit(overrides, simulate(resized(self.subject, cfg)))
            except ToolkitError:
                self.done[overrides] = None
        return self.done[overrides]


def _of_states(overrides: Sequence[str]) -> tuple[str, ...]:
    """Those that decide what is there between two steps."""
    return tuple(text for text in overrides if text.startswith(("train.optim=", "model.peft.")))


def _candidates(subject: Subject) -> Iterator[tuple[tuple[str, ...], int]]:
    """Sets of switches with a number of rows, from the cheapest to the dearest."""
    cfg, whole = subject.cfg, subject.rows
    sizes = [size for size in range(whole, 0, -1) if whole % size == 0]
    choices = [[(0.0, ""), *(each for each in group if _changes(cfg, each[1]))] for group in SWITCHES]
    found = []
    for picked in product(*choices):
        switches = tuple(text for _, text in picked if text)
        cost = sum(price for price, _ in picked)
        found += [(cost + HALVING * _halvings(whole, size), switches, size) for size in sizes]
    found.sort(key=lambda candidate: candidate[0])
    for _, switches, size in found:
        yield switches, size


def _halvings(whole: int, size: int) -> int:
    return (whole // size - 1).bit_length()


def _changes(cfg: Config, override: str) -> bool:
    """Whether an override would change something, and make sense."""
    key, _, value = override.partition("=")
    if key == "train.mixed_precision":
        return cfg.train.mixed_precision in (None, "no")
    if key == "train.activation_checkpointing":
        return cfg.train.activation_checkpointing != value
    if key == "train.optim":
        return PRESETS[value].state_bytes < PRESETS[cfg.train.optim].state_bytes
    # Beside weights that nobody trained, adapters would learn little.
    return cfg.model.peft.method == "none" and cfg.model.from_config is None


def _smaller(cfg: Config, rows: int) -> tuple[str, ...]:
    """Overrides for micro-batches of fewer rows, and more of them."""
    whole = cfg.train.per_device_train_batch_size
    if rows == whole:
        return ()
    accumulation = (cfg.train.gradient_accumulation_steps or 1) * whole // rows
    return (
        f"train.per_device_train_batch_size={rows}",
        f"train.gradient_accumulation_steps={accumulation}",
    )
