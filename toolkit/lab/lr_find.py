"""The learning-rate range test: the ramp, how its losses are read, and what it found as words, overrides and a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.api.training import Callback
from toolkit.base.console import format_value
from toolkit.base.files import write_json, write_text
from toolkit.distributed.collectives import data_sum
from toolkit.distributed.non_finite import NonFiniteGradient, NonFiniteParameters
from toolkit.document import render
from toolkit.document.blocks import Code, Figure, Section, Table, Text
from toolkit.document.charts import Line, line_chart
from toolkit.document.render import text_chart
from toolkit.document.svg import Drawing, sheet
from toolkit.optim.schedules import factor_of, peak_rate
from toolkit.recipe import load_settings, load_task_type

Found = Mapping[str, Any]
"""Contents of `lr_find.json`."""
POINTS = {
    "start_of_decline": "the loss begins to fall",
    "steepest": "it falls fastest",
    "lowest": "it is lowest",
    "divergence": "it begins to rise: training diverges from here",
}
"""The rates of a reading, in the order in which they are shown."""
PLOT = "Loss after an update at each learning rate"


def words(found: Found) -> list[str]:
    """Returns what was found, as lines of at most 80 characters."""
    lines = []
    for letter, (name, meaning) in zip("ABCD", POINTS.items(), strict=True):
        rate = found["others"][name]
        lines.append(f"  {letter}  {'-' if rate is None else format_value(rate):>9}  {meaning}")
    if found["others"]["divergence"] is None:
        lines[-1] = f"  D          -  the loss does not rise up to {format_value(found['to'])}"
    return lines


def choices(found: Found) -> list[str]:
    """Returns the overrides for each kind of schedule, as lines."""
    lines = []
    if found["others"]["steepest"] is None:
        assumed = "" if found["suggestion"] is None else "; a tenth of that of divergence is\nassumed"
        lines.append(f"The loss does not clearly fall at any of these rates{assumed}. Try more --steps.")
    for name, overrides in found["overrides"].items():
        chosen = " (the configured one)" if name == found["schedule"] else ""
        lines += [f"{name}{chosen}:", *(f"  {override}" for override in overrides)]
    return lines


def chart(found: Found) -> list[str]:
    """Returns the curve as lines of text."""
    rates, losses = _shown(found)
    marks = {
        letter: found["others"][name]
        for letter, name in zip("ABCD", POINTS, strict=True)
        if found["others"][name] is not None
    }
    return text_chart(rates, losses, marks, "learning rate", "loss (smoothed)")


def drawing(found: Found) -> Drawing:
    """Returns the curve as a drawing."""
    rates, smoothed = _shown(found)
    highest = _highest(smoothed)
    raw = [loss if loss is not None and loss <= highest else None for _, loss in found["curve"]]
    lines: dict[str, Line] = {"loss, smoothed": (rates, smoothed)}
    low = min(value for value in smoothed if math.isfinite(value))
    for name in POINTS:
        if (rate := found["others"][name]) is not None:
            lines[name.replace("_", " ")] = ([rate, rate], [low, highest])
    return line_chart(
        lines, title=PLOT, x_label="learning rate", y_label="loss", log_x=True,
        thin={"loss, smoothed": [(rates, raw)]},
    )  # fmt: skip


def _highest(values: Sequence[float]) -> float:
    """Returns the largest finite value."""
    return max(value for value in values if math.isfinite(value))


def _shown(found: Found) -> tuple[list[float], list[float]]:
    """Returns the rates and the smoothed losses without those far above the first one, which would hide the rest."""
    rates, smoothed = [rate for rate, _ in found["curve"]], found["smoothed"]
    limit = smoothed[0] + max(smoothed[0] - min(smoothed), 0.1 * abs(smoothed[0]))
    return rates, [loss if loss <= limit else math.nan for loss in smoothed]


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    rows = [[name.replace("_", " "), found["others"][name], meaning] for name, meaning in POINTS.items()]
    figure = Figure(PLOT, drawing(found), file="lr_find.svg")
    return [
        Section("Curve", [figure, Table(["point", "learning rate", "where"], rows), Text(_how(found))]),
        Section("Overrides", [Code("\n".join(choices(found)))]),
        Section("Command", [Code(found["command"], "bash")]),
    ]


def _how(found: Found) -> str:
    ended = {
        "finished": "It ran through all of its steps.",
        "diverged": "It ended early, because the loss had diverged.",
        "not finite": "It ended early, because a gradient or a parameter was not finite.",
    }
    return (
        f"Trained for {len(found['curve']) + 1} of {found['steps']} steps of {found['rows_per_step']} rows while the "
        f"rate rose from {format_value(found['from'])} to {format_value(found['to'])}. {ended[found['ended']]} Each "
        "point is the rate of an update and the mean loss of the step after it; losses are smoothed with their "
        "neighbours. No model was written."
    )


def write(found: Found, folder: Path) -> None:
    """Writes `lr_find.json`, the page as HTML and Markdown, and the chart as SVG and PNG."""
    from toolkit.document.plots import rate_test

    title, lead = f"Learning rates for {found['config']}", "A learning-rate range test (Smith 2017, arXiv 1506.01186)."
    write_json(folder / "lr_find.json", found)
    write_text(folder / "lr_find.svg", sheet([drawing(found)]))
    write_text(folder / "lr_find.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "lr_find.html", render.render_html(title, lead, sections(found)))
    rates, smoothed = _shown(found)
    marks = {name.replace("_", " "): found["others"][name] for name in POINTS if found["others"][name] is not None}
    rate_test(rates, smoothed, marks, folder / "lr_find.png")


MEMORY = 0.9
"""Share of the running mean of the losses that a step keeps."""
LEAST_RISE = 0.1
"""The loss has diverged when it is above the first one by what it had fallen, or by this part of it if that is more."""


class _Over(Exception):  # noqa: N818 - not an error
    """The test is over; raised on every rank."""


class Curve(Callback):
    """Records the loss after each update, and ends the run once it diverges.

    Args:
        steps: steps of the test.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.ended = steps, "finished"
        self.points: list[tuple[float, float]] = []
        """The rate of each update, and the mean loss per item of the step after it."""
        self._mean, self._lowest = RunningMean(), math.inf
        self._first: float | None = None

    def after_step(self, record: Mapping[str, float]) -> None:
        """Records a step, whose loss is that of the parameters before its update.

        Raises:
            _Over: on every rank, after the last step, or once the loss has diverged.
        """
        run, step = self.training.run, self.training.state.step
        (total,) = data_sum(run.accelerator, run.mesh, record["loss_sum"])
        loss = total / record["num_items"] if record["num_items"] else math.nan
        if step > 1:
            self.points.append((self._rate(step - 1), loss))
        if self._has_diverged(loss):
            self.ended = "diverged"
        if step == self.steps or self.ended == "diverged":
            raise _Over

    def _rate(self, step: int) -> float:
        train = self.training.run.cfg.train
        return peak_rate(train) * factor_of(train, self.steps)(step - 1)

    def _has_diverged(self, loss: float) -> bool:
        if math.isnan(loss):  # a window without items
            return False
        mean = self._mean.add(loss)
        self._first = loss if self._first is None else self._first
        self._lowest = min(self._lowest, mean)
        return mean > self._first + max(self._first - self._lowest, LEAST_RISE * abs(self._first))


