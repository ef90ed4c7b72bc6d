"""Averaged weights are evaluated, saved and restored, and do not change training."""

from __future__ import annotations

import pytest
import torch
from runs import SGD, assert_same_weights, lines, train, weights
from safetensors.torch import load_file
from stopping import StoppedError, stopper
from tolerances import float32_tolerance

RUN = (*SGD, "data.max_train_samples=24", "data.max_eval_samples=8", "train.per_device_train_batch_size=4",
       "train.gradient_accumulation_steps=1", "train.num_train_epochs=2", "checkpoint.save_steps=1",
       "eval.eval_steps=2", "checkpoint.save_total_limit=null",
       "tracking.logging_steps=1", "model.config_overrides.hidden_dropout_prob=0.1")  # fmt: skip
EMA = "train.ema_decay=0.8"


def saved(folder, step, name):
    return load_file(folder / "checkpoints" / f"step-{step}" / f"{name}.safetensors")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "run"
    train("reviews", folder, *RUN)
    return folder


def test_the_result_is_the_average_of_what_was_trained(plain, tmp_path):
    train("reviews", tmp_path / "run", *RUN, EMA)
    assert lines(plain, "loss") == lines(tmp_path / "run", "loss")
    averages = saved(tmp_path / "run", 1, "ema")
    for step in range(2, 13):
        parameters = saved(plain, step, "model")
        assert all(torch.equal(saved(tmp_path / "run", step, "model")[name], parameters[name]) for name in parameters)
        averages = {name: value.lerp(parameters[name], 1 - 0.8) for name, value in averages.items()}
    result = weights(tmp_path / "run")
    tolerance = float32_tolerance(steps=12, terms=1)
    for name, value in averages.items():
        torch.testing.assert_close(result[name], value, rtol=tolerance, atol=tolerance * float(value.abs().max()))
    assert not torch.equal(result["classifier.weight"], weights(plain)["classifier.weight"])
    evaluated, others = lines(tmp_path / "run", "eval_loss"), lines(plain, "eval_loss")
    assert [line["step"] for line in evaluated] == [line["step"] for line in others]
    assert evaluated[2]["eval_loss"] != others[2]["eval_loss"]


@pytest.mark.slow
def test_both_engines_and_a_resume_average_alike(tmp_path, monkeypatch):
    train("reviews", tmp_path / "loop", *RUN, EMA)
    train("reviews", tmp_path / "trainer", *RUN, EMA, "engine=trainer")
    stop_before = stopper(monkeypatch)
    stop_before(6)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *RUN, EMA)
    stop_before(None)
    train("reviews", tmp_path / "parts", *RUN, EMA, "checkpoint.resume=auto", "engine=trainer")
    for other in ("trainer", "parts"):
        assert_same_weights(tmp_path / "loop", tmp_path / other)
        assert lines(tmp_path / "loop") == lines(tmp_path / other)


def test_the_best_steps_averages_are_the_result(tmp_path):
    worse = ("train.learning_rate=30", "train.max_grad_norm=0", "checkpoint.load_best_model_at_end=true",
             "eval.metric_for_best_model=loss")  # fmt: skip
    best = train("reviews", tmp_path / "run", *RUN, EMA, *worse).best_step
    assert best not in (None, 12)
    averages, result = saved(tmp_path / "run", best, "ema"), weights(tmp_path / "run")
    assert averages
    assert all(torch.equal(result[name], value) for name, value in averages.items())
