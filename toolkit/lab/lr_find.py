"""The learning-rate range test: the ramp, how its losses are read, and which rates follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from toolkit.api.training import Callback, Training
from toolkit.base.console import format_value
from toolkit.base.errors import InputError, RunError
from toolkit.config.keys import written
from toolkit.config.sections import Config
from toolkit.distributed.collectives import data_sum
from toolkit.document.blocks import Block, Code, Figure, Page, Section, Table, Text
from toolkit.document.charts import Line, line_chart
from toolkit.document.render import text_chart
from toolkit.document.svg import Drawing
from toolkit.engine.non_finite import NonFiniteGradient, NonFiniteParameters
from toolkit.lab.jobs.jobs import step_rows
from toolkit.lab.jobs.training import STEPS_ONLY, unfrozen_at_once
from toolkit.lab.tool import Report, Request
from toolkit.optim.presets import PRESETS
from toolkit.optim.schedules import factor_of, peak_rate
from toolkit.optim.state import unwrapped
from toolkit.recipe import load_settings, load_task_type

if TYPE_CHECKING:
    from torch import Tensor

POINTS = {
    "start_of_decline": "the loss begins to fall",
    "steepest": "it falls fastest",
    "lowest": "it is lowest",
    "divergence": "it rises from here: training diverges",
}
"""The rates of a reading, in the order in which they are shown."""
ENDS = {
    "finished": "It ran through all of its steps.",
    "diverged": "It ended early, because the loss had diverged.",
    "not finite": "It ended early, because a gradient or a parameter was not finite.",
}
PLOT = "Loss after an update at each learning rate"
RANGE = 1000.0
"""The test rises from the configured rate divided by this to the rate multiplied by it."""
CYCLES = ("one_cycle", "cyclic")
CYCLE = 100
"""Steps for which `cyclic` rises, as an example."""


@dataclass(frozen=True, kw_only=True)
class LearningRates(Report):
    """What a test found."""

    FILE = "lr_find"
    suggestion: float | None  # the peak rate for the configured schedule; None if the curve is flat
    schedule: str  # the key of the configured schedule in `overrides`
    overrides: dict[str, list[str]]  # overrides by schedule: `plain` ones decay from the peak or stay at it
    others: dict[str, Any]
    curve: Sequence[tuple[float, float]]  # the rate of each update, and the mean loss per item after it
    smoothed: Sequence[float]
    ended: str
    from_: float
    to: float
    ramp: str
    steps: int
    reset: int | None
    rows_per_step: int
    processes: int
    config: str
    command: str

    def page(self) -> Page:
        """Returns the curve with its points, and the overrides."""
        figure = Figure(PLOT, self._drawing(), file="lr_find.svg")
        lead = "A learning-rate range test (Smith 2017, arXiv 1506.01186)."
        sections = [Section("Curve", [figure, self._points(), self._how()]), Section("Overrides", [*self._choices()])]
        return Page(f"Learning rates for {self.config}", lead, sections)

    def on_terminal(self) -> list[Block]:
        """Returns the curve as text, its points, and the overrides."""
        marks = {letter: self.others[name] for letter, name in zip("ABCD", POINTS, strict=True) if self.others[name]}
        chart = text_chart(*self._shown(), marks, "learning rate", "loss (smoothed)")
        return [Code("\n".join(chart)), self._points(), *self._choices()]

    def _points(self) -> Table:
        meanings = dict(POINTS)
        if self.others["divergence"] is None:
            meanings["divergence"] = f"the loss does not rise up to {format_value(self.to)}"
        rows = [
            [f"{letter}  {name.replace('_', ' ')}", self.others[name], meaning]
            for letter, (name, meaning) in zip("ABCD", meanings.items(), strict=True)
        ]
        return Table(["point", "learning rate", "where"], rows)

    def _choices(self) -> Iterator[Block]:
        if self.others["steepest"] is None:
            assumed = "" if self.suggestion is None else "; a tenth of that of divergence is assumed"
            yield Text(f"The loss does not clearly fall at any of these rates{assumed}. Try more --steps.")
        lines = []
        for name, overrides in self.overrides.items():
            chosen = " (the configured one)" if name == self.schedule else ""
            lines += [f"{name}{chosen}:", *(f"  {override}" for override in overrides)]
        yield Code("\n".join(lines))

    def _drawing(self) -> Drawing:
        rates, smoothed = self._shown()
        lowest, highest = (end(value for value in smoothed if math.isfinite(value)) for end in (min, max))
        raw = [loss if loss is not None and loss <= highest else None for _, loss in self.curve]
        lines: dict[str, Line] = {"loss, smoothed": (rates, smoothed)}
        for name in POINTS:
            if (rate := self.others[name]) is not None:
                lines[name.replace("_", " ")] = ([rate, rate], [lowest, highest])
        return line_chart(
            lines, title=PLOT, x_label="learning rate", y_label="loss", log_x=True,
            thin={"loss, smoothed": [(rates, raw)]},
        )  # fmt: skip

    def _shown(self) -> tuple[list[float], list[float]]:
        """Returns the rates and the smoothed losses, without those that would hide the rest."""
        first = self.smoothed[0]
        limit = first + max(first - min(self.smoothed), 0.1 * abs(first))
        return [rate for rate, _ in self.curve], [loss if loss <= limit else math.nan for loss in self.smoothed]

    def _how(self) -> Text:
        rose = f"the rate rose from {format_value(self.from_)} to {format_value(self.to)}. {ENDS[self.ended]}"
        trained = f"Trained for {len(self.curve) + 1} of {self.steps} steps of {self.rows_per_step} rows while {rose}"
        if self.reset is not None:
            trained = f"At each rate, trained for {self.reset} steps of {self.rows_per_step} rows from the same weights"
            trained += f" and without a state of the optimizer; {rose}"
        return Text(
            f"{trained} Each point is the rate of an update and the mean loss of the step after it; losses are smoothed"
            " with their neighbours. No model was written."
        )


def find(
    request: Request, start: float | None, end: float | None, ramp: str, steps: int, reset: int | None = None
) -> LearningRates:
    """Trains while the rate rises (`ramp`: `exponential` or `linear`) from `start` to `end`, and reads the losses.

    None for a rate means one that follows from the configured rate. With `reset`, there are `steps` points, and as many
    steps for each, from the weights that the run starts with. Raises ConfigError if the test cannot start;
    InputError if there is no range, or the optimizer has no rate; RunError if training fails, or the test ends too
    early.
    """
    cfg = request.cfg
    low, high = _range(cfg, start, end)
    outer = cfg.train.local_sgd_outer_lr is not None
    if reset and (outer or cfg.parallel.backend == "deepspeed" or cfg.train.ddp_comm_hook == "power_sgd"):
        kept = "DeepSpeed, power_sgd and train.local_sgd_outer_lr keep states that cannot be reset"
        raise InputError(f"--reset: {kept}; remove --reset, or these settings")
    tested = request.override(STEPS_ONLY, unfrozen_at_once(cfg), _ramp(cfg, low, high, ramp, steps * (reset or 1)))
    request.make_output()
    measured = tested.measured("lr_find", reset=reset)
    curve = measured["curve"]
    if len(curve) < 3:
        raise RunError(
            f"the loss was not finite after {len(curve)} points already, at a rate of {low:g}; lower --start-lr"
        )
    rates, losses = zip(*curve, strict=True)
    reading = read(rates, losses, blew_up=measured["ended"] != "finished")
    schedule = cfg.train.lr_scheduler_type
    return LearningRates(
        suggestion=reading.high if schedule in CYCLES else reading.plain,
        schedule=schedule if schedule in CYCLES else "plain",
        overrides=_overrides(reading, cfg),
        others={"start_of_decline": reading.decline, "steepest": reading.steepest, "lowest": reading.lowest,
                "divergence": reading.divergence, "plain": reading.plain, "one_cycle": reading.high,
                "cyclic": None if reading.high is None else [reading.decline, reading.high]},
        curve=curve, smoothed=reading.smoothed, ended=measured["ended"], from_=low, to=high, ramp=ramp, steps=steps,
        reset=reset, rows_per_step=step_rows(tested.cfg, request.launch.processes), processes=request.launch.processes,
        config=str(request.config), command=request.command,
    )  # fmt: skip


def _range(cfg: Config, start: float | None, end: float | None) -> tuple[float, float]:
    """Returns the first and the last rate."""
    preset, rate = PRESETS[cfg.train.optim], cfg.train.learning_rate
    if preset.relative_step or preset.averages:
        why = (
            "computes its own learning rate"
            if preset.relative_step
            else "averages weights instead of following a schedule"
        )
        raise InputError(f"train.optim: {cfg.train.optim} {why}, so no rate can be found for it; use another optimizer")
    if not rate and None in (start, end):
        raise InputError("train.learning_rate: received 0, from which no range follows; set --start-lr and --end-lr")
    low, high = start or rate / RANGE, end or rate * RANGE
    if low >= high:
        raise InputError(f"--start-lr: {low:g} is not below --end-lr ({high:g})")
    return low, high


def _ramp(cfg: Config, low: float, high: float, ramp: str, steps: int) -> dict[str, Any]:
    """Returns the settings of the test; rates that are set separately rise in proportion."""
    settings: dict[str, Any] = {
        "train.learning_rate": high,
        "train.lr_scheduler_type": "range_test",
        "train.lr_scheduler_kwargs": {"start_lr": low, "mode": ramp},
        "train.warmup_steps": 0,
        "train.max_steps": steps,
        "train.non_finite": "stop",
    }
    if cfg.train.head_learning_rate is not None and cfg.train.learning_rate:
        settings["train.head_learning_rate"] = cfg.train.head_learning_rate * high / cfg.train.learning_rate
    return settings


def _overrides(reading: Reading, cfg: Config) -> dict[str, list[str]]:
    """Returns the overrides of each schedule."""
    if reading.plain is None or reading.high is None:
        return {}
    train = cfg.train

    def settings(rate: float, **more: Any) -> list[str]:
        rates: dict[str, Any] = {"train.learning_rate": _short(rate)}
        if train.head_learning_rate is not None and train.learning_rate:
            rates["train.head_learning_rate"] = _short(rate * train.head_learning_rate / train.learning_rate)
        return written(rates | {f"train.{name}": value for name, value in more.items()})

    low = _short(min(reading.decline or reading.high / 10, reading.high / 4))
    cycle = {"warmup_steps": 0, **({"lr_scheduler_kwargs": {}} if train.lr_scheduler_kwargs else {})}
    triangle = {"lr_scheduler_kwargs.base_lr": low, "lr_scheduler_kwargs.step_size_up": CYCLE}
    return {
        "plain": settings(reading.plain),
        "one_cycle": settings(reading.high, lr_scheduler_type="one_cycle", **cycle),
        "cyclic": settings(reading.high, lr_scheduler_type="cyclic", **cycle, **triangle),
    }


def _short(rate: float) -> float:
    """Returns a rate with two significant digits."""
    return float(f"{rate:.2g}")


MEAN_OF = 10
"""Losses whose mean says whether training diverges."""
LEAST_RISE = 0.1
"""The loss has diverged when it is above the first one by what it had fallen, or by this part of it if that is more."""


class _Over(Exception):  # noqa: N818 - not an error
    """The test is over; raised on every rank."""


class Curve(Callback):
    """Records the loss after each update, and ends the run after `steps` steps, or once it diverges.

    With `reset`, it records the last of that many steps, and then sets model and optimizer back to the run's start.
    """

    def __init__(self, steps: int, reset: int | None = None) -> None:
        self.steps, self.reset, self.ended = steps, reset, "finished"
        self.points: list[tuple[float, float]] = []
        """The rate of each update, and the mean loss per item of the step after it."""
        self._losses, self._lowest = list[float](), math.inf

    def watching(self, training: Training) -> Self:
        """Keeps the tensors of the run's start, if they are needed again."""
        super().watching(training)
        self._start = [tensor.detach().clone() for tensor in self._tensors()] if self.reset else []
        return self

    def _tensors(self) -> Iterator[Tensor]:
        return chain(self.training.bare_model.parameters(), self.training.bare_model.buffers())

    def after_step(self, record: Mapping[str, float]) -> None:
        """Records a step, whose loss is that of the parameters before its update.

        Raises _Over on every rank, after the last step, or once the loss has diverged.
        """
        run, step = self.training.run, self.training.state.step
        if self.reset and step % self.reset:
            return
        (total,) = data_sum(run.accelerator, run.mesh, record["loss_sum"])
        loss = total / record["num_items"] if record["num_items"] else math.nan
        if step > 1:
            self.points.append((self._rate(step - 1), loss))
        if self._has_diverged(loss):
            self.ended = "diverged"
        if step == self.steps or self.ended == "diverged":
            raise _Over
        if self.reset:
            with torch.no_grad():
                for tensor, start in zip(self._tensors(), self._start, strict=True):
                    tensor.copy_(start)
            unwrapped(self.training.optimizer).state.clear()

    def _rate(self, step: int) -> float:
        train = self.training.run.cfg.train
        return peak_rate(train) * factor_of(train, self.steps)(step - 1)

    def _has_diverged(self, loss: float) -> bool:
        if math.isnan(loss):  # a window without items
            return False
        self._losses.append(loss)
        first, mean = self._losses[0], fmean(self._losses[-MEAN_OF:])
        self._lowest = min(self._lowest, mean)
        return mean > first + max(first - self._lowest, LEAST_RISE * abs(first))


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains with a rising rate, in float64 if `float64` says so; returns `curve` and `ended` of `LearningRates`."""
    from toolkit.engine import fit
    from toolkit.run import prepared_run

    task_type = load_task_type(job["recipe"])
    cfg = load_settings(task_type, job["config"], job["overrides"]).config
    curve = Curve(cfg.train.max_steps, job.get("reset"))
    recipe, exact = Path(job["recipe"]), bool(job.get("float64"))
    with prepared_run(cfg, task_type(cfg), recipe, float64=exact) as run:
        try:
            fit(run, [curve])
        except _Over:
            pass
        except (NonFiniteGradient, NonFiniteParameters):
            curve.ended = "not finite"
    return {"curve": curve.points, "ended": curve.ended}


WIDTH = 40
"""Losses are smoothed by a Gaussian whose standard deviation is one part in this many of the steps."""
BEGUN = 0.1
"""The decline has begun when the loss has fallen by this part of its whole fall; the loss rises where it is above its
lowest value by this part of it."""
LEAST_FALL = 0.01
"""Smallest fall, as a part of the first loss, that is a decline."""
BELOW_DIVERGENCE = {"plain": 4.0, "high": 3.0}
"""By what factor a rate stays below that of divergence: for schedules that stay near it, and those that visit it."""
WITHOUT_DECLINE = 10.0
"""The same factor where the loss does not fall clearly."""


@dataclass(frozen=True)
class Reading:
    """What a curve says."""

    smoothed: Sequence[float]  # the smoothed losses, one per rate
    decline: float | None  # rate at which the loss begins to fall; None if it does not fall
    steepest: float | None  # rate at which it falls fastest; None if it does not fall
    lowest: float  # rate of the lowest smoothed loss
    divergence: float | None  # rate from which the loss rises; None if it does not rise

    @property
    def plain(self) -> float | None:
        """The peak rate for a schedule that decays from it, or stays at it; None if the curve is flat."""
        return self._below("plain", self.steepest)

    @property
    def high(self) -> float | None:
        """The peak rate for a schedule that visits its peak only for a time, `one_cycle` or `cyclic`; None as above."""
        return self._below("high", self.lowest)

    def _below(self, kind: str, otherwise: float | None) -> float | None:
        if self.steepest is None or otherwise is None:
            return None if self.divergence is None else self.divergence / WITHOUT_DECLINE
        limit = np.inf if self.divergence is None else self.divergence / BELOW_DIVERGENCE[kind]
        return float(min(otherwise, limit))


def read(rates: Sequence[float], losses: Sequence[float], blew_up: bool = False) -> Reading:
    """Reads a curve of `[N]` rising rates, at least 3, and losses (NaN for a step without items).

    `blew_up` says that the test ended because the loss diverged or was not finite.
    """
    raw = np.asarray(losses, dtype=float)
    smoothed = smooth(raw)
    first, low = smoothed[0], int(np.argmin(smoothed))
    fall, noise = first - smoothed[low], _noise(raw, low)
    divergence = _divergence(rates, raw, blew_up)
    if low == 0 or fall < max(LEAST_FALL * abs(first), noise):
        return Reading(smoothed.tolist(), None, None, float(rates[low]), divergence)
    begun = int(np.flatnonzero(smoothed[: low + 1] < first - BEGUN * fall)[0])
    slope = np.gradient(smoothed, np.log(rates))[: low + 1]
    steepest = int(np.argmin(slope))
    return Reading(smoothed.tolist(), float(rates[begun]), float(rates[steepest]), float(rates[low]), divergence)


def _divergence(rates: Sequence[float], losses: np.ndarray, blew_up: bool) -> float | None:
    """Returns the rate from which the loss rises, or None.

    Errors grow by a factor per step when they diverge, so their logarithms are smoothed: the lowest is then where they
    begin to grow, not where their size first shows. With noise, the loss stays near its lowest value for a while, and
    the last such rate is taken.
    """
    logs = np.log(np.maximum(losses, np.finfo(float).tiny))
    smoothed = smooth(logs)
    low = int(np.argmin(smoothed))
    after, noise = smoothed[low:], _noise(logs, low)
    if not blew_up and after.max() - smoothed[low] <= max(BEGUN, 2 * noise):
        return None
    return float(rates[low + int(np.flatnonzero(after <= smoothed[low] + noise)[-1])])


def smooth(losses: np.ndarray) -> np.ndarray:
    """Averages losses with their neighbours, which shifts no curve as a running mean would; NaN do not count."""
    places = np.arange(len(losses))
    spread = max(0.5, len(losses) / WIDTH)
    weights = np.exp(-0.5 * ((places[:, None] - places) / spread) ** 2) * np.isfinite(losses)
    return weights @ np.nan_to_num(losses, posinf=0.0, neginf=0.0) / weights.sum(1)


def _noise(losses: np.ndarray, place: int) -> float:
    """Returns the standard deviation of the noise near a place, from third differences, which a curve hardly has."""
    reach = max(5, len(losses) // 10)
    near = losses[max(0, place - reach) : place + reach + 1]
    steps = np.abs(np.diff(near[np.isfinite(near)], n=3))
    return float(np.median(steps) / (0.6745 * np.sqrt(20))) if len(steps) else 0.0
