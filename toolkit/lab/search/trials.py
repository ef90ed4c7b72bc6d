"""Runs the processes of trials, and saves disk space: only the best of the finished ones keep a checkpoint."""

from __future__ import annotations

import json
import os
import queue
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import InputError, RunError
from toolkit.base.files import write_json, written_folder
from toolkit.base.processes import STOP_SIGNALS, Thread
from toolkit.base.run_folder import CheckpointFolder, RunFolder
from toolkit.checkpoint.lock import FolderInUse, OutputLock
from toolkit.checkpoint.manifest import write_manifest
from toolkit.checkpoint.store import latest
from toolkit.config.keys import written
from toolkit.config.source import Settings, Source
from toolkit.lab.jobs.jobs import Trial as Job
from toolkit.lab.jobs.jobs import remove_model, run_trials
from toolkit.lab.search.space import METHODS, overrides_of
from toolkit.lab.search.study import ENVIRON, Book, Result, Search, counted, own_settings, result_of
from toolkit.system.limits import threads_per_process

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial


RESULT_FILE = "result.json"
"""File of how a trial ended; written before the study is updated, so that no finished trial is trained again."""
STOPPED = {code for number in STOP_SIGNALS for code in (-number, 128 + number)}
"""Exit codes of a process that a stop signal has ended."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def job_of(search: Search, point: Sequence[str], run: Path) -> dict[str, Any]:
    """Returns the job of a process that trains a point (overrides) in the output folder `run`."""
    job = search.request.job
    overrides = [*job["overrides"], *written(own_settings(search.cfg)), *point, f"output_dir={run}"]
    return job | {"overrides": overrides, "metric": search.metric.name, "deadline": search.deadline}


def train(search: Search, job: Mapping[str, Any], folder: Path, slot: int) -> Result:
    """Runs a job of `toolkit.lab.search.worker.train` and waits for it; log and result are in the folder of the trial.

    The `slot` is its place among the trials that run at the same time, each of which has its own GPUs.

    Returns:
        How it ended, with `seconds`: those of its processes in all sessions.
    """
    before = read_result(folder)
    if before is not None and before["state"] != "stopped":
        return before
    began = time.monotonic()
    outcome = start("search", job, search, folder, slot)
    seconds = time.monotonic() - began + (before or {}).get("seconds", 0.0)
    if outcome.died in STOPPED:  # before it could save: the signal reaches it too; the search resumes it
        found: Result = {"state": "stopped"}
    elif outcome.error is not None:
        found = {"state": "failed", "reason": outcome.error}
    else:
        found = outcome.result
    found = {**found, "seconds": round(seconds, 1)}
    write_json(folder / RESULT_FILE, found)
    return found


def start(work: str, job: Mapping[str, Any], search: Search, folder: Path, slot: int) -> Any:
    """Runs one job of `toolkit.lab.worker` and returns its `toolkit.lab.jobs.jobs.Outcome`."""
    launch = search.request.launch
    environ = {**launch.environ, **resources(slot, search.parallel, launch.processes)}
    if search.storage is not None:
        environ[ENVIRON] = search.storage
    task = Job(work, job, folder / "outcome.json")
    (outcome,) = run_trials([task], folder / f"{work}.log", launch.processes, launch.file, environ)
    task.outcome.unlink(missing_ok=True)
    return outcome


def read_result(folder: Path) -> Result | None:
    """Returns how a trial ended, or None if it has not."""
    with suppress(OSError, ValueError):
        return dict(json.loads((folder / RESULT_FILE).read_text(encoding="utf-8")))
    return None


def resources(slot: int, parallel: int, processes: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment variables that give the trial of a slot its part of the machine."""
    if parallel == 1:
        return {}
    if gpus := _gpus(environ):
        return {VISIBLE: ",".join(gpus[slot * processes : (slot + 1) * processes])}
    if "OMP_NUM_THREADS" in environ:
        return {}
    return {"OMP_NUM_THREADS": str(threads_per_process(parallel * processes))}


