"""Runs that meet: in one folder, over one cache; and a clock that jumps."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fault_runs import QUICK, RESUME, argv
from faults import Faults, differences
from forked import ForkServer

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

TIMES = 20
"""Repetitions of each race in a complete run."""
DAY = 86400.0
CLOCKS = {
    "an hour back at each reading": {"shift": 0.0, "step": -3600.0},
    "a day ahead at each reading": {"shift": 0.0, "step": DAY},
    "in 1971": {"shift": -55 * 365 * DAY, "step": 0.0},
    "in 2100": {"shift": 75 * 365 * DAY, "step": 0.0},
}


@pytest.fixture(scope="module")
def reference(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("reference") / "run"
    ended = server.run(argv(run), hooks=QUICK)
    assert ended.code == 0, ended.output
    return run


def test_of_runs_that_start_in_one_folder_one_goes_on(server, faults: Faults, reference, tmp_path):
    wrong = []
    for number in faults.sample(range(TIMES), least=2):
        run = tmp_path / str(number)
        started = [server.start(argv(run), hooks=QUICK) for _ in range(3)]
        faults.count("races")
        ended = [each.wait() for each in started]
        for each in ended:
            wrong += faults.problems(each, f"race {number}", [0, 2])
        if sorted(each.code for each in ended) != [0, 2, 2]:
            wrong += faults.wrong([f"race {number}: {[each.output for each in ended]}"])
        wrong += faults.wrong(differences(reference, run))
    assert not wrong, "\n".join(wrong)


def test_of_resumes_in_one_folder_one_at_a_time_goes_on(server, faults: Faults, reference, tmp_path):
    wrong = []
    for number in faults.sample(range(TIMES), "resumes"):
        run = tmp_path / str(number)
        started = [server.start(argv(run, RESUME), hooks=QUICK) for _ in range(3)]
        faults.count("races")
        for each in [each.wait() for each in started]:
            wrong += faults.problems(each, f"race {number}", [0])
        wrong += faults.wrong(differences(reference, run))
    assert not wrong, "\n".join(wrong)


def test_runs_that_share_an_empty_cache_make_it_once(server, faults: Faults, reference, tmp_path):
    wrong = []
    for number in faults.sample(range(TIMES), "cache"):
        cache = tmp_path / f"cache-{number}"
        hooks = [*QUICK, ("use_cache", {"path": str(cache)})]
        started = [server.start(argv(tmp_path / f"{number}-{run}"), hooks=hooks) for run in range(4)]
        faults.count("races")
        for run, each in enumerate([each.wait() for each in started]):
            wrong += faults.problems(each, f"race {number}", [0])
            wrong += faults.wrong(differences(reference, tmp_path / f"{number}-{run}") if each.code == 0 else [])
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("clock", CLOCKS)
def test_clocks_that_jump_change_nothing(injecting: ForkServer, faults: Faults, reference, tmp_path, clock):
    run = tmp_path / "run"
    hooks = [*QUICK, ("shift_clock", CLOCKS[clock])]
    faults.count("races")
    stopped = [*hooks, ("kill_at", {"place": "toolkit.run.write_results"})]
    injecting.run(argv(run), hooks=stopped)
    ended = injecting.run(argv(run, RESUME), hooks=hooks)
    assert faults.problems(ended, clock, [0]) == []
    assert faults.wrong(differences(reference, run)) == []


def test_times_of_files_say_nothing(server, faults: Faults, reference, tmp_path):
    """The oldest checkpoint has the newest time, as after a copy; the newest one is resumed."""
    run = shutil.copytree(reference, tmp_path / "run")
    for place, when in (("step-12", 0.0), ("step-8", 4e9)):
        for path in (run / "checkpoints" / place).rglob("*"):
            os.utime(path, (when, when))
        os.utime(run / "checkpoints" / place, (when, when))
    faults.count("races")
    ended = server.run(argv(run, RESUME), hooks=QUICK)
    assert faults.problems(ended, "times", [0]) == []
    assert f"resuming from {run / 'checkpoints' / 'step-12'}" in ended.output
    assert faults.wrong(differences(reference, run)) == []
