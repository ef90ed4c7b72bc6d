"""C2: both engines end with bit-identical results for the same YAML, and each resumes the other's checkpoints."""

from __future__ import annotations

import callbacks_for_tests
import pytest
from random_runs import ALL, EVERY, RANDOM
from runs import assert_same_weights, lines, predictions, train
from stopping import StoppedError, stopper, train_in_legs

from toolkit.base.errors import ConfigError, RunError
from toolkit.checks.trainer import PASSED_ON

FEW = ("data.max_train_samples=24", "data.max_eval_samples=8", "train.per_device_train_batch_size=4",
       "train.gradient_accumulation_steps=1", "train.num_train_epochs=1")  # fmt: skip
TRAINER = "engine=trainer"


@pytest.mark.fast(2)
@pytest.mark.parametrize("task", EVERY)
def test_both_engines_end_with_the_same_bits(task, tmp_path):
    """With dropout and augmentation, uneven last windows, three epochs, evaluations and checkpoints in the middle."""
    settings = (*ALL[task], "eval.eval_steps=4", "tracking.logging_steps=3")
    for engine in ("loop", "trainer"):
        train(task, tmp_path / engine, *settings, f"engine={engine}")
    assert_same_weights(tmp_path / "loop", tmp_path / "trainer")
    assert lines(tmp_path / "loop") == lines(tmp_path / "trainer")
    assert predictions(tmp_path / "loop") == predictions(tmp_path / "trainer")


@pytest.mark.fast(1)
@pytest.mark.parametrize("engines", [("loop", "trainer", "loop"), ("trainer", "loop", "trainer")])
def test_each_engine_goes_on_where_the_other_stopped(engines, tmp_path, monkeypatch):
    settings = (*RANDOM["reviews"], "eval.eval_steps=4", "tracking.logging_steps=3",
                "checkpoint.load_best_model_at_end=true")  # fmt: skip
    train("reviews", tmp_path / "whole", *settings)
    # The fifth step is in the middle of an epoch, the seventh is its last: seven steps make one.
    legs = zip((6, 8, None), engines, strict=True)
    train_in_legs(monkeypatch, tmp_path / "parts", *settings, "checkpoint.save_steps=1", legs=legs)
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")


def test_a_finished_run_stays_as_it_is(tmp_path):
    train("reviews", tmp_path / "run", *FEW, TRAINER)
    before = lines(tmp_path / "run")
    train("reviews", tmp_path / "run", *FEW, TRAINER, "train.max_steps=6", "checkpoint.resume=auto")
    assert lines(tmp_path / "run") == before


def test_callbacks_hear_of_everything_and_may_ask_for_more(tmp_path):
    callbacks_for_tests.EVENTS.clear()
    train("reviews", tmp_path / "run", *FEW, TRAINER, "trainer.callbacks=[callbacks_for_tests.Recorder]",
          "eval.eval_steps=4", "checkpoint.save_steps=5", "tracking.logging_steps=2",
          "checkpoint.load_best_model_at_end=true")  # fmt: skip
    # The best step is saved once callbacks know of its evaluation, and the last one after the Trainer has ended.
    assert callbacks_for_tests.EVENTS == [
        ("begin", 0), ("log", 2), ("log", 3), ("evaluate", 3), ("save", 3), ("log", 4), ("evaluate", 4), ("save", 5),
        ("log", 6), ("evaluate", 6), ("end", 6), ("save", 6),
    ]  # fmt: skip
    assert [line["step"] for line in lines(tmp_path / "run", "eval_loss")] == [3, 4, 6]
    assert [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir())] == [
        "step-3",
        "step-5",
        "step-6",
    ]


def test_early_stopping_is_resumed_with_its_patience_and_stays_stopped(tmp_path, monkeypatch):
    stop_before = stopper(monkeypatch)
    settings = (*FEW, TRAINER, "trainer.callbacks=[callbacks_for_tests.patient]", "train.num_train_epochs=9",
                "eval.eval_steps=1", "eval.metric_for_best_model=loss", "train.learning_rate=0.5",
                "train.max_grad_norm=0", "checkpoint.save_steps=1")  # fmt: skip
    whole = train("reviews", tmp_path / "whole", *settings)
    assert whole.steps < 54
    assert whole.best_step == whole.steps - 2
    stop_before(whole.steps)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *settings)
    stop_before(None)
    for _ in range(2):  # the second time there is nothing left to do
        parts = train("reviews", tmp_path / "parts", *settings, "checkpoint.resume=auto")
        assert parts.steps == whole.steps
        assert_same_weights(tmp_path / "whole", tmp_path / "parts")
        assert lines(tmp_path / "whole") == lines(tmp_path / "parts")


def test_arguments_reach_the_trainer(tmp_path):
    train("reviews", tmp_path / "plain", *FEW, TRAINER)
    train("reviews", tmp_path / "noise", *FEW, TRAINER, "trainer.args.neftune_noise_alpha=9.0")
    assert lines(tmp_path / "plain", "loss")[0]["loss"] != lines(tmp_path / "noise", "loss")[0]["loss"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("trainer.args.neftune_noise_alfa=1.0", "no such field.*neftune_noise_alpha"),
        ("trainer.args.learning_rate=1.0", r"trainer\.args\.learning_rate: .* set train\.learning_rate"),
        ("trainer.args.torch_compile=true", r"trainer\.args\.torch_compile: the toolkit does this itself"),
        (
            "trainer.args.neftune_noise_alpha=loud",
            r"trainer\.args\.neftune_noise_alpha: received .loud.; Input should be a valid number",
        ),
        ("trainer.callbacks=[callbacks_for_tests.Missing]", "No module named 'callbacks_for_tests.Missing'"),
        ("trainer.callbacks=[callbacks_for_tests.not_a_callback]", "returns a int, not a TrainerCallback"),
        ("trainer.callbacks=[Recorder]", r"package\.module\.Name"),
    ],
)
def test_what_the_trainer_cannot_use_is_rejected_before_anything_is_loaded(setting, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train("reviews", tmp_path / "run", TRAINER, setting)
    assert not (tmp_path / "run").exists()


def test_the_loop_has_no_use_for_the_trainer_s_section(tmp_path):
    with pytest.raises(ConfigError, match=r"engine \('loop'\), trainer\.callbacks .*transformers\.Trainer"):
        train("reviews", tmp_path / "run", "trainer.callbacks=[callbacks_for_tests.Recorder]")


def test_every_argument_that_is_passed_on_exists():
    from dataclasses import fields

    from transformers import TrainingArguments

    assert {field.name for field in fields(TrainingArguments)} >= PASSED_ON


@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_no_engine_makes_an_update_that_is_not_finite(engine, tmp_path, monkeypatch):
    with pytest.raises(RunError, match=r"step 1: the gradient's norm is (nan|inf)"):
        train("reviews", tmp_path / "run", *FEW, f"engine={engine}", "model.config_overrides.initializer_range=1e30")
