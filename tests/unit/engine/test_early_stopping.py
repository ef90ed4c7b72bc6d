"""Early stopping counts evaluations, ends both engines at the same step, and continues after a resume."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
from runs import assert_same_weights, lines, train
from stopping import StoppedError, known_losses, stopper

from toolkit.base.errors import ConfigError

# A learning rate that makes every evaluation but the first few worse.
RUN = ("data.max_train_samples=24", "data.max_eval_samples=8", "train.per_device_train_batch_size=4",
       "train.gradient_accumulation_steps=1", "train.num_train_epochs=5", "eval.eval_steps=1",
       "train.learning_rate=0.5", "train.max_grad_norm=0", "eval.metric_for_best_model=loss", "checkpoint.save_steps=1",
       "train.early_stopping_patience=3")  # fmt: skip


def test_both_engines_stop_after_the_same_number_of_worse_evaluations(tmp_path, monkeypatch, capsys):
    whole = train("reviews", tmp_path / "loop", *RUN)
    assert whole.best_step == whole.steps - 3
    assert whole.steps < 30
    assert "stopping after step" in capsys.readouterr().out
    train("reviews", tmp_path / "trainer", *RUN, "engine=trainer")
    assert_same_weights(tmp_path / "loop", tmp_path / "trainer")
    assert lines(tmp_path / "loop") == lines(tmp_path / "trainer")
    # Stopped while it waits, it goes on waiting; and once it has ended, nothing more happens.
    stop_before = stopper(monkeypatch)
    stop_before(whole.steps)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *RUN)
    stop_before(None)
    for _ in range(2):
        train("reviews", tmp_path / "parts", *RUN, "checkpoint.resume=auto")
        assert lines(tmp_path / "parts") == lines(tmp_path / "loop")
        assert_same_weights(tmp_path / "loop", tmp_path / "parts")


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (["train.early_stopping_patience=2"], 5),
        (["train.lr_scheduler_type=reduce_lr_on_plateau", "train.lr_scheduler_kwargs={patience: 0, factor: 0.5}"], 6),
        (["train.target_metric={eval_loss: 0.72}"], 3),
        (["engine=trainer", "trainer.callbacks=[callbacks_for_tests.patient]"], 5),
    ],
    ids=["early stopping", "plateau", "target", "a callback of the Trainer"],
)
def test_the_checkpoint_of_the_best_step_knows_of_its_evaluation(settings, steps, tmp_path, monkeypatch):
    settings = [*RUN, "train.early_stopping_patience=null", "train.max_steps=6", "train.learning_rate=0.01",
                "checkpoint.load_best_model_at_end=true", "checkpoint.save_steps=null", *settings]  # fmt: skip
    stop_before = stopper(monkeypatch)
    with known_losses(0.8, 0.9, 0.7, 0.75, 0.78, 0.79):
        whole = train("reviews", tmp_path / "whole", *settings)
        assert (whole.steps, whole.best_step) == (steps, 3)
        stop_before(4)
        with pytest.raises(StoppedError) if steps > 3 else nullcontext():
            train("reviews", tmp_path / "parts", *settings)
        stop_before(None)
        assert {path.name for path in (tmp_path / "parts/checkpoints").iterdir()} == {"step-1", "step-3"}
        parts = train("reviews", tmp_path / "parts", *settings, "checkpoint.resume=auto")
    assert (parts.steps, parts.best_step) == (steps, 3)
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


def test_a_metric_that_is_not_a_number_is_no_improvement(tmp_path, capsys):
    settings = (*RUN, "train.early_stopping_patience=2", "train.max_steps=6", "train.learning_rate=0.01")
    with known_losses(math.nan, 0.9, 0.8, 0.7, 0.6, 0.5):
        assert train("reviews", tmp_path / "first", *settings).steps == 6
    with known_losses(math.nan, math.nan):
        assert train("reviews", tmp_path / "none", *settings).steps == 2
    assert "stopping after step 2: eval_loss was not a number for 2 evaluations" in capsys.readouterr().out


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "settings",
    [
        ["train.early_stopping_patience=2", "train.lr_scheduler_type=constant", "train.warmup_steps=0"],
        ["train.lr_scheduler_type=reduce_lr_on_plateau", "train.lr_scheduler_kwargs={patience: 0, factor: 0.1}"],
    ],
    ids=["early stopping", "plateau"],
)
def test_another_metric_is_not_compared_with_the_one_before(settings, tmp_path, monkeypatch, capsys):
    settings = [*RUN, "train.early_stopping_patience=null", "train.max_steps=6", "train.learning_rate=0.01",
                "checkpoint.load_best_model_at_end=true", *settings]  # fmt: skip
    stop_before = stopper(monkeypatch)
    stop_before(4)
    with known_losses(0.03, 0.02, 0.01, 0.01), pytest.raises(StoppedError):
        train("reviews", tmp_path / "run", *settings)
    stop_before(None)
    more = [*settings, "checkpoint.resume=auto", "data.max_eval_samples=7"]  # other rows
    with known_losses(*[0.9] * 4, 0.8, 0.7):
        found = train("reviews", tmp_path / "run", *more)
    assert (found.steps, found.best_step, found.best) == (6, 6, 0.7)
    assert "metrics cannot be compared with those before (data.max_eval_samples: 8, now 7)" in capsys.readouterr().out
    rates = [line["learning_rate"] for line in lines(tmp_path / "run", "loss")]
    assert rates[4] == rates[5]  # not reduced by values that are worse than those of other rows


def test_a_small_gain_counts_only_above_the_threshold(tmp_path):
    calm = (*RUN, "train.learning_rate=1.0e-4", "train.early_stopping_patience=2", "train.max_steps=8")
    assert train("reviews", tmp_path / "any", *calm).steps == 8
    assert train("reviews", tmp_path / "much", *calm, "train.early_stopping_threshold=0.5").steps == 3


@pytest.mark.parametrize(
    "settings", [("train.early_stopping_patience=2", "eval.eval_steps=null"), ("train.early_stopping_threshold=0.1",)]
)
def test_settings_without_effect_are_rejected(settings, tmp_path):
    with pytest.raises(ConfigError, match=r"train\.early_stopping_"):
        train("reviews", tmp_path / "run", *settings)