def require_gpus(parallel: int, processes: int, environ: Mapping[str, str] = os.environ) -> None:
    """Raises InputError if there are too few GPUs for this number of parallel trials."""
    gpus = len(_gpus(environ))
    if parallel > 1 and 0 < gpus < parallel * processes:
        raise InputError(
            f"--parallel: {parallel} trials of {processes} process{'es' if processes > 1 else ''} need "
            f"{parallel * processes} GPUs, and there are {gpus}; set --parallel {max(1, gpus // processes)}"
        )


def _gpus(environ: Mapping[str, str]) -> list[str]:
    if VISIBLE in environ:
        return [each for each in environ[VISIBLE].split(",") if each.strip()]
    import torch

    return list(map(str, range(torch.cuda.device_count())))


def lighten(folder: Path) -> None:
    """Removes the checkpoints and models of a finished trial; its logs stay."""
    run = RunFolder(folder / "run")
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    remove_model(run)


FAILURES = 3
"""The search ends if its first trials, at least this many, have all failed."""
MOST_INFEASIBLE = 10
"""The search ends after this many trials in a row that proved impossible when they began."""
SAVE_SECONDS = 30.0
"""How long a search that is stopped waits for its trials to save."""

Told = Callable[[int, Result], None]
"""Called with the number of a trial that is over, and how it ended."""


@dataclass
class _Running:
    """A trial, and the lock of its folder while this search trains it."""

    trial: Trial
    held: ExitStack = field(default_factory=ExitStack)


class Threads:
    """Runs functions in at most `count` daemon threads, and returns their results in order of completion."""

    def __init__(self, count: int) -> None:
        self._slots = list(range(count))
        self._done: queue.Queue[tuple[int, int, Result | BaseException]] = queue.Queue()
        self.running: set[int] = set()

    @property
    def has_room(self) -> bool:
        """Whether another function can start."""
        return bool(self._slots)

    def start(self, number: int, work: Callable[[int], Result]) -> None:
        """Starts a function, whose argument is its slot."""
        slot = self._slots.pop(0)
        self.running.add(number)
        Thread(lambda: self._run(number, slot, work), f"trial {number}").start()

    def _run(self, number: int, slot: int, work: Callable[[int], Result]) -> None:
        try:
            self._done.put((number, slot, work(slot)))
        except BaseException as error:  # raised by `next`
            self._done.put((number, slot, error))

    def next(self, timeout: float | None = None) -> tuple[int, Result]:
        """Waits for a function, and returns its number and result; raises `queue.Empty` after the timeout (seconds)."""
        number, slot, found = self._done.get(timeout=timeout)
        self._slots = sorted([*self._slots, slot])
        self.running.discard(number)
        if isinstance(found, BaseException):
            raise found
        return number, found

    @contextmanager
    def saved_at_end(self) -> Iterator[None]:
        """Gives running trials time to save when Ctrl-C, which reaches them too, ends the block."""
        try:
            yield
        except KeyboardInterrupt:
            end = time.monotonic() + SAVE_SECONDS
            while self.running and time.monotonic() < end:
                try:
                    self.next(timeout=max(0.1, end - time.monotonic()))
                except queue.Empty:
                    break
            raise


def run(search: Search, book: Book, told: Told) -> None:
    """Runs the remaining trials of a study until the time is over; calls `told` after each.

    Raises RunError if the first trials all failed, or too many points in a row were invalid.
    """
    waiting, threads, infeasible = book.orphans(), Threads(search.parallel), 0
    active: dict[int, _Running] = {}
    with threads.saved_at_end():
        while True:
            while threads.has_room and not (search.deadline and time.time() > search.deadline):
                trial = waiting.pop(0) if waiting else book.ask()
                if trial is None:
                    break
                if (begun := _begin(search, book, threads, trial)) is not None:
                    active[trial.number] = begun
            if not active:
                return
            number, result = threads.next()
            running = active.pop(number)
            with running.held:  # until the study knows, so that no other search takes the trial
                if result["state"] == "stopped":  # the search resumes it
                    continue
                book.tell(running.trial, result)
            _tidy(search, book)
            told(number, result)
            _check_failures(book.trials())
            infeasible = infeasible + 1 if result["state"] == "infeasible" else 0
            if infeasible == MOST_INFEASIBLE:
                raise RunError(f"{infeasible} trials in a row cannot be trained; the last one: {result['reason']}")


