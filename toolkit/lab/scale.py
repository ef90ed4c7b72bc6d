"""Runs the same training on several numbers of processes in turn, fits the laws of scaling, and shows them."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from accelerate.utils import patch_environment

from toolkit.base.console import counted, format_bytes, format_duration, format_value, say, warn
from toolkit.base.errors import ConfigError, RunError
from toolkit.base.files import read_json, write_json
from toolkit.checkpoint.lock import OutputLock
from toolkit.config.keys import written
from toolkit.data.row_cache import code_fingerprint
from toolkit.document.blocks import Block, Cell, Figure, Page, Section, Table, Text
from toolkit.document.charts import Line, line_chart
from toolkit.document.svg import Drawing
from toolkit.footprint.simulate import Footprint
from toolkit.lab import collectives
from toolkit.lab.compare.page import SUMMED, cost_text, shown
from toolkit.lab.compare.report import sums_of
from toolkit.lab.compare.runs import is_busy, load_average
from toolkit.lab.compare.statistics import DRAWS, SEED, summarise, warm
from toolkit.lab.compare.statistics import Figure as Summary
from toolkit.lab.jobs.jobs import Launch, Trial, batch_and_accumulation, job_name, run_trials, step_rows, training_job
from toolkit.lab.jobs.strategies import Technique, window_settings
from toolkit.lab.jobs.training import FEW_STEPS, unfrozen_at_once
from toolkit.lab.plan.estimates import scaling
from toolkit.lab.plan.measure import Measured, calibrate, serial_seconds
from toolkit.lab.tool import Report, Request
from toolkit.metrics.intervals import percentiles
from toolkit.system.limits import threads_per_process, usable_cores

Mode = Literal["strong", "weak"]
Rounds = Mapping[int, Sequence[Mapping[str, Any]]]
"""By number of processes, the measurements of each round by `toolkit.lab.compare.runs`."""


@dataclass(frozen=True)
class Scaled:
    """What the measurements say, by number of processes."""

    # real items per second relative to those of one process, estimated from the smallest number
    speedup: Mapping[int, Summary]
    efficiency: Mapping[int, Summary]  # the speed-up per process
    serial: Summary  # the part of a step that does not shrink with more processes, from 0 to 1


def amdahl(serial: float, processes: float) -> float:
    """Returns the speed-up of the same work by several processes; `serial` is its part on one that cannot be split."""
    return 1 / (serial + (1 - serial) / processes)


def gustafson(serial: float, processes: float) -> float:
    """Returns the speed-up of work that grows with the processes; `serial` is its part of the time that does not."""
    return serial + (1 - serial) * processes


def fitted_serial(rates: Mapping[int, float], mode: Mode) -> float:
    """Fits the serial part to items per second by least squares of relative errors: Amdahl's or Gustafson's law."""
    numbers = np.array([*rates], dtype=float)
    values = np.array([*rates.values()])
    # The time of a fixed work is constant + work / n, the rate of a growing one constant + work * n.
    targets, growing = (1 / values, 1 / numbers) if mode == "strong" else (values, numbers)
    columns = np.stack([np.ones_like(numbers), growing], axis=1) / targets[:, None]
    constant, shared = np.linalg.lstsq(columns, np.ones_like(targets), rcond=None)[0]
    if constant <= 0 or constant + shared <= 0:
        return 0.0
    return float(min(1.0, constant / (constant + shared)))


def scaled(rounds: Rounds, mode: Mode) -> Scaled:
    """Computes speed-ups, efficiencies and the serial part.

    Intervals are those of 95 % of bootstrap draws of rounds and of their steps. A draw takes the same rounds for all
    numbers of processes, because a slow phase of the machine affects the whole round. One round has no interval.
    """
    steps = {n: [warm(run) for run in runs] for n, runs in rounds.items()}
    least = min(steps)
    several = len(steps[least])
    plain = _rates(steps, range(several), lambda run: run)
    drawn = []
    if several > 1:
        random = np.random.default_rng(SEED)

        def resampled(run: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            chosen = random.integers(len(run["seconds"]), size=len(run["seconds"]))
            return {name: values[chosen] for name, values in run.items()}

        drawn = [_rates(steps, random.integers(several, size=several).tolist(), resampled) for _ in range(DRAWS)]

    def figure(of: Callable[[Mapping[int, float]], float]) -> Summary:
        if not drawn:
            return Summary(of(plain))
        return Summary(of(plain), *(percentiles([of(rates) for rates in drawn]) or ()))

    def efficiency(n: int, times: int = 1) -> Summary:
        return figure(lambda rates: rates[n] / n / (rates[least] / least) * times)

    return Scaled(
        speedup={n: efficiency(n, times=n) for n in steps},
        efficiency={n: efficiency(n) for n in steps},
        serial=figure(lambda rates: fitted_serial(rates, mode)),
    )


def _rates(
    steps: Mapping[int, Sequence[Mapping[str, np.ndarray]]],
    chosen: Sequence[int],
    seen: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]],
) -> dict[int, float]:
    """Returns the median over the chosen rounds of the items per second, by number of processes."""
    found = {}
    for n, runs in steps.items():
        of_rounds = [seen(runs[place]) for place in chosen]
        found[n] = statistics.median(float(run["real"].sum() / run["seconds"].sum()) for run in of_rounds)
    return found


THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Scale:
    """What to measure."""

    requests: Mapping[int, Request]  # the run by number of processes, increasing
    mode: Mode  # whether a step has the same rows with every number of processes (`strong`), or each process (`weak`)
    rounds: int  # how often each runs
    threads: int | None  # threads of each process, or None to leave them to the launcher
    code: str  # digest of the toolkit's and the recipe's code
    folder: Path  # output folder

    @property
    def least(self) -> Request:
        """The run on the smallest number of processes."""
        return next(iter(self.requests.values()))

    def job(self, processes: int) -> dict[str, Any]:
        """Returns everything that the measurements of a number of processes depend on."""
        run = self.requests[processes]
        job = training_job(run.recipe, run.config, run.overrides, run.cfg, run.launch, self.code)
        return job | {"seed": run.cfg.seed, "processes": processes, "threads": self.threads, "draws": 0}


def scale_of(request: Request, processes: Sequence[int], mode: Mode, rounds: int, steps: int) -> Scale:
    """Checks the run on every number of processes, and lists all problems."""
    settings = FEW_STEPS | unfrozen_at_once(request.cfg) | {"train.max_steps": steps}
    cfg = request.load(written(settings))
    split = {f"parallel.{name}": str(getattr(cfg.parallel, name)) for name in ("context", "tensor", "pipeline")}
    least = prod(map(int, split.values()))
    rows = step_rows(cfg, least)  # those of a single group of processes
    requests, problems = dict[int, Request](), list[str]()
    for number in processes:
        run = replace(request, launch=replace(request.launch, processes=number))
        try:
            window = {}
            if mode == "weak" and cfg.train.global_batch_size is not None:
                window = {"train.global_batch_size": str(rows * number // least)}
            elif mode == "strong" and number % least == 0:
                window = window_settings(cfg, Technique("", number, split, "", ""), rows)
            requests[number] = run.override(settings, {key: int(value) for key, value in window.items()})
        except ConfigError as error:
            problems += [f"{number} processes: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    only_cpu = request.launch.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true")
    threads = None if torch.cuda.is_available() and not only_cpu else threads_of(processes[-1])
    return Scale(requests, mode, rounds, threads, code_fingerprint(request.task), request.output)


@dataclass(frozen=True)
class Measurements:
    """Everything that was measured."""

    rounds: Rounds  # the runs by number of processes
    # bytes per second that a process sends in an all-reduce, by number of processes above 1
    bandwidths: Mapping[int, float]
    # steps of one process with few and with many rows, for the plan's estimate; empty if they failed
    steps: Sequence[Measured]


def measure(scale: Scale) -> Measurements:
    """Measures what an earlier call has not finished. Raises RunError if a run fails; those before it are kept."""
    rows = scale.least.cfg.train.micro_batch
    numbers = [*scale.requests]
    places = [(number, place) for place in range(1, scale.rounds + 1) for number in numbers]
    rounds: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
    bandwidths = dict[int, float]()
    unset = {} if scale.threads is None or THREADS in os.environ else {THREADS: scale.threads}
    with patch_environment(**unset):  # for all processes that are started inside
        for count, (number, place) in enumerate(places, start=1):
            job, name = scale.job(number), f"run-{number}-round-{place}"
            began = time.monotonic()
            rounds[number].append(_kept(scale, name, job, partial(_run, scale, job)))
            done = f"{counted(number, 'process')}, round {place}: {format_duration(time.monotonic() - began)}"
            say(f"[{count}/{len(places)}] {done}")
        for number in (number for number in numbers if number > 1):
            work = partial(_bandwidth, scale.requests[number].launch)
            bandwidths[number] = _kept(scale, f"bandwidth-{number}", scale.job(number), work)
        steps = _kept(scale, "plan", scale.job(numbers[0]) | {"rows": rows}, partial(_steps, scale, rows))
    measured = [Measured(**{**each, "footprint": Footprint(**each["footprint"])}) for each in steps]
    return Measurements(rounds, bandwidths, measured)


def threads_of(processes: int) -> int:
    """Returns the threads of each of several processes: those that the environment sets, or its part of the cores."""
    given = os.environ.get(THREADS, "")
    return int(given) if given.isdecimal() else threads_per_process(processes)


def _kept(scale: Scale, name: str, job: Mapping[str, Any], work: Callable[[], Any]) -> Any:
    """Returns a measurement, which is only made if there is none of the same job yet."""
    file = scale.folder / "runs" / f"{job_name(name, job)}.json"
    with suppress(OSError, ValueError):
        return read_json(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, work())
    return read_json(file)


def _run(scale: Scale, job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains on a number of processes, and returns the measurements."""
    folder = scale.folder / "runs" / "running"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    own = dict(job) | {"overrides": [*job["overrides"], f"output_dir={folder / 'run'}"]}
    trial = Trial("compare", own, folder / "outcome.json")
    (outcome,) = run_trials([trial], folder / "log.txt", job["processes"], scale.least.launch.file)
    if outcome.error is not None:
        raise RunError(f"{job['processes']} processes: {outcome.error}")
    shutil.rmtree(folder, ignore_errors=True)
    return {**outcome.result, "load": load_average()}


