"""Runs the trials of a study, several at the same time; what an earlier search began goes on first."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolkit.base.errors import RunError
from toolkit.checkpoint.output_folder import FolderInUse, OutputLock
from toolkit.lab.search import trials
from toolkit.lab.search.methods import METHODS
from toolkit.lab.search.space import overrides_of
from toolkit.lab.search.study import Book, Result, counted, result_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

    from toolkit.lab.search.study import Search

FAILURES = 3
"""The search ends if this many trials have failed, and none has not."""
MOST_INFEASIBLE = 10
"""After this many trials in a row that turned out to be impossible only when they began, the search ends."""
SAVE_SECONDS = 30.0
"""How long a search that is stopped waits for its trials to save."""

Told = Callable[[int, Result], None]
"""Called with the number of a trial that is over, and how it ended."""


@dataclass
class _Running:
    """A trial, and the lock of its folder, which says that this search trains it."""

    trial: Trial
    held: ExitStack = field(default_factory=ExitStack)


class Threads:
    """Runs functions in threads that end with the process, and returns their results in the order in which they come.

    Args:
        count: number of threads at the same time.
    """

    def __init__(self, count: int) -> None:
        self._slots = list(range(count))
        self._done: queue.Queue[tuple[int, int, Result | BaseException]] = queue.Queue()
        self.running: set[int] = set()

    @property
    def has_room(self) -> bool:
        """Whether another function can start."""
        return bool(self._slots)

    def start(self, number: int, work: Callable[[int], Result]) -> None:
        """Starts a function, which takes its place among those that run at the same time."""
        slot = self._slots.pop(0)
        self.running.add(number)
        threading.Thread(target=self._run, args=(number, slot, work), daemon=True).start()

    def _run(self, number: int, slot: int, work: Callable[[int], Result]) -> None:
        try:
            self._done.put((number, slot, work(slot)))
        except BaseException as error:  # raised by `next`
            self._done.put((number, slot, error))

    def next(self, timeout: float | None = None) -> tuple[int, Result]:
        """Waits for a function to end, and returns its number and its result.

        Raises:
            queue.Empty: after the timeout, in seconds.
        """
        number, slot, found = self._done.get(timeout=timeout)
        self._slots = sorted([*self._slots, slot])
        self.running.discard(number)
        if isinstance(found, BaseException):
            raise found
        return number, found

    @contextmanager
    def saved_at_end(self) -> Iterator[None]:
        """Gives what runs the time to save when Ctrl-C, which reaches it too, ends the block."""
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
    """Runs what is left of a study, until there are enough trials or the time is over.

    Args:
        search: the search.
        book: its study.
        told: called after each trial.

    Raises:
        RunError: if the first trials all failed, or too many points in a row were refused.
    """
    waiting, threads, infeasible = book.orphans(), Threads(search.parallel), 0
    active: dict[int, _Running] = {}
    with threads.saved_at_end():
        while True:
            while threads.has_room and not _is_over(search):
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
                if result["state"] == "stopped":  # it goes on when the search does
                    continue
                book.tell(running.trial, result)
            _tidy(search, book)
            told(number, result)
            _refuse_failures(book.trials())
            infeasible = infeasible + 1 if result["state"] == "infeasible" else 0
            if infeasible == MOST_INFEASIBLE:
                raise RunError(f"{infeasible} trials in a row cannot be trained; the last one: {result['reason']}")


def _is_over(search: Search) -> bool:
    return search.deadline is not None and time.time() > search.deadline


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
    job = trials.job_of(search, overrides_of(trial.params), folder / "run")
    if METHODS[search.method].prunes:
        job["study"] = {"folder": str(search.folder), "name": book.name, "method": search.method,
                        "trial_id": trial._trial_id}  # fmt: skip
    threads.start(trial.number, lambda slot: trials.train(search, job, folder, slot))
    return running


def best_of(found: list[FrozenTrial], greater_is_better: bool) -> FrozenTrial | None:
    """Returns the best trial that came to its end; of equal ones the first. None if there is none."""
    ended = [each for each in found if each.state.name == "COMPLETE" and result_of(each)["state"] == "finished"]
    sign = 1 if greater_is_better else -1
    return max(ended, key=lambda each: (sign * each.values[0], -each.number), default=None)


def _tidy(search: Search, book: Book) -> None:
    """Removes the checkpoints of all trials that are over but the best and the configured settings."""
    found = book.trials()
    best = best_of(found, search.metric.greater_is_better)
    kept = {each.number for each in (best, baseline_of(book, found)) if each is not None}
    for each in found:
        if each.state.is_finished() and each.number not in kept:
            trials.lighten(search.folder_of(each.number))


def baseline_of(book: Book, found: list[FrozenTrial]) -> FrozenTrial | None:
    """Returns the trial of the configured settings, or None if there is none."""
    same = (each for each in found if book.start is not None and each.params == book.start)
    return next((each for each in same if result_of(each)["state"] == "finished"), None)


def _refuse_failures(found: list[FrozenTrial]) -> None:
    failed = [each for each in counted(found) if result_of(each)["state"] == "failed"]
    others = [each for each in found if result_of(each)["state"] in ("finished", "pruned", "diverged")]
    if len(failed) >= FAILURES and not others:
        raise RunError(f"the first {len(failed)} trials failed; the last one: {result_of(failed[-1])['reason']}")
