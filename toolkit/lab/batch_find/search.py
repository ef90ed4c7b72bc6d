"""Tries sizes of the micro-batch: the plan's estimate first, then real steps in processes of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from toolkit.base.console import format_bytes, say
from toolkit.base.errors import ConfigError, RunError
from toolkit.config.sections import Config
from toolkit.footprint.simulate import Footprint, Subject, simulate
from toolkit.lab.batch_find.sizes import Size
from toolkit.lab.batch_find.worker import OUT_OF_MEMORY
from toolkit.lab.jobs.jobs import Outcome, Trial, run_trials
from toolkit.lab.launch import Launch
from toolkit.lab.plan.estimates import estimated
from toolkit.lab.plan.measure import Correction, Costs, fitted
from toolkit.lab.plan.subject import resized

GAIN = 0.1
"""A size is fast enough if no larger one is faster by more than this part for each doubling."""
KILLED = -9
"""How a process ends that the system kills because memory is short."""


@dataclass
class Tried:
    """A size and what is known of it.

    Args:
        size: the size.
        estimate: bytes at the peak of a step that the plan expects on each device, corrected by smaller sizes; None if
            its settings are refused.
        peak: measured bytes, on the longest rows, of the rank that needs the most; None if it was not trained.
        seconds: seconds of each timed step, `[rounds][steps]`; every round has the same steps.
        rows: rows of each step, over all processes.
        refused: why it cannot be used, or None.
    """

    size: Size
    estimate: int | None
    peak: int | None = None
    seconds: list[list[float]] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    refused: str | None = None

    @property
    def rates(self) -> np.ndarray:
        """Rows per second of each step, in the faster of its rounds: other programs can only make it slower."""
        return np.asarray(self.rows) / np.min(self.seconds, axis=0)

    def gain(self, smaller: Tried) -> float:
        """Returns by what factor it is faster than a smaller size for each doubling: the median over steps."""
        doublings = math.log2(self.size.micro_batch / smaller.size.micro_batch)
        return float(np.median(self.rates / smaller.rates)) ** (1 / doublings)

    @property
    def spread(self) -> float:
        """By what part its slower rounds took longer than the faster ones: the median over steps."""
        return float(np.median(np.max(self.seconds, axis=0) / np.min(self.seconds, axis=0))) - 1

    @property
    def fits(self) -> bool:
        """Whether it was trained and timed."""
        return self.refused is None


class Search:
    """Tries sizes in increasing order, until one does not fit, and then times those that fit once more.

    The second round is in decreasing order, so that a machine that grows slower or faster favours no size.

    Args:
        subject: the configured step, for estimates.
        load: returns the configuration with further overrides; raises ConfigError if they are invalid.
        capacity: bytes that each process may use.
        launch: how processes are started.
        job: `recipe`, `config` and `overrides` of all runs.
        steps: timed steps of each round.
    """

    def __init__(
        self,
        subject: Subject,
        load: Callable[[Sequence[str]], Config],
        capacity: int,
        launch: Launch,
        job: dict[str, Any],
        steps: int,
    ) -> None:
        self.subject, self.load, self.capacity, self.launch = subject, load, capacity, launch
        self.job, self.steps = job, steps
        self._measured: list[tuple[int, Costs]] = []
        """Measured peaks, and what was predicted for the same rows."""

    def run(self, sizes: Sequence[Size]) -> list[Tried]:
        """Returns what was found about each size, in the order given (increasing)."""
        found: list[Tried] = []
        for size in sizes:
            try:
                cfg = self.load(size.overrides)
            except ConfigError as error:
                found.append(Tried(size, None, refused="; ".join(error.problems)))
                continue
            expected = self._costs(simulate(resized(self.subject, cfg)), cfg)
            found.append(tried := Tried(size, self._correction().peak(expected)))
            if tried.estimate is not None and tried.estimate > self.capacity:
                tried.refused = f"its estimate of {format_bytes(tried.estimate)} exceeds the memory"
            else:
                self._train(tried, cfg)
            if tried.refused is not None:
                break
        self._time([each for each in reversed(found) if each.fits])
        return found

    def _costs(self, footprint: Footprint, cfg: Config) -> Costs:
        """Returns what each device needs if a single one needed `footprint`."""
        return estimated(footprint, cfg, self.launch.processes)

    def _correction(self) -> Correction:
        """Returns how the measurements of smaller sizes relate to their predictions."""
        return fitted(self._measured[0], self._measured[-1]) if self._measured else Correction()

    def _train(self, tried: Tried, cfg: Config) -> None:
        """Trains on the longest rows, then times the run's own steps."""
        outcomes = self._launched((tried, "longest", 2), (tried, "timed", self.steps + 1))
        failed = next((outcome for outcome in outcomes if outcome.error is not None), None)
        if failed is not None:
            if not _is_memory(failed):
                raise RunError(f"a micro-batch of {tried.size.micro_batch}: {failed.error}")
            tried.refused = "it does not fit: " + str(failed.error).removeprefix(OUT_OF_MEMORY).split("\n")[0]
            return
        longest, timed = (outcome.result for outcome in outcomes)
        tried.peak = longest["memory"]["train_peak"]
        self._measured.append((tried.peak, self._costs(Footprint(**longest["footprint"]), cfg)))
        if tried.peak > self.capacity:
            tried.refused = f"its peak of {format_bytes(tried.peak)} exceeds the memory"
        elif longest["step_rows"] > longest["epoch_rows"]:
            tried.refused = f"its step has {longest['step_rows']} rows, an epoch only {longest['epoch_rows']}"
        else:
            self._add(tried, timed)

    def _time(self, fitting: Sequence[Tried]) -> None:
        """Times sizes once more, in one launch."""
        outcomes = self._launched(*((tried, "timed", self.steps + 1) for tried in fitting)) if fitting else []
        for tried, outcome in zip(fitting, outcomes, strict=True):
            if outcome.error is not None:
                raise RunError(f"a micro-batch of {tried.size.micro_batch}, which fitted before: {outcome.error}")
            self._add(tried, outcome.result)

    def _add(self, tried: Tried, timed: dict[str, Any]) -> None:
        """Adds the steps of a round but for the first, which starts kernels and allocators."""
        tried.seconds.append(timed["seconds"][1:])
        tried.rows = timed["rows"][1:]
        say(f"{tried.size.micro_batch}: {median(timed['seconds'][1:]):.3g} s per step")

    def _launched(self, *works: tuple[Tried, str, int]) -> list[Outcome]:
        """Runs steps of sizes (`longest` or `timed`) in one launch; what they write is removed afterwards."""
        with TemporaryDirectory(prefix="batch-find-") as name:
            folder, trials = Path(name), []
            for number, (tried, work, steps) in enumerate(works):
                more = [*tried.size.overrides, f"train.max_steps={steps}", f"output_dir={folder}/run-{number}"]
                arguments = self.job | {"overrides": [*self.job["overrides"], *more]}
                trials.append(Trial(f"batch_find_{work}", arguments, folder / f"{number}.json"))
            launch = self.launch
            return run_trials(trials, folder / "batch_find.log", launch.processes, launch.file, launch.environ)


def _is_memory(outcome: Outcome) -> bool:
    return outcome.died == KILLED or str(outcome.error).startswith(OUT_OF_MEMORY)


def best_of(tried: Sequence[Tried]) -> Tried:
    """Returns the smallest size that is nearly as fast as every larger one that fits; see `GAIN`.

    Raises:
        RunError: if none fits.
    """
    fitting = [each for each in tried if each.fits]
    for place, each in enumerate(fitting):
        if all(larger.gain(each) <= 1 + GAIN for larger in fitting[place + 1 :]):
            return each
    raise RunError(f"no micro-batch fits: with {tried[0].size.micro_batch}, {tried[0].refused}")
