"""Runs the same training on several numbers of processes in turn, fits the laws of scaling, and shows them."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any, Literal

import numpy as np

from toolkit.base.console import format_bytes, format_duration, format_value, say, warn
from toolkit.base.errors import RunError
from toolkit.base.files import read_json, sha256, write_json, write_text
from toolkit.config.sections import Config
from toolkit.document import render
from toolkit.document.blocks import Cell, Code, Figure, Section, Table, Text
from toolkit.document.charts import Line, line_chart
from toolkit.document.render import print_table
from toolkit.document.svg import Drawing, sheet
from toolkit.footprint.simulate import Footprint
from toolkit.lab.compare import page
from toolkit.lab.compare.page import shown
from toolkit.lab.compare.report import sums_of
from toolkit.lab.compare.runs import is_busy, load_average
from toolkit.lab.compare.statistics import DRAWS, SEED, summarise, warm
from toolkit.lab.compare.statistics import Figure as Summary
from toolkit.lab.jobs.jobs import Launch, Trial, batch_and_accumulation, run_trials, step_rows, training_job
from toolkit.lab.plan.estimates import scaling
from toolkit.lab.plan.measure import Measured, calibrate, serial_seconds
from toolkit.system.limits import threads_per_process, usable_cores

Mode = Literal["strong", "weak"]
Rounds = Mapping[int, Sequence[Mapping[str, Any]]]
"""By number of processes, the measurements of each round by `toolkit.lab.compare.runs`."""


@dataclass(frozen=True)
class Scaled:
    """What the measurements say, by number of processes.

    Args:
        speedup: real items per second relative to those of one process, estimated from the smallest number.
        efficiency: the speed-up per process.
        serial: the part of a step that does not shrink with more processes, from 0 to 1.
    """

    speedup: Mapping[int, Summary]
    efficiency: Mapping[int, Summary]
    serial: Summary


def amdahl(serial: float, processes: float) -> float:
    """Returns the speed-up of the same work by several processes; `serial` is its part on one that cannot be split."""
    return 1 / (serial + (1 - serial) / processes)


def gustafson(serial: float, processes: float) -> float:
    """Returns the speed-up of work that grows with the processes; `serial` is its part of the time that does not."""
    return serial + (1 - serial) * processes


def fitted_serial(rates: Mapping[int, float], mode: Mode) -> float:
    """Returns the serial part with which the mode's law fits best: least squares of relative errors.

    Args:
        rates: items per second by number of processes, two or more.
        mode: `strong` fits Amdahl's law to the times, `weak` Gustafson's law to the rates.
    """
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
    numbers of processes, since a slow spell of the machine meets all runs of a round. One round has no interval.
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
        low, high = np.quantile([of(rates) for rates in drawn], (0.025, 0.975))
        return Summary(of(plain), float(low), float(high))

    def efficiency(n: int) -> Summary:
        return figure(lambda rates: rates[n] / n / (rates[least] / least))

    found = {n: efficiency(n) for n in steps}
    return Scaled(
        speedup={n: Summary(each.value * n, _times(each.low, n), _times(each.high, n)) for n, each in found.items()},
        efficiency=found,
        serial=figure(lambda rates: fitted_serial(rates, mode)),
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


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


EXCHANGED_BYTES = 16 * 2**20
"""Bytes of the all-reduce whose bandwidth is measured, of the order of a bucket of gradients."""
TIMEOUT_SECONDS = 600.0
"""Limit of that measurement: processes that cannot reach each other would wait for half an hour."""
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Scale:
    """What to measure.

    Args:
        recipe: the recipe's file.
        config: the YAML file.
        launch: how the largest number of processes is started.
        mode: whether a step has the same rows with every number of processes (`strong`), or each process (`weak`).
        overrides: overrides by number of processes, increasing.
        configs: the configuration that each of them has.
        rounds: how often each runs.
        threads: threads of each process, or None to leave them to the launcher.
        code: digest of the toolkit's and the recipe's code.
        folder: output folder.
    """

    recipe: Path
    config: Path
    launch: Launch
    mode: Mode
    overrides: Mapping[int, Sequence[str]]
    configs: Mapping[int, Config]
    rounds: int
    threads: int | None
    code: str
    folder: Path

    def job(self, processes: int) -> dict[str, Any]:
        """Returns everything that the measurements of a number of processes depend on."""
        cfg = self.configs[processes]
        job = training_job(self.recipe, self.config, self.overrides[processes], cfg, self.launch, self.code)
        return job | {"seed": cfg.seed, "processes": processes, "threads": self.threads, "draws": 0}


@dataclass(frozen=True)
class Measurements:
    """Everything that was measured.

    Args:
        rounds: the runs by number of processes.
        bandwidths: bytes per second that a process sends in an all-reduce, by number of processes above 1.
        steps: steps of one process with few and with many rows, for the plan's estimate; empty if they failed.
    """

    rounds: Rounds
    bandwidths: Mapping[int, float]
    steps: Sequence[Measured]


def measure(scale: Scale, rows: int) -> Measurements:
    """Measures what an earlier call has not finished.

    Args:
        scale: what to measure.
        rows: rows of a micro-batch of one process, for the plan's estimate.

    Raises:
        RunError: if a run fails; those before it are kept.
    """
    numbers = [*scale.overrides]
    places = [(number, place) for place in range(1, scale.rounds + 1) for number in numbers]
    rounds: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
    bandwidths = dict[int, float]()
    with _threads(scale.threads):
        for count, (number, place) in enumerate(places, start=1):
            job, name = scale.job(number), f"run-{number}-round-{place}"
            with _told(f"[{count}/{len(places)}] {number} {'process' if number == 1 else 'processes'}, round {place}"):
                rounds[number].append(_kept(scale, name, job, partial(_run, scale, job)))
        for number in (number for number in numbers if number > 1):
            found = _kept(scale, f"bandwidth-{number}", scale.job(number), partial(_bandwidth, scale, number))
            bandwidths[number] = float(found)
        steps = _kept(scale, "plan", scale.job(numbers[0]) | {"rows": rows}, partial(_steps, scale, rows))
    return Measurements(
        rounds, bandwidths, [Measured(**{**each, "footprint": Footprint(**each["footprint"])}) for each in steps]
    )


def threads_of(processes: int) -> int:
    """Returns the threads of each of several processes: those that the environment sets, or its part of the cores."""
    given = os.environ.get(THREADS, "")
    return int(given) if given.isdecimal() else threads_per_process(processes)


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Sets the threads of all processes that are started inside."""
    before = os.environ.get(THREADS)
    if number is None or before is not None:
        yield
        return
    os.environ[THREADS] = str(number)
    try:
        yield
    finally:
        del os.environ[THREADS]


