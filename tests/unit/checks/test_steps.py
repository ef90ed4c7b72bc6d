"""Settings that only the number of steps can refuse are refused together, before the model is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import ROOT, train

from toolkit.api.run import Checkpoint
from toolkit.api.state import Milestones
from toolkit.base.errors import ConfigError
from toolkit.checks.run import check_steps
from toolkit.config import Config
from toolkit.recipe import load_settings, load_task_type

FREEZE = "model.freeze=backbone"


def settings(*overrides: str) -> Config:
    task_type = load_task_type(ROOT / "recipes" / "reviews.py")
    return load_settings(task_type, ROOT / "recipes/configs/reviews/smoke.yaml", [FREEZE, *overrides]).config


def test_everything_that_comes_after_the_end_is_named():
    cfg = settings("train.max_steps=10", "model.unfreeze.epoch_2=[a]", "model.unfreeze.epoch_3=[b]")
    check_steps(cfg, Milestones.of(cfg, 3), Checkpoint(Path(), 10, {}))
    with pytest.raises(ConfigError) as wrong:
        check_steps(cfg, Milestones.of(cfg, 5), Checkpoint(Path(), 11, {}))
    assert [problem.split(";")[0] for problem in wrong.value.problems] == [
        "model.unfreeze.epoch_2: that is after step 10, and this run ends with step 10",
        "model.unfreeze.epoch_3: that is after step 15, and this run ends with step 10",
        "train.max_steps, train.num_train_epochs: the checkpoint is already at step 11, and this run would end at 10",
    ]


def test_steps_of_epochs_are_counted_before_the_model_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.models.build.build_model", None)
    few = ("data.max_train_samples=24", "train.num_train_epochs=1", "train.max_steps=-1",
           "train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=2")  # fmt: skip
    with pytest.raises(ConfigError, match=r"unfreeze\.step_3: that is after step 3, and this run ends with step 3"):
        train("reviews", tmp_path / "run", *few, FREEZE, "model.unfreeze.step_3=[bert.*]")
