"""A task with a forward pass and a loss of its own costs one recipe file: it keeps the contracts C1, C2 and C4."""

from __future__ import annotations

from pathlib import Path

import preference_runs
import pytest
from launching import fork
from runs import assert_close, assert_same_weights, lines, predictions, weights
from tolerances import FLOAT64

from toolkit.base.errors import ConfigError
from toolkit.recipe import load_task_type, validate

pytestmark = pytest.mark.distributed


def test_it_trains_alike_with_both_engines_on_one_and_two_processes(tmp_path):
    preference_runs.rows(tmp_path / "rows.csv")
    preference_runs.main(tmp_path, 1)
    fork([Path(preference_runs.__file__), tmp_path], 2)
    one = tmp_path / "loop-1"
    steps = lines(one, "loss")
    assert steps[-1]["num_items"] < steps[0]["num_items"] == 8
    assert steps[-1]["loss"] != steps[0]["loss"]
    for processes in (1, 2):
        assert_same_weights(tmp_path / f"loop-{processes}", tmp_path / f"trainer-{processes}")
        assert lines(tmp_path / f"loop-{processes}") == lines(tmp_path / f"trainer-{processes}")
    two = tmp_path / "loop-2"
    assert_close(steps, lines(two, "loss"), FLOAT64)
    assert_close(predictions(one), predictions(two), FLOAT64)
    assert_close(*({name: value.tolist() for name, value in weights(run).items()} for run in (one, two)), FLOAT64)


def test_it_has_no_pipeline(tmp_path):
    task_type = load_task_type(preference_runs.RECIPE)
    rows = preference_runs.rows(tmp_path / "rows.csv")
    settings = preference_runs.SETTINGS | {"output_dir": str(tmp_path / "run")}
    overrides = [f"data.train_file={rows}", "parallel.pipeline=2"]
    with pytest.raises(ConfigError, match=r"parallel\.pipeline: received 2, .*Preferences"):
        validate(task_type, settings, overrides).raise_problems()
