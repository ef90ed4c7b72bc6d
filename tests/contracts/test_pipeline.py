"""A model in stages trains like the same model in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pipeline_runs
import pytest
from launching import fork
from runs import assert_close, assert_same_weights, lines, predictions, weights
from tolerances import FLOAT64

pytestmark = pytest.mark.distributed

EXACT = 1e-10
"""Tolerance of losses and gradient norms, which one step moves less than parameters."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Returns the output folders of all runs: on one process, on pipelines of two, with replicas, and split layers.

    One process and a pipeline of two resume what the other has begun.
    """
    output = tmp_path_factory.mktemp("pipeline")
    script = Path(pipeline_runs.__file__)
    pipeline_runs.main(output, 1)
    for name in pipeline_runs.EVERYWHERE:
        pipeline_runs.without_last_step(output, name, 1, 2)
    fork([script, output], 2)
    for name in pipeline_runs.EVERYWHERE:
        pipeline_runs.without_last_step(output, name, 2, 1)
        pipeline_runs.resume(output, name, 1)
    pipeline_runs.without_last_step(output, "reviews", 2, 4)
    for world, name in ((4, "tied"), (8, "reviews")):
        pipeline_runs.without_last_step(output, name, 2, world)
        fork([script, output], world)
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


def test_every_run_in_a_pipeline_trains_like_one_process(runs):
    known = {**pipeline_runs.EVERYWHERE, **pipeline_runs.OTHERS}
    compared = [folder for folder in runs.iterdir() if folder.name.split("-")[0] in known]
    expected = len(known) + 2 + 2 + 3 + 2  # on one process; both engines, schedules and resumes on two
    expected += len(pipeline_runs.ZERO_BUBBLE_TOO) + 2
    expected += 5  # with sharded stages, one of which is resumed
    assert len(compared) >= expected
    for folder in compared:
        assert_equal_run(runs / f"{folder.name.split('-')[0]}-1", folder)


def test_both_engines_do_the_same(runs):
    assert_same_weights(runs / "reviews-2", runs / "reviews-trainer-2")


def test_the_run_records_the_mesh(runs):
    mesh = json.loads((runs / "reviews-2" / "run.json").read_text())["mesh"]
    assert mesh == {"replicas": 1, "fsdp": 1, "context": 1, "tensor": 1, "pipeline": 2, "expert": 1}


def test_dropout_does_not_depend_on_the_schedule(runs):
    for schedule in ("gpipe", "zero_bubble"):
        assert_same_weights(runs / f"dropout-{schedule}-2", runs / "dropout-1f1b-2")