@contextmanager
def _told(name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    say(f"{name}: {format_duration(time.monotonic() - began)}")


def _kept(scale: Scale, name: str, job: Mapping[str, Any], work: Callable[[], Any]) -> Any:
    """Returns a measurement, which is only made if there is none of the same job yet."""
    digest = sha256(json.dumps(job, sort_keys=True))[:12]
    file = scale.folder / "runs" / f"{name}-{digest}.json"
    with suppress(OSError, ValueError):
        return read_json(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    found = work()
    write_json(file, found)
    return read_json(file)


def _run(scale: Scale, job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains on a number of processes, and returns the measurements."""
    folder = scale.folder / "runs" / "running"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    own = dict(job) | {"overrides": [*job["overrides"], f"output_dir={folder / 'run'}"]}
    found = _result(scale, Trial("compare", own, folder / "outcome.json"), job["processes"], None)
    shutil.rmtree(folder, ignore_errors=True)
    return {**found, "load": load_average()}


def _bandwidth(scale: Scale, processes: int) -> float:
    from toolkit.lab.collectives import factor

    folder = scale.folder / "runs" / "running"
    job = {"sizes": [EXCHANGED_BYTES], "operations": ["all_reduce"]}
    found = _result(scale, Trial("collectives", job, folder / "outcome.json"), processes, TIMEOUT_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    return factor("all_reduce", processes) * EXCHANGED_BYTES / float(found["seconds"]["all_reduce"][0])


def _result(scale: Scale, trial: Trial, processes: int, timeout: float | None) -> Any:
    log = trial.outcome.with_name("log.txt")
    (outcome,) = run_trials([trial], log, processes, scale.launch.file, timeout=timeout)
    if outcome.error is not None:
        raise RunError(f"{processes} processes: {outcome.error}")
    return outcome.result


def _steps(scale: Scale, rows: int) -> list[dict[str, Any]]:
    """Measures steps of one process for the plan's estimate; empty if it cannot be trained there."""
    try:
        _, runs = calibrate(str(scale.recipe), str(scale.config), next(iter(scale.overrides.values())), rows)
    except RunError as error:
        warn(f"there is no estimate beside the measurement: {error}")
        return []
    return [asdict(run) for run in runs]


FIGURES = ("step_seconds", "real_per_second", "items_per_second")


def build(scale: Scale, measured: Measurements, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what was found as JSON values.

    Args:
        scale: what was measured.
        measured: the measurements.
        facts: further entries.
    """
    numbers = [*measured.rounds]
    found = scaled(measured.rounds, scale.mode)
    example = measured.rounds[numbers[0]][0]
    accumulation = batch_and_accumulation(scale.configs[numbers[0]])[1]
    plan = _plan(measured.steps, accumulation, measured.bandwidths, scale.mode)
    points = []
    for number, runs in measured.rounds.items():
        summary = summarise(runs)
        seconds = summary["figures"]["step_seconds"].value
        points.append({
            "processes": number,
            "rows_per_step": step_rows(scale.configs[number], number),
            **{name: _figure(summary["figures"][name]) for name in FIGURES},
            "speedup": _figure(found.speedup[number]),
            "efficiency": _figure(found.efficiency[number]),
            **_exchange(summary["exchange"], measured.bandwidths.get(number), seconds),
            "plan_speedup": plan.get(number),
            "load": summary["load"],
        })  # fmt: skip
    serial = found.serial.value
    several = len(numbers) > 1
    return {
        **facts,
        "mode": scale.mode,
        "rounds": scale.rounds,
        "threads": scale.threads,
        "cores": usable_cores() if example["device"] == "cpu" else None,
        "points": points,
        "serial": _figure(found.serial) if several else None,
        "amdahl": [[n, amdahl(serial, n)] for n in numbers],
        "gustafson": [[n, gustafson(serial, n)] for n in numbers],
        "costs": sums_of(run["figures"] for runs in measured.rounds.values() for run in runs),
        **{name: example[name] for name in ("device", "hardware", "versions", "energy_source")},
    }


def _figure(figure: Any) -> dict[str, float | None]:
    return {name: value for name, value in asdict(figure).items() if name in ("value", "low", "high")}


def _exchange(sent: Mapping[str, float], bandwidth: float | None, seconds: float) -> dict[str, float | None]:
    """Returns what a process sends in a step, and which share of the step that takes if nothing is computed meanwhile.

    Args:
        sent: collectives and bytes of a step; empty if they are not known.
        bandwidth: bytes per second; None for one process.
        seconds: of a step.
    """
    if bandwidth is None:
        return {"exchange_bytes": 0.0, "bandwidth": None, "exchange_share": 0.0}
    if "bytes" not in sent:
        return {"exchange_bytes": None, "bandwidth": bandwidth, "exchange_share": None}
    share = min(1.0, sent["bytes"] / bandwidth / seconds)
    return {"exchange_bytes": sent["bytes"], "bandwidth": bandwidth, "exchange_share": share}


def _plan(
    steps: Sequence[Measured], accumulation: int, bandwidths: Mapping[int, float], mode: Mode
) -> dict[int, float]:
    """Returns the speed-up that `toolkit plan` estimates, by number of processes; empty if it has no measurement."""
    if not steps or steps[-1].seconds is None:
        return {}
    serial = min(serial_seconds(steps), steps[-1].seconds)
    seconds = serial + (steps[-1].seconds - serial) * accumulation
    found = {1: 1.0}
    for number, bandwidth in bandwidths.items():
        line = scaling(seconds, serial, steps[-1].footprint.gradients, bandwidth, number)[-1]
        found[number] = line.amdahl if mode == "strong" else line.gustafson
    return found


def mean_load(found: Mapping[str, Any]) -> float:
    """Returns the load average at the ends of all runs."""
    return fmean(load for point in found["points"] for load in point["load"])


Found = Mapping[str, Any]
"""Contents of `scale.json`."""
PICTURE = "Speed-up over the number of processes"
CURVE_POINTS, COLUMNS = 40, 80
MODES = {
    "strong": "every number of processes trains the same rows in a step",
    "weak": "each process has the same rows in a step, so a step has more with more processes",
}
LAWS = {"strong": "Amdahl", "weak": "Gustafson"}


def table(found: Found) -> Table:
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
        for point in found["points"]
    ]
    return Table(header, rows, caption=f"Scaling ({found['mode']})")


def details(found: Found) -> Table:
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
        for point in found["points"]
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


def words(found: Found) -> list[str]:
    """Returns what was found, as sentences."""
    said = [f"Mode {found['mode']}: {MODES[found['mode']]}."]
    serial = found["serial"]
    if serial is not None:
        span = "" if serial["low"] is None else f" (95 %: {serial['low']:.1%} to {serial['high']:.1%})"
        said.append(f"The serial part that fits {LAWS[found['mode']]}'s law best is {serial['value']:.1%}{span}.")
    most = found["points"][-1]["processes"]
    if found["cores"] is not None:
        words = "1 thread" if found["threads"] == 1 else f"{found['threads']} threads"
        said.append(f"Each process computes with {words}; there are {found['cores']} cores.")
        if found["cores"] < most:
            said.append(f"{most} processes share {found['cores']} cores, so they cannot be {most} times as fast.")
    if is_busy(load := mean_load(found), max(most, found["hardware"]["cpus"] or 1)):
        said.append(f"The machine was busy (load average {load:.1f}): the times are unreliable.")
    if found["rounds"] == 1:
        said.append("A single round has no interval; use --rounds 3 or more.")
    return said


def drawing(found: Found) -> Drawing:
    """Returns the speed-ups as a drawing: measured, by both laws, by the plan, and ideal."""
    numbers = [point["processes"] for point in found["points"]]
    fine = [numbers[0] + (numbers[-1] - numbers[0]) * place / CURVE_POINTS for place in range(CURVE_POINTS + 1)]
    lines: dict[str, Line] = {"measured": (numbers, [point["speedup"]["value"] for point in found["points"]])}
    if found["serial"] is not None:
        part = found["serial"]["value"]
        for name, law in (("Amdahl", amdahl), ("Gustafson", gustafson)):
            lines[f"{name}, {part:.0%} serial"] = (fine, [law(part, n) for n in fine])
    if any(point["plan_speedup"] is not None for point in found["points"]):
        lines["plan"] = (numbers, [point["plan_speedup"] for point in found["points"]])
    lines["ideal"] = (numbers, [float(number) for number in numbers])
    ends = [
        ([number, number], [point["speedup"]["low"], point["speedup"]["high"]])
        for number, point in zip(numbers, found["points"], strict=True)
        if point["speedup"]["low"] is not None
    ]
    return line_chart(
        lines, title=PICTURE, x_label="processes", y_label="times as many items per second as one process",
        zero=True, point="processes", thin={"measured": ends},
    )  # fmt: skip


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    figure = Figure(PICTURE, drawing(found), file="scale.svg")
    spent: Sequence[Any] = [
        [title, page.cost_text(name, found["costs"][name])]
        for name, title in page.SUMMED.items()
        if name in found["costs"]
    ]
    parts = [
        Section("Result", [*map(Text, words(found)[1:]), figure, table(found), Text(HOW)]),
        Section("Intervals and exchange", [details(found)]),
        Section("Cost of all runs", [Table(["what", "all runs"], spent)] if spent else []),
        Section("Command", [Code(found["command"], "bash")]),
        Section("Environment", [Table(["what", "value"], _facts(found))]),
    ]
    return [part for part in parts if part.blocks]


HOW = (
    "All numbers of processes ran in turn. Efficiency is the speed-up per process; intervals hold 95 % of bootstrap "
    "draws of rounds and their steps. Exchange is the share of a step that sending takes at the bandwidth of an "
    "all-reduce between as many processes, an upper bound where sending overlaps with computing. Plan is what toolkit "
    "plan estimates from steps of one process and this bandwidth. Both laws are drawn with the fitted part."
)


def _facts(found: Found) -> list[list[str]]:
    facts = {**(found["hardware"] or {}), **(found["versions"] or {})}
    return [[name, ", ".join(value) if isinstance(value, list) else str(value)] for name, value in facts.items()]


def show(found: Found) -> None:
    """Prints the table, and what was found."""
    print_table(table(found))
    say("\n".join(["", *(fill(line, COLUMNS) for line in words(found))]))
    if "energy_wh" in found["costs"]:
        say(f"All runs took {format_value(found['costs']['energy_wh'])} Wh.")


def write(found: Found, folder: Path) -> None:
    """Writes `scale.json`, the page as HTML and Markdown, and the picture."""
    title, lead = f"Scaling of {found['config']}", words(found)[0]
    write_json(folder / "scale.json", found)
    write_text(folder / "scale.svg", sheet([drawing(found)]))
    write_text(folder / "scale.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "scale.html", render.render_html(title, lead, sections(found)))
