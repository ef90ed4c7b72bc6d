"""How long it takes to load and collate a window in one process, and which function takes most of that time."""

from __future__ import annotations

import cProfile
import pstats
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from toolkit.data.batching.batches import Windows, training_loader
from toolkit.engine.micro_batches import packs_tokens, training_processor

if TYPE_CHECKING:
    from toolkit.api.run import Run

TOOLKIT = Path(__file__).resolve().parents[2]
LIBRARIES = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
LEAST_SHARE = 0.2
"""Share of the time in one function, from which it is named."""

Place: TypeAlias = tuple[str, int, str]
"""File, line and name of a function."""


@dataclass(frozen=True)
class Loading:
    """The time to load windows.

    Args:
        seconds: of a window, in one process.
        function: the function of the recipe or the toolkit with the most time, its calls of libraries included; None
            if no function has much of it.
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
    stats: dict[Place, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    spent: dict[Place, float] = {}
    for place, (_, _, own, _, _) in stats.items():
        if (owner := _owner(place, stats)) is not None:
            spent[owner] = spent.get(owner, 0.0) + own
    most = max(spent.values(), default=0.0)
    if not spent or most < LEAST_SHARE * sum(own for _, _, own, _, _ in stats.values()):
        return Loading(seconds)
    file, line, name = max(spent, key=lambda each: spent[each])
    return Loading(seconds, name, f"{Path(file).name}:{line}", min(most / windows, seconds))


def _owner(place: Place, stats: Mapping[Place, Any]) -> Place | None:
    """Returns the function that is not a library's on whose behalf a function mostly runs; None if there is none."""
    seen = set()
    while _is_library(place):
        seen.add(place)
        callers = {caller: times for caller, times in stats[place][4].items() if caller in stats and caller not in seen}
        if not callers:
            return None
        place = max(callers, key=lambda caller: callers[caller][3])
    return place


def _is_library(place: Place) -> bool:
    """Whether a function is built in, or from a library other than the toolkit."""
    file = Path(place[0])
    return not file.is_absolute() or (
        any(file.is_relative_to(folder) for folder in LIBRARIES) and not file.is_relative_to(TOOLKIT)
    )
