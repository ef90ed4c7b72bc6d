"""The table of stop signals: each in each phase of a run saves and ends it, and a second one ends it at once."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

import pytest
from fault_runs import QUICK, RESUME, argv
from faults import Faults, differences
from forked import ForkServer, Started

from toolkit.checkpoint.manifest import verify
from toolkit.checkpoint.store import steps

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

STOPS = {name: getattr(signal, f"SIG{name}") for name in ("TERM", "INT", "HUP", "USR1", "USR2")}
PHASES = {
    "preparing": ("toolkit.run.read_inputs", 1),
    "building": ("toolkit.run.build_for", 1),
    "step": ("toolkit.engine.training.Session.window_gradient", 3),
    "save": ("toolkit.checkpoint.store.write_manifest", 1),
    "evaluation": ("toolkit.engine.evaluation.Evaluator.evaluate", 1),
    "end": ("toolkit.run.write_results", 1),
}
"""The function in which the signal arrives, and in which of its calls."""
BEFORE_TRAINING = ("preparing", "building")
LAYOUTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "loop": (1, ()),
    "trainer": (1, ("engine=trainer",)),
    "async": (1, ("checkpoint.async_save=true",)),
    "loop-2": (2, ()),
    "sharded": (2, ("parallel.fsdp=2", "checkpoint.format=sharded")),
}
AS_USUAL = {name: (-number,) for name, number in STOPS.items() if name != "INT"}
"""Exit codes of a process that heeds no signal yet."""
OTHER_CODES = {
    **dict.fromkeys(BEFORE_TRAINING, AS_USUAL),
    "end": {name: (0, -number) for name, number in STOPS.items()},
}
"""Exit codes besides 128 + the signal; results that are being written may be completed first."""
SLOW_SECONDS, LIMIT_SECONDS = 1.0, 10.0


def in_phase(server: ForkServer, folder: Path, layout: str, phase: str, seconds: float = SLOW_SECONDS) -> Started:
    """Starts a run and returns when it is inside a phase, which takes `seconds` longer."""
    processes, settings = LAYOUTS[layout]
    place, call = PHASES[phase]
    hooks = [*QUICK, ("slow", {"place": place, "seconds": seconds, "call": call})]
    started = server.start(argv(folder / "run", *settings), processes=processes, hooks=hooks)
    # A phase of the first process alone is entered by one, any other by all.
    assert started.until(lambda: f"in {place}" in started.output()), started.output()
    return started


@pytest.fixture(scope="module")
def references(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for layout, (processes, settings) in LAYOUTS.items():
        found[layout] = tmp_path_factory.mktemp(layout) / "run"
        command = argv(found[layout], *settings)
        ended = server.run(command, processes=processes, hooks=QUICK)
        assert not any(ended.codes), ended.output
    return found


def problems_after(server: ForkServer, folder: Path, layout: str, phase: str, reference: Path) -> list[str]:
    """Returns what is wrong with the checkpoint of a stopped run, and with its resume."""
    processes, settings = LAYOUTS[layout]
    saved = [path for _, path in steps(folder / "run" / "checkpoints")]
    wrong = [f"{path.name}: {problem}" for path in saved for problem in verify(path)]
    if not saved and phase not in BEFORE_TRAINING:
        wrong.append("nothing was saved")
    again = argv(folder / "run", *settings, RESUME)
    ended = server.run(again, processes=processes, hooks=QUICK)
    return wrong + ([ended.output] if any(ended.codes) else differences(reference, folder / "run"))


def test_every_signal_in_every_phase_saves_and_ends_the_run(server, faults: Faults, references, tmp_path):
    wrong = []
    cases = faults.sample(itertools.product(LAYOUTS, PHASES, STOPS), least=4)
    for number, (layout, phase, name) in enumerate(cases):
        folder, where = tmp_path / str(number), f"SIG{name} in {phase}, {layout}"
        started = in_phase(server, folder, layout, phase)
        faults.count("signals")
        began = time.monotonic()
        started.signal(STOPS[name])
        ended = started.wait()
        wrong += faults.problems(ended, where, [128 + STOPS[name], *OTHER_CODES.get(phase, {}).get(name, ())])
        if time.monotonic() - began > SLOW_SECONDS + LIMIT_SECONDS:
            wrong += faults.wrong([f"{where}: took {time.monotonic() - began:.1f} s"])
        found = problems_after(server, folder, layout, phase, references[layout])
        wrong += faults.wrong([f"{where}: {each}" for each in found])
    assert not wrong, "\n".join(wrong)


def test_a_second_signal_ends_a_run_at_once(server, faults: Faults, references, tmp_path):
    wrong = []
    for number, (phase, name) in enumerate(faults.sample(itertools.product(("step", "save", "evaluation"), STOPS))):
        folder, where = tmp_path / str(number), f"two SIG{name} in {phase}"
        started = in_phase(server, folder, "loop", phase, seconds=60)
        faults.count("signals", 2)
        started.signal(STOPS[name])
        time.sleep(1.2)  # what arrives within a second is an echo of the first
        began = time.monotonic()
        started.signal(STOPS[name])
        wrong += faults.problems(started.wait(), where, [128 + STOPS[name]])
        if time.monotonic() - began > 3:
            wrong += faults.wrong([f"{where}: took {time.monotonic() - began:.1f} s"])
        found = problems_after(server, folder, "loop", "preparing", references["loop"])
        wrong += faults.wrong([f"{where}: {each}" for each in found])
    assert not wrong, "\n".join(wrong)


def test_sigquit_ends_a_run_at_once_and_loses_nothing_saved(server, faults: Faults, references, tmp_path):
    wrong = []
    for phase in faults.sample(PHASES, "quit"):
        folder = tmp_path / phase
        started = in_phase(server, folder, "loop", phase)
        faults.count("signals")
        started.signal(signal.SIGQUIT)
        wrong += faults.problems(started.wait(), f"SIGQUIT in {phase}", [-signal.SIGQUIT])
        wrong += faults.wrong(problems_after(server, folder, "loop", "preparing", references["loop"]))
    assert not wrong, "\n".join(wrong)


def test_a_stop_during_a_generation_of_a_minute_saves_within_ten_seconds(server, faults: Faults, tmp_path):
    """Each token takes a second here, and there are 48 of them."""
    place = "transformers.models.t5.modeling_t5.T5ForConditionalGeneration.forward"
    settings = ("train.max_steps=1", "checkpoint.save_steps=1")
    hooks = [*QUICK, ("slow", {"place": place, "seconds": 1.0})]
    started = server.start(argv(tmp_path / "run", *settings, recipe="summarization"), hooks=hooks)
    assert started.until(lambda: started.output().count(f"in {place}") > 8), started.output()
    faults.count("signals")
    began = time.monotonic()
    started.signal(signal.SIGTERM)
    ended = started.wait()
    assert faults.problems(ended, "SIGTERM in a generation", [143]) == []
    assert time.monotonic() - began < LIMIT_SECONDS
    ((step, saved),) = steps(tmp_path / "run" / "checkpoints")
    assert (step, verify(saved)) == (1, [])