class RunningMean:
    """A running mean of values, corrected for its start at zero (as Adam's moments are)."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float) -> float:
        """Adds a value and returns the mean."""
        self._sum = MEMORY * self._sum + (1 - MEMORY) * value
        self._weight = MEMORY * self._weight + (1 - MEMORY)
        return self._sum / self._weight


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains with a rising rate.

    Args:
        job: `recipe` and `config` (files), `overrides`, and optionally `float64`: whether to compute in float64.

    Returns:
        `curve`: the rate of each update, and the mean loss per item after it; and `ended`: `finished`, `diverged`, or
        `not finite` if a gradient or a parameter was not.
    """
    from toolkit.engine import fit
    from toolkit.run import prepared_run

    task_type = load_task_type(job["recipe"])
    cfg = load_settings(task_type, job["config"], job["overrides"]).config
    curve = Curve(cfg.train.max_steps)
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
    """What a curve says.

    Args:
        smoothed: the smoothed losses, one per rate.
        decline: rate at which the loss begins to fall; None if it does not fall.
        steepest: rate at which it falls fastest; None if it does not fall.
        lowest: rate of the lowest smoothed loss.
        divergence: rate from which the loss rises; None if it does not rise.
    """

    smoothed: Sequence[float]
    decline: float | None
    steepest: float | None
    lowest: float
    divergence: float | None

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
    """Reads a curve.

    Args:
        rates: `[N]` rates, rising, at least 3.
        losses: `[N]` losses; NaN for a step without items.
        blew_up: whether the test ended because the loss diverged or was not finite.
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
    """Returns the losses averaged with their neighbours, `[N]`; NaN and infinite ones do not count.

    Unlike a running mean, this does not shift the curve to higher rates.
    """
    places = np.arange(len(losses))
    spread = max(0.5, len(losses) / WIDTH)
    weights = np.exp(-0.5 * ((places[:, None] - places) / spread) ** 2) * np.isfinite(losses)
    return weights @ np.nan_to_num(losses, posinf=0.0, neginf=0.0) / weights.sum(1)


def _noise(losses: np.ndarray, place: int) -> float:
    """Returns the standard deviation of the noise of losses near a place.

    It is that of their third differences, to which a smooth curve contributes little, and a median, which jumps do not
    change.
    """
    reach = max(5, len(losses) // 10)
    near = losses[max(0, place - reach) : place + reach + 1]
    steps = np.abs(np.diff(near[np.isfinite(near)], n=3))
    return float(np.median(steps) / (0.6745 * np.sqrt(20))) if len(steps) else 0.0
