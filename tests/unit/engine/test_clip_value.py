"""Clipping by value limits each element of a step's gradient, whatever the split, the engine and the layout."""

from __future__ import annotations

from runs import SGD, assert_close, assert_same_weights, lines, train, weights
from safetensors.torch import load_file
from stopping import train_in_legs
from tolerances import FLOAT64

LIMIT = 1e-3
RUN = (*SGD, "data.max_train_samples=16", "data.max_eval_samples=4", "checkpoint.save_steps=null",
       "eval.eval_steps=null", "train.max_grad_norm=0", "train.learning_rate=1.0")  # fmt: skip
CLIPPED = f"train.max_grad_value={LIMIT}"


def test_the_update_is_that_of_the_clipped_gradient_for_any_split(tmp_path):
    one_step = (*RUN, "train.max_steps=1", "train.per_device_train_batch_size=8", "train.gradient_accumulation_steps=1")
    split = ("train.per_device_train_batch_size=2", "train.gradient_accumulation_steps=4")
    train("reviews", tmp_path / "still", *one_step, "train.learning_rate=0", double=True)
    train("reviews", tmp_path / "whole", *one_step, double=True)
    train("reviews", tmp_path / "clipped", *one_step, CLIPPED, double=True)
    train("reviews", tmp_path / "split", *one_step, *split, CLIPPED, double=True)
    start, free, clipped = (weights(tmp_path / name) for name in ("still", "whole", "clipped"))
    gradients = {name: start[name] - free[name] for name in start}
    assert any((gradient.abs() > LIMIT).any() for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert (start[name] - gradient.clamp(-LIMIT, LIMIT) - clipped[name]).abs().max() < FLOAT64, name
    other = weights(tmp_path / "split")
    assert_close({k: v.tolist() for k, v in clipped.items()}, {k: v.tolist() for k, v in other.items()}, FLOAT64)
    assert lines(tmp_path / "whole", "grad_norm") == lines(tmp_path / "clipped", "grad_norm")  # before clipping


def test_both_engines_and_a_resume_clip_alike_and_after_the_norm(tmp_path, monkeypatch):
    run = (*RUN, CLIPPED, "train.max_grad_norm=0.1", "train.max_steps=4", "checkpoint.save_steps=1",
           "checkpoint.save_total_limit=null",
           "train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=1")  # fmt: skip
    train("reviews", tmp_path / "whole", *run)
    train_in_legs(monkeypatch, tmp_path / "parts", *run, legs=((2, "trainer"), (None, "trainer")))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    before, after = (
        load_file(tmp_path / "whole" / "checkpoints" / f"step-{step}" / "model.safetensors") for step in (1, 2)
    )
    moved = max(float((after[name] - value).abs().max()) for name, value in before.items())
    assert 0 < moved <= LIMIT * (1 + 1e-4)  # weights are float32
