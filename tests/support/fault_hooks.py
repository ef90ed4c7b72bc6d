"""What a forked run does differently: a fault in its files, a slow phase, a log of its rows."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from file_faults import arm, shift_clock

from toolkit.base.package import import_object


def log_rows(path: str) -> None:
    """Appends a line for each counted step: its number, epoch, rank and rows in the training file."""
    from toolkit.engine.non_finite import row_numbers
    from toolkit.engine.training import Session

    count_step = Session.count_step
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def counted(self: Session, *arguments: Any, **named: Any) -> None:
        rows = row_numbers(self.run.data.train, self.window)
        epoch = self.state.step // self.milestones.steps_per_epoch
        count_step(self, *arguments, **named)
        line = {"step": self.state.step, "epoch": epoch, "rank": self.run.accelerator.process_index, "rows": rows}
        os.write(file, json.dumps(line).encode() + b"\n")

    Session.count_step = counted  # type: ignore[method-assign]


def _replace(place: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces `module.function` or `module.Class.method` by what `make` returns for it."""
    owner_name, name = place.rsplit(".", 1)
    owner = import_object(owner_name)
    function = getattr(owner, name)
    setattr(owner, name, wraps(function)(make(function)))  # libraries read signatures


def slow(place: str, seconds: float, call: int | None = None) -> None:
    """Makes a function take longer, in each or in one of its calls, and say so by a line `in <place>`."""
    calls = 0

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def delayed(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if call in (None, calls):
                print(f"in {place}", flush=True)
                end = time.monotonic() + seconds
                while (left := end - time.monotonic()) > 0:  # a signal ends one `sleep`
                    time.sleep(min(left, 0.05))
            return function(*arguments, **named)

        return delayed

    _replace(place, make)


def kill_at(place: str, call: int = 1, after: float = 0.0) -> None:
    """Kills this process some seconds after it calls a function for the n-th time.

    An alarm without a handler ends a process as SIGKILL does: at once, and no line of Python runs any more.
    """
    calls = 0

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, max(after, 1e-6))
            return function(*arguments, **named)

        return counted

    _replace(place, make)


def time_calls(places: list[str], path: str) -> None:
    """Appends a line for each call of functions: the function and its seconds."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def timed(place: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(function: Callable[..., Any]) -> Callable[..., Any]:
            def measured(*arguments: Any, **named: Any) -> Any:
                begin = time.monotonic()
                try:
                    return function(*arguments, **named)
                finally:
                    os.write(file, f"{place} {time.monotonic() - begin}\n".encode())

            return measured

        return make

    for place in places:
        _replace(place, timed(place))


def limit_memory(more: int) -> None:
    """Lets this process take `more` bytes of address space than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def no_prediction() -> None:
    """Leaves out the prediction of memory in the report, which takes longer than such a small run."""
    from toolkit.base.errors import InputError

    def refused(*_: Any, **__: Any) -> Any:
        raise InputError("memory is not predicted in this test")

    _replace("toolkit.footprint.predict.predicted", lambda _: refused)


def use_cache(path: str) -> None:
    """Keeps prepared rows in another folder than that of the server."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = path


HOOKS: dict[str, Callable[..., None]] = {
    each.__name__: each
    for each in (arm, kill_at, limit_memory, log_rows, no_prediction, shift_clock, slow, time_calls, use_cache)
}