def _bandwidth(launch: Launch) -> float:
    try:
        return collectives.bandwidth(launch)
    except RunError as error:
        raise RunError(f"{launch.processes} processes: {error}") from error


def _steps(scale: Scale, rows: int) -> list[dict[str, Any]]:
    """Measures steps of one process for the plan's estimate; empty if it cannot be trained there."""
    try:
        _, runs = calibrate(str(scale.least.recipe), str(scale.least.config), scale.least.overrides, rows)
    except RunError as error:
        warn(f"there is no estimate beside the measurement: {error}")
        return []
    return [asdict(run) for run in runs]


FIGURES = ("step_seconds", "real_per_second", "items_per_second")
MODES = {
    "strong": "every number of processes trains the same rows in a step",
    "weak": "each process has the same rows in a step, so a step has more with more processes",
}
LAWS = {"strong": "Amdahl", "weak": "Gustafson"}
HOW = (
    "All numbers of processes ran in turn. Efficiency is the speed-up per process; intervals hold 95 % of bootstrap "
    "draws of rounds and their steps. Exchange is the share of a step that sending takes at the bandwidth of an "
    "all-reduce between as many processes, an upper bound where sending overlaps with computing. Plan is what toolkit "
    "plan estimates from steps of one process and this bandwidth. Both laws are drawn with the fitted part."
)


