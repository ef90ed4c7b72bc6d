"""Runs the same training on several numbers of processes in turn, and keeps what is done."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from toolkit.base.console import say, warn
from toolkit.base.errors import RunError
from toolkit.base.files import read_json, write_json
from toolkit.config.sections import Config
from toolkit.footprint.simulate import Footprint
from toolkit.lab.compare.notes import load_average
from toolkit.lab.finished import training_job
from toolkit.lab.jobs.jobs import Trial, run_trials
from toolkit.lab.launch import Launch
from toolkit.lab.plan.measure import Measured, calibrate
from toolkit.lab.scale.laws import Mode, Rounds
from toolkit.system.limits import threads_per_process

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
    say(f"{name}: {time.monotonic() - began:.0f} s")


def _kept(scale: Scale, name: str, job: Mapping[str, Any], work: Callable[[], Any]) -> Any:
    """Returns a measurement, which is only made if there is none of the same job yet."""
    digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:12]
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
    from toolkit.lab.collectives.measure import factor

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
