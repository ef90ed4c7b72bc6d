"""`eval.eval_on_start`: scores before the first step, the same training afterwards, under both engines and resumes."""

from __future__ import annotations

import json

import pytest
from runs import assert_same_weights, lines, train

from toolkit.base.errors import ConfigError

FEW = ("train.max_steps=4", "checkpoint.save_steps=2", "eval.eval_steps=2")


def figures(folder):
    return json.loads((folder / "run.json").read_text())["result"]


@pytest.mark.slow
def test_scores_before_training_change_nothing_and_are_kept_over_a_resume(tmp_path):
    plain, loop, trainer, resumed = (tmp_path / name for name in ("plain", "loop", "trainer", "resumed"))
    train("reviews", plain, *FEW, "train.early_stopping_patience=5")
    train("reviews", loop, *FEW, "train.early_stopping_patience=5", "eval.eval_on_start=true")
    train("reviews", trainer, *FEW, "train.early_stopping_patience=5", "eval.eval_on_start=true", "engine=trainer")
    train("reviews", resumed, *FEW, "train.early_stopping_patience=5", "eval.eval_on_start=true", "train.max_steps=2",
          "train.lr_scheduler_type=constant", "train.warmup_steps=0")  # fmt: skip
    first = figures(resumed)["start_accuracy"]
    train("reviews", resumed, *FEW, "train.early_stopping_patience=5", "eval.eval_on_start=true",
          "checkpoint.resume=auto", "train.lr_scheduler_type=constant", "train.warmup_steps=0")  # fmt: skip
    for run in (loop, trainer):
        assert_same_weights(plain, run)
        start, *rest = lines(run, "eval_loss")
        assert start["step"] == 0
        assert rest == lines(plain, "eval_loss")
        found = figures(run)
        assert found["start_accuracy"] == start["eval_accuracy"]
        assert found["start_loss"] == start["eval_loss"]
        assert found["best_step"] in (2, 4)
        assert "before training" in (run / "report.md").read_text()
    assert not any(name.startswith("start_") for name in figures(plain))
    assert figures(resumed)["start_accuracy"] == first == figures(loop)["start_accuracy"]
    assert [line["step"] for line in lines(resumed, "eval_loss")] == [0, 2, 4]


def test_without_validation_rows_it_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"remove eval\.eval_on_start, or set data\.validation_file"):
        train("reviews", tmp_path, "eval.eval_on_start=true", "data.validation_file=null", "data.validation_split=0",
              "data.max_eval_samples=null", "eval.eval_steps=null")  # fmt: skip
