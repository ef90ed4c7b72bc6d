"""Where the time of a training goes: seconds by phase, on the clock of the thread that trains.

A phase that begins inside another one interrupts it, so every moment counts once. Nothing waits for a GPU: there, a
phase is the time to hand its work over, and the wait for it counts where a result is read, which is mostly `clip`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

PHASES = {
    "fetch": "loading and collating rows, or waiting for the workers that do",
    "forward": "moving rows to the device, the model and the loss",
    "backward": "computing gradients",
    "exchange": "sending to other processes, and waiting for them",
    "clip": "the norm of the gradient, and clipping",
    "update": "optimizer, checks of the update, and callbacks",
    "log": "summing and writing metrics",
    "evaluate": "evaluations",
    "save": "checkpoints, or what training waits for while they are written",
}
"""The phases and what they are, in the order of a step."""
OTHER = "other"
"""All time of a training outside the phases."""
WHOLE = ("log", "evaluate", "save")
"""Phases in which everything counts as theirs, except for one another."""
PREFIX = "seconds_"
"""How the names of the phases begin among the metrics."""

F = TypeVar("F", bound=Callable[..., Any])


class PhaseClock:
    """Sums seconds by phase.

    Attributes:
        phase: the phase under way.
        watcher: called with the phase that ends, to which its time counts, and the one that begins, or None.
    """

    def __init__(self) -> None:
        self.phase = OTHER
        self.watcher: Callable[[str, str], None] | None = None
        self.start()

    def start(self) -> None:
        """Sets all sums to zero: training begins."""
        self._seconds = dict.fromkeys([*PHASES, OTHER], 0.0)
        self._before = dict(self._seconds)
        self._since = time.perf_counter()

    def enter(self, phase: str) -> str:
        """Begins a phase and returns the one that it interrupts, for `leave`."""
        outer = self.phase
        if outer not in WHOLE or phase in WHOLE:
            self._change(phase)
        return outer

    def leave(self, outer: str) -> None:
        """Ends a phase and returns to the one that it interrupted."""
        self._change(outer)

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each phase and of `OTHER` so far."""
        self._count()
        return dict(self._seconds)

    def since_last(self) -> dict[str, float]:
        """Returns the seconds of each phase and of `OTHER` since the last call."""
        before, self._before = self._before, self.seconds()
        return {phase: seconds - before[phase] for phase, seconds in self._before.items()}

    def _change(self, phase: str) -> None:
        if self.watcher is not None and phase != self.phase:
            self.watcher(self.phase, phase)
        self._count()
        self.phase = phase

    def _count(self) -> None:
        now = time.perf_counter()
        self._seconds[self.phase] += now - self._since
        self._since = now


_CLOCK: ContextVar[PhaseClock | None] = ContextVar("clock", default=None)
_NONE: AbstractContextManager[Any] = nullcontext()


class _Phase:
    """A phase while it lasts; `contextlib.contextmanager` would take three times as long."""

    __slots__ = ("_clock", "_name", "_outer")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._outer = self._clock.enter(self._name)

    def __exit__(self, *_: object) -> None:
        self._clock.leave(self._outer)


def phase(name: str) -> AbstractContextManager[None]:
    """Counts the time inside as a phase, a key of `PHASES`; does nothing outside a training, or in another thread."""
    clock = _CLOCK.get()
    return _NONE if clock is None else _Phase(clock, name)


def in_phase(name: str) -> Callable[[F], F]:
    """Returns a decorator that counts the calls of a function as a phase."""

    def decorate(function: F) -> F:
        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            with phase(name):
                return function(*arguments, **named)

        return timed  # type: ignore[return-value]

    return decorate


@contextmanager
def timed_phases() -> Iterator[PhaseClock]:
    """Yields the clock of a training, to which phases inside count."""
    clock = PhaseClock()
    token = _CLOCK.set(clock)
    try:
        yield clock
    finally:
        _CLOCK.reset(token)


def active_clock() -> PhaseClock | None:
    """Returns the clock of the training of this thread, if there is one."""
    return _CLOCK.get()


def named_seconds(seconds: Mapping[str, float]) -> dict[str, float]:
    """Returns the seconds of phases, in whole microseconds, by the names of their metrics."""
    return {f"{PREFIX}{name}": round(value, 6) for name, value in seconds.items()}