@dataclass(frozen=True)
class ScaleReport(Report):
    """How a training scales with the number of processes."""

    FILE: ClassVar[str] = "scale"

    config: str
    steps: int
    command: str
    mode: Mode
    rounds: int
    threads: int | None
    cores: int | None  # usable cores, or None if the training is on GPUs
    points: Sequence[Mapping[str, Any]]  # figures and exchange of each number of processes
    serial: Mapping[str, Any] | None  # fitted serial part with its interval
    amdahl: Sequence[Sequence[float]]  # numbers of processes and their speed-ups
    gustafson: Sequence[Sequence[float]]
    costs: Mapping[str, float]  # what all runs took together
    device: str
    hardware: Mapping[str, Any]
    versions: Mapping[str, Any]
    energy_source: str | None  # how the energy is known

    def page(self) -> Page:
        """Returns the page: the laws, intervals, costs and environment."""
        lead, *words = self.words()
        spent = [[title, cost_text(name, self.costs[name])] for name, title in SUMMED.items() if name in self.costs]
        facts = [
            [name, ", ".join(value) if isinstance(value, list) else str(value)]
            for name, value in {**(self.hardware or {}), **(self.versions or {})}.items()
        ]
        figure = Figure(PICTURE, drawing(self), file="scale.svg")
        return Page(f"Scaling of {self.config}", lead, [
            Section("Result", [*map(Text, words), figure, table(self), Text(HOW)]),
            Section("Intervals and exchange", [details(self)]),
            Section("Cost of all runs", [Table(["what", "all runs"], spent)] if spent else []),
            Section("Environment", [Table(["what", "value"], facts)]),
        ])  # fmt: skip

    def on_terminal(self) -> list[Block]:
        """Returns the table, and what was found."""
        words = self.words()
        if "energy_wh" in self.costs:
            words.append(f"All runs took {format_value(self.costs['energy_wh'])} Wh.")
        return [table(self), Text(" ".join(words))]

    def words(self) -> list[str]:
        """Returns what was found, as sentences."""
        said = [f"Mode {self.mode}: {MODES[self.mode]}."]
        if (serial := self.serial) is not None:
            span = "" if serial["low"] is None else f" (95 %: {serial['low']:.1%} to {serial['high']:.1%})"
            said.append(f"The serial part that fits {LAWS[self.mode]}'s law best is {serial['value']:.1%}{span}.")
        most = self.points[-1]["processes"]
        if self.cores is not None:
            threads = counted(self.threads or 1, "thread")
            said.append(f"Each process computes with {threads}; there are {self.cores} cores.")
            if self.cores < most:
                said.append(f"{most} processes share {self.cores} cores, so they cannot be {most} times as fast.")
        load = fmean(load for point in self.points for load in point["load"])
        if is_busy(load, max(most, self.hardware["cpus"] or 1)):
            said.append(f"The machine was busy (load average {load:.1f}): the times are unreliable.")
        if self.rounds == 1:
            said.append("A single round has no interval; use --rounds 3 or more.")
        return said


