"""Checkpoints that an earlier version wrote resume, and their runs end as those that today's version trains alone.

`former_runs` says how tests/data/checkpoints was written. Numbers are compared in float32, on any machine.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import former_runs
import pytest
import torch
from former_runs import DATA, SAVED_STEP
from launching import fork
from runs import lines, weights
from safetensors.torch import load_file
from tolerances import float32_tolerance

STEPS = 6
TOLERANCE = float32_tolerance(STEPS, terms=4 * 24)  # the longest sum is over the tokens of a micro-batch


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a run that was never stopped."""
    folder = tmp_path_factory.mktemp("former") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(DATA)
        former_runs.train(folder, 1)
    return folder


def resumed(name: str, folder: Path, processes: int) -> Path:
    """Continues a copy of a saved run."""
    shutil.copytree(DATA / name, folder)
    if processes == 1:
        former_runs.resume(name, folder, processes)
    else:
        fork([former_runs.__file__, "resume", name, folder], processes)
    return folder


def farthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize(
    ("name", "processes"),
    [("loop", 1), ("trainer", 1), ("sharded", 1), pytest.param("sharded", 2, marks=pytest.mark.distributed)],
)
def test_a_former_run_ends_as_one_of_today(name, processes, whole, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(DATA)
    run = resumed(name, tmp_path / name, processes)
    assert farthest(weights(run), weights(whole)) <= TOLERANCE
    losses, expected = ([line["loss"] for line in lines(each, "loss")] for each in (run, whole))
    assert losses == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
    assert len(losses) == STEPS  # those before the stop are of the former version
    assert [path.name for path in (run / "checkpoints").iterdir() if path.name == f"step-{SAVED_STEP}"]


def test_the_rest_of_a_run_moves_its_weights_beyond_rounding(whole) -> None:
    averages = load_file(DATA / "loop/checkpoints" / f"step-{SAVED_STEP}" / "ema.safetensors")
    final = weights(whole)
    assert farthest(averages, {name: final[name] for name in averages}) > 20 * TOLERANCE
