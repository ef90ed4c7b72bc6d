"""Trainings that tools measure are those of `toolkit train`."""

from __future__ import annotations

import json

import pytest
from non_finite_runs import BAD, RUN, bad_windows
from runs import ROOT, TINY, assert_same_weights, shipped, train

from toolkit.config.keys import written
from toolkit.lab.jobs.training import STEPS_ONLY, trained
from toolkit.recipe import load_settings


@pytest.mark.slow
def test_a_training_goes_back_to_a_checkpoint_as_a_run_does(tmp_path):
    settings = [*RUN, "train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=2",
                "train.non_finite=rollback"]  # fmt: skip
    job = {
        "recipe": str(ROOT / "recipes/reviews.py"),
        "config": str(ROOT / "recipes/configs/reviews/smoke.yaml"),
        "overrides": [*TINY, *settings, f"output_dir={tmp_path / 'tool'}"],
        "keep_model": True,
    }
    with bad_windows(BAD):
        train("reviews", tmp_path / "run", *settings)
        with trained(job) as (run, result):
            assert result.steps > run.resume.step > 0
    assert_same_weights(tmp_path / "run", tmp_path / "tool")
    found = json.loads((tmp_path / "tool/run.json").read_text())["result"]
    assert found["non_finite_steps"] == len(BAD)


def test_what_a_configuration_reports_does_not_hinder_its_tools():
    own = ["tracking.report_to=[tensorboard]", "tracking.graph=true", "tracking.histogram_steps=2",
           "tracking.run_name=a", "tracking.project=b"]  # fmt: skip
    config = str(ROOT / "recipes/configs/reviews/smoke.yaml")
    tracking = load_settings(shipped("reviews"), config, [*own, *written(STEPS_ONLY)]).config.tracking
    assert not tracking.report_to
    assert not tracking.graph