def scale(request: Request, processes: Sequence[int], mode: Mode, rounds: int, steps: int) -> ScaleReport:
    """Runs what an earlier call has not finished.

    Raises:
        ConfigError: if a number of processes cannot train the configuration; lists all problems.
        RunError: if a run fails; a rerun continues with it.
    """
    what = scale_of(request, processes, mode, rounds, steps)
    request.make_output(again=True)
    with OutputLock(what.folder):
        measured = measure(what)
    found = scaled(measured.rounds, mode)
    example = measured.rounds[processes[0]][0]
    plan = _plan(measured, batch_and_accumulation(what.least.cfg)[1], mode)
    points = []
    for number, runs in measured.rounds.items():
        summary = summarise(runs)
        seconds = summary["figures"]["step_seconds"].value
        points.append({
            "processes": number,
            "rows_per_step": step_rows(what.requests[number].cfg, number),
            **{name: _figure(summary["figures"][name]) for name in FIGURES},
            "speedup": _figure(found.speedup[number]),
            "efficiency": _figure(found.efficiency[number]),
            **_exchange(summary["exchange"], measured.bandwidths.get(number), seconds),
            "plan_speedup": plan.get(number),
            "load": summary["load"],
        })  # fmt: skip
    serial = found.serial.value
    return ScaleReport(
        config=str(request.config), steps=steps, command=request.command, mode=mode, rounds=rounds,
        threads=what.threads, cores=usable_cores() if example["device"] == "cpu" else None, points=points,
        serial=_figure(found.serial) if len(processes) > 1 else None,
        amdahl=[[n, amdahl(serial, n)] for n in processes], gustafson=[[n, gustafson(serial, n)] for n in processes],
        costs=sums_of(run["figures"] for runs in measured.rounds.values() for run in runs),
        **{name: example[name] for name in ("device", "hardware", "versions", "energy_source")},
    )  # fmt: skip


def _figure(figure: Any) -> dict[str, float | None]:
    return {name: value for name, value in asdict(figure).items() if name in ("value", "low", "high")}


def _exchange(sent: Mapping[str, float], bandwidth: float | None, seconds: float) -> dict[str, float | None]:
    """Returns what a process sends in a step, and the share of the step that this takes without overlap."""
    if bandwidth is None:
        return {"exchange_bytes": 0.0, "bandwidth": None, "exchange_share": 0.0}
    if "bytes" not in sent:
        return {"exchange_bytes": None, "bandwidth": bandwidth, "exchange_share": None}
    share = min(1.0, sent["bytes"] / bandwidth / seconds)
    return {"exchange_bytes": sent["bytes"], "bandwidth": bandwidth, "exchange_share": share}


