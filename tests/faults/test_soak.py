"""Runs that are killed again and again end exactly as those that never were."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest
from fault_runs import QUICK, RESUME, ROWS, STEPS_PER_EPOCH, argv, logging_rows
from faults import Faults, differences, row_problems
from forked import DEADLY, ForkServer, Hook

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

PHASES = {
    "start-up": ("toolkit.run.claim", "toolkit.run.read_inputs", "toolkit.run.write_start", "toolkit.run.build_for"),
    "step": ("toolkit.engine.training.Session.window_gradient", "toolkit.engine.training.Session.count_step"),
    "save": ("toolkit.engine.checkpointing.Checkpointer.save",),
    "evaluation": ("toolkit.engine.evaluation.Evaluator.evaluate",),
    "generation": ("transformers.generation.utils.GenerationMixin.generate",),
    "end": ("toolkit.run.qualities", "toolkit.run.write_results"),
}
"""The functions of each phase, in which a run is killed at a random moment."""
PER_PHASE = 4
"""Kills of each configuration in each phase."""
SHARDED = ("parallel.fsdp=2", "checkpoint.format=sharded")
ASYNC = ("checkpoint.async_save=true",)
BEST = ("checkpoint.load_best_model_at_end=true", "checkpoint.save_total_limit=1")


@dataclass(frozen=True)
class Kind:
    """A configuration: number of processes, settings, recipe."""

    processes: int
    settings: tuple[str, ...] = ()
    recipe: str = "reviews"


KINDS = {
    "loop": Kind(1, BEST),
    "trainer": Kind(1, ("engine=trainer",)),
    "loop-2": Kind(2),
    "trainer-2": Kind(2, ("engine=trainer",)),
    "loop-sharded": Kind(2, SHARDED),
    "trainer-sharded": Kind(2, ("engine=trainer", *SHARDED)),
    "generation": Kind(1, recipe="summarization"),
    "generation-2": Kind(2, recipe="summarization"),
    "loop-async": Kind(1, ASYNC),
    "trainer-async": Kind(1, ("engine=trainer", *ASYNC)),
    "sharded-async": Kind(2, (*SHARDED, *ASYNC)),
}


@dataclass(frozen=True)
class Reference:
    """A run that was never killed.

    Args:
        folder: its folder.
        seconds: the mean time of each function, and how often it was called.
    """

    folder: Path
    seconds: dict[str, tuple[float, int]]


def command(kind: Kind, folder: Path, *more: str) -> list[str | Path]:
    return argv(folder / "run", *kind.settings, *more, recipe=kind.recipe)


def reference(server: ForkServer, kind: Kind, folder: Path) -> Reference:
    """Runs a configuration without a kill, and measures its phases on the first process."""
    folder.mkdir()
    places = [place for phase in PHASES.values() for place in phase]
    times: Hook = ("time_calls", {"places": places, "path": str(folder / "times")})
    hooks = [*QUICK, logging_rows(folder)]
    ended = server.run(command(kind, folder), processes=kind.processes, hooks=hooks, rank_hooks={0: [times]})
    assert not any(ended.codes), ended.output
    found: dict[str, list[float]] = {}
    for line in (folder / "times").read_text().splitlines():
        place, seconds = line.split()
        found.setdefault(place, []).append(float(seconds))
    return Reference(folder, {place: (fmean(each), len(each)) for place, each in found.items()})


@pytest.mark.parametrize("name", KINDS)
def test_a_run_that_is_killed_often_ends_as_one_that_never_was(server: ForkServer, faults: Faults, tmp_path, name):
    """Each resume is killed in the next phase, until all kills are done; then one goes on to the end."""
    kind, random = KINDS[name], faults.random(name)
    expected = reference(server, kind, tmp_path / "reference")
    phases = [phase for phase, places in PHASES.items() if any(place in expected.seconds for place in places)]
    planned = phases * PER_PHASE
    kills, wrong, number = faults.sample(planned, name, least=3), list[str](), 0
    while kills:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        hooks = [*QUICK, logging_rows(folder)]
        for phase in kills[: len(phases)]:
            place = random.choice([place for place in PHASES[phase] if place in expected.seconds])
            seconds, calls = expected.seconds[place]
            kill = {"place": place, "call": random.randint(1, max(1, calls // 3)), "after": random.uniform(0, seconds)}
            again = command(kind, folder, RESUME)
            ended = server.run(again, processes=kind.processes, hooks=hooks, rank_hooks={0: [("kill_at", kill)]})
            wrong += faults.problems(ended, (name, kill))
            if -ended.codes[0] in DEADLY:
                faults.count("kills")
        del kills[: len(phases)]
        ended = server.run(command(kind, folder, RESUME), processes=kind.processes, hooks=hooks)
        wrong += faults.problems(ended, (name, number, "the last resume"), [0])
        found = differences(expected.folder / "run", folder / "run")
        if kind.recipe == "reviews":
            found += row_problems(folder / "rows.jsonl", ROWS, STEPS_PER_EPOCH)
        wrong += faults.wrong([f"{name}, {number}: {each}" for each in found])
    assert not wrong, "\n".join(wrong)