def _begin(search: Search, book: Book, threads: Threads, trial: Trial) -> _Running | None:
    """Starts a trial; None if another search of this folder has taken it in the meantime."""
    folder = search.folder_of(trial.number)
    folder.mkdir(parents=True, exist_ok=True)
    running = _Running(trial)
    try:
        running.held.enter_context(OutputLock(folder))
    except FolderInUse:
        return None
    if book.trials()[trial.number].state.is_finished():
        running.held.close()
        return None
    job = job_of(search, overrides_of(trial.params), folder / "run")
    if METHODS[search.method].prunes:
        job["study"] = {"folder": str(search.folder), "name": book.name, "method": search.method,
                        "trial_id": trial._trial_id}  # fmt: skip
    threads.start(trial.number, lambda slot: train(search, job, folder, slot))
    return running


def best_of(found: list[FrozenTrial], greater_is_better: bool) -> FrozenTrial | None:
    """Returns the best finished trial, the first of equal ones; None if there is none."""
    ended = [each for each in found if each.state.name == "COMPLETE" and result_of(each)["state"] == "finished"]
    sign = 1 if greater_is_better else -1
    return max(ended, key=lambda each: (sign * each.values[0], -each.number), default=None)


def _tidy(search: Search, book: Book) -> None:
    """Removes the checkpoints of all finished trials except the best and the configured settings."""
    found = book.trials()
    best = best_of(found, search.metric.greater_is_better)
    kept = {each.number for each in (best, baseline_of(book, found)) if each is not None}
    for each in found:
        if each.state.is_finished() and each.number not in kept:
            lighten(search.folder_of(each.number))


def baseline_of(book: Book, found: list[FrozenTrial]) -> FrozenTrial | None:
    """Returns the trial of the configured settings, or None if there is none."""
    same = (each for each in found if book.start is not None and each.params == book.start)
    return next((each for each in same if result_of(each)["state"] == "finished"), None)


def _check_failures(found: list[FrozenTrial]) -> None:
    failed = [each for each in counted(found) if result_of(each)["state"] == "failed"]
    others = [each for each in found if result_of(each)["state"] in ("finished", "pruned", "diverged")]
    if len(failed) >= FAILURES and not others:
        raise RunError(f"the first {len(failed)} trials failed; the last one: {result_of(failed[-1])['reason']}")


def replace_run(child: Path, parent: Path, before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
    """Replaces a member's run by its parent's newest checkpoint, with the child's settings, and returns the step.

    Bits are the parent's except for the changed settings in `state.json`. Raises RunError without a checkpoint.
    """
    found, messages = latest(RunFolder(parent).checkpoints)
    if found is None:
        raise RunError(f"{parent} has no checkpoint to copy: {'; '.join(messages) or 'its folder was changed'}")
    child.parent.mkdir(parents=True, exist_ok=True)
    with written_folder(child) as folder:
        shutil.copytree(found.path, RunFolder(folder).checkpoints / found.path.name)
        if RunFolder(parent).metrics.exists():
            shutil.copyfile(RunFolder(parent).metrics, RunFolder(folder).metrics)
        explore_checkpoint(RunFolder(folder).checkpoints / found.path.name, found.step, before, after)
    return found.step


def explore_checkpoint(path: Path, step: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Changes settings, by dotted key, of the run that a new checkpoint belongs to."""
    file = CheckpointFolder(path).state
    content = json.loads(file.read_text(encoding="utf-8"))
    for override in written({key: value for key, value in after.items() if value != before.get(key)}):
        key, _, text = override.partition("=")
        content["identity"][key] = Settings(Source("override", override)).parse(text, tuple(key.split(".")))[1]
    file.write_text(json.dumps(content), encoding="utf-8")
    CheckpointFolder(path).manifest.unlink()  # it lists every file but itself
    write_manifest(path, step, {})