def _plan(measured: Measurements, accumulation: int, mode: Mode) -> dict[int, float]:
    """Returns the speed-up that `toolkit plan` estimates, by number of processes; empty if it has no measurement."""
    steps = measured.steps
    if not steps or steps[-1].seconds is None:
        return {}
    serial = min(serial_seconds(steps), steps[-1].seconds)
    seconds = serial + (steps[-1].seconds - serial) * accumulation
    found = {1: 1.0}
    for number, bandwidth in measured.bandwidths.items():
        line = scaling(seconds, serial, steps[-1].footprint.gradients, bandwidth, number)[-1]
        found[number] = line.amdahl if mode == "strong" else line.gustafson
    return found


PICTURE = "Speed-up over the number of processes"
CURVE_POINTS = 40


def table(found: ScaleReport) -> Table:
    """Returns the table of all numbers of processes."""
    header = ["processes", "step", "real items/s", "speed-up", "efficiency", "exchange", "plan"]
    rows = [
        [
            point["processes"],
            Cell(shown("step_seconds", point["step_seconds"]["value"]), point["step_seconds"]["value"]),
            Cell(shown("real_per_second", point["real_per_second"]["value"]), point["real_per_second"]["value"]),
            Cell(f"{point['speedup']['value']:.2f}", point["speedup"]["value"]),
            _percent(point["efficiency"]),
            None if (share := point["exchange_share"]) is None else Cell(f"{share:.1%}", share),
            None if (plan := point["plan_speedup"]) is None else Cell(f"{plan:.2f}", plan),
        ]
        for point in found.points
    ]
    return Table(header, rows, caption=f"Scaling ({found.mode})")


def details(found: ScaleReport) -> Table:
    """Returns the table of what lies behind: rows, intervals and exchange."""
    header = ["processes", "rows per step", "step, 95 %", "real items/s, 95 %", "speed-up, 95 %", "sent per step",
              "bandwidth"]  # fmt: skip
    rows = [
        [
            point["processes"], point["rows_per_step"],
            *(_interval(name, point[name]) for name in ("step_seconds", "real_per_second", "speedup")),
            *(None if point[name] is None else Cell(format_bytes(round(point[name])) + per, point[name])
              for name, per in (("exchange_bytes", ""), ("bandwidth", "/s"))),
        ]
        for point in found.points
    ]  # fmt: skip
    return Table(header, rows)


def _percent(figure: Mapping[str, Any]) -> Cell:
    span = "" if figure["low"] is None else f" ({figure['low']:.0%} to {figure['high']:.0%})"
    return Cell(f"{figure['value']:.0%}{span}", figure["value"])


def _interval(name: str, figure: Mapping[str, Any]) -> Cell | None:
    if figure["low"] is None:
        return None
    low, high = (f"{end:.2f}" if name == "speedup" else shown(name, end) for end in (figure["low"], figure["high"]))
    return Cell(f"{low} to {high}", figure["value"])


def drawing(found: ScaleReport) -> Drawing:
    """Returns the speed-ups as a drawing: measured, by both laws, by the plan, and ideal."""
    numbers = [point["processes"] for point in found.points]
    fine = [numbers[0] + (numbers[-1] - numbers[0]) * place / CURVE_POINTS for place in range(CURVE_POINTS + 1)]
    lines: dict[str, Line] = {"measured": (numbers, [point["speedup"]["value"] for point in found.points])}
    if found.serial is not None:
        part = found.serial["value"]
        for name, law in (("Amdahl", amdahl), ("Gustafson", gustafson)):
            lines[f"{name}, {part:.0%} serial"] = (fine, [law(part, n) for n in fine])
    if any(point["plan_speedup"] is not None for point in found.points):
        lines["plan"] = (numbers, [point["plan_speedup"] for point in found.points])
    lines["ideal"] = (numbers, [float(number) for number in numbers])
    ends = [
        ([number, number], [point["speedup"]["low"], point["speedup"]["high"]])
        for number, point in zip(numbers, found.points, strict=True)
        if point["speedup"]["low"] is not None
    ]
    return line_chart(
        lines, title=PICTURE, x_label="processes", y_label="times as many items per second as one process",
        zero=True, point="processes", thin={"measured": ends},
    )  # fmt: skip
