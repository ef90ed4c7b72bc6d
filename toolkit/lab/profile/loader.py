"""How long it takes to load and collate a window in one process, and which function takes most of that time."""

from __future__ import annotations

import cProfile
import pstats
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.data.batches import Windows, training_loader
from toolkit.engine.parts import packs_tokens, training_processor

if TYPE_CHECKING:
    from toolkit.api.run import Run

LEAST_SHARE = 0.2
"""Share of the time in one function, from which it is named."""


@dataclass(frozen=True)
class Loading:
    """The time to load windows.

    Args:
        seconds: of a window, in one process.
        function: the function with the most time of its own, calls to built-in ones included; None if no function
            has much of it.
        place: its file and line.
        function_seconds: its seconds of a window.
    """

    seconds: float
    function: str | None = None
    place: str | None = None
    function_seconds: float = 0.0


def time_loading(run: Run, windows: int) -> Loading:
    """Loads the first windows of the run twice in this process: once timed, once with each call recorded.

    Args:
        run: a run whose training is over.
        windows: their number.
    """
    made = _windows(run)
    begun = time.perf_counter()
    count = sum(1 for _ in islice(made, windows))
    seconds = (time.perf_counter() - begun) / max(1, count)
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in islice(_windows(run), windows):
        pass
    profiler.disable()
    return slowest(profiler, seconds, max(1, count))


def _windows(run: Run) -> Windows:
    loader, sampler = training_loader(
        run.data.train, run.task, training_processor(run), run.cfg, run.mesh, 0, run.data.kept, packs_tokens(run)
    )
    return Windows(loader, sampler)


def slowest(profiler: cProfile.Profile, seconds: float, windows: int) -> Loading:
    """Returns which function took most of the time that a profiler has recorded.

    Args:
        profiler: the profiler, which slows down Python's own code.
        seconds: seconds of a window without it, which no function can exceed.
        windows: the windows that it has recorded.
    """
    stats: dict[Any, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    own: dict[Any, float] = {}
    for place, (_, _, total, _, callers) in stats.items():
        if not _is_built_in(place):
            own[place] = own.get(place, 0.0) + total
        for caller, (_, _, inside, _) in callers.items() if _is_built_in(place) else ():
            own[caller] = own.get(caller, 0.0) + inside
    place = max(own, key=lambda each: own[each], default=None)
    if place is None or _is_built_in(place) or own[place] < LEAST_SHARE * sum(own.values()):
        return Loading(seconds)
    file, line, name = place
    return Loading(seconds, name, f"{Path(file).name}:{line}", min(own[place] / windows, seconds))


def _is_built_in(place: tuple[str, int, str]) -> bool:
    return place[0] == "~"
