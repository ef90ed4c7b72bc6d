"""A model in stages trains like the same model in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pipeline_runs
import pytest
from launching import launch
from runs import assert_close, assert_same_weights, lines, predictions, weights
from tolerances import FLOAT64

pytestmark = pytest.mark.distributed

EXACT = 1e-10
"""Tolerance of losses and gradient norms, which one step moves less than parameters."""


def prepare(output: Path, world: int, everything: bool) -> Path:
    """Trains on one process and on others, each of which resumes what the other has begun."""
    names = pipeline_runs.FAST if everything else ["reviews"]
    pipeline_runs.main(output, 1, everything)
    for name in names:
        pipeline_runs.without_last_step(output, name, 1, world)
    launch([Path(pipeline_runs.__file__), output, *(["all"] if everything else [])], world)
    for name in names:
        pipeline_runs.without_last_step(output, name, world, 1)
        pipeline_runs.resume(output, name, 1)
    return output


def assert_equal_run(one: Path, other: Path) -> None:
    """Asserts equal losses, norms, parameters, metrics and predictions in float64."""
    steps = lines(one, "loss")
    assert len(steps) >= 3
    assert any(step["grad_norm"] > 0.1 for step in steps)  # clipped
    assert_close(steps, lines(other, "loss"), EXACT)
    left, right = (
        # The gradient of a key's bias is zero but for rounding, which Adam makes as large as its rate allows.
        {name: value.tolist() for name, value in weights(run).items() if not name.endswith("key.bias")}
        for run in (one, other)
    )
    assert_close(left, right, FLOAT64)
    assert_close(lines(one, "eval_loss"), lines(other, "eval_loss"), FLOAT64)
    assert_close(predictions(one), predictions(other), FLOAT64)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory) -> Path:
    """Returns the output folders of the fast runs, on one process and on a pipeline of two."""
    return prepare(tmp_path_factory.mktemp("pipeline"), 2, everything=False)


@pytest.mark.parametrize("name", [*pipeline_runs.FAST, "reviews-trainer", "tied-zero_bubble"])
def test_a_pipeline_trains_like_one_process(pipeline, name):
    assert_equal_run(pipeline / f"{name.split('-')[0]}-1", pipeline / f"{name}-2")


def test_both_engines_do_the_same(pipeline):
    assert_same_weights(pipeline / "reviews-2", pipeline / "reviews-trainer-2")


@pytest.mark.parametrize("run", ["reviews-from1-2", "reviews-from2-1"])
def test_a_pipeline_and_one_process_resume_from_each_other(pipeline, run):
    assert_equal_run(pipeline / "reviews-1", pipeline / run)


def test_the_run_records_the_mesh(pipeline):
    mesh = json.loads((pipeline / "reviews-2" / "run.json").read_text())["mesh"]
    assert mesh == {"replicas": 1, "fsdp": 1, "tensor": 1, "pipeline": 2}


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> Path:
    """Returns the output folders of all runs, on one process, on pipelines of two, replicas, and split layers."""
    output = prepare(tmp_path_factory.mktemp("everything"), 2, everything=True)
    for world, name in ((4, "tied"), (8, "reviews")):
        pipeline_runs.without_last_step(output, name, 2, world)
        launch([Path(pipeline_runs.__file__), output, "all"], world)
    return output


@pytest.mark.slow
def test_every_run_in_a_pipeline_trains_like_one_process(everything):
    runs = {**pipeline_runs.FAST, **pipeline_runs.SLOW}
    compared = [folder for folder in everything.iterdir() if folder.name.split("-")[0] in runs]
    expected = len(runs) + 2 + 2 + 3 + 2  # on one process; both engines, schedules and resumes on two
    expected += len(pipeline_runs.ZERO_BUBBLE_TOO) + 2
    assert len(compared) >= expected
    for folder in compared:
        assert_equal_run(everything / f"{folder.name.split('-')[0]}-1", folder)


@pytest.mark.slow
def test_dropout_does_not_depend_on_the_schedule(everything):
    for schedule in ("gpipe", "zero_bubble"):
        assert_same_weights(everything / f"dropout-{schedule}-2", everything / "dropout-1f1b-2")
