"""Mixed precision: results close to float32, and skipped updates do not step the schedule."""

from __future__ import annotations

import json
import math

import pytest
import torch
from runs import assert_same_weights, lines, train
from stopping import StoppedError, stopper

import toolkit.run

RUN = ("data.max_train_samples=24", "data.max_eval_samples=8", "train.per_device_train_batch_size=4",
       "train.gradient_accumulation_steps=1", "train.num_train_epochs=2", "checkpoint.save_steps=1",
       "tracking.logging_steps=1", "train.warmup_steps=0", "train.lr_scheduler_type=linear")  # fmt: skip


@pytest.mark.slow
def test_bf16_loses_nothing_that_counts(fresh_precision, tmp_path):
    """A smoke run as it is shipped: its losses, and that of its evaluation, are within 2 % of float32's."""
    runs = {}
    for precision in ("no", "bf16"):
        fresh_precision()
        runs[precision] = train("reviews", tmp_path / precision, f"train.mixed_precision={precision}", sizes=())
    assert runs["bf16"].train_loss == pytest.approx(runs["no"].train_loss, rel=0.02)
    one, other = (run.evaluations["validation"].metrics["loss"] for run in runs.values())
    assert other == pytest.approx(one, rel=0.02)
    assert other != one


class Overflowing(torch.amp.GradScaler):
    """A gradient scaler whose initial scale makes every gradient overflow."""

    def __init__(self) -> None:
        super().__init__("cpu", init_scale=2.0**60, backoff_factor=2.0**-50)

    def scale(self, outputs):
        return super().scale(outputs) * (math.inf if self.get_scale() > 2.0**50 else 1.0)


@pytest.fixture
def scaler(monkeypatch):
    """Makes runs use the gradient scaler of fp16 on the CPU."""
    build = toolkit.run.build_accelerator

    def with_scaler(cfg):
        accelerator = build(cfg)
        accelerator.scaler = Overflowing()

        def unscale(optimizer=None):
            for prepared in accelerator._optimizers:
                accelerator.scaler.unscale_(prepared.optimizer)

        accelerator.unscale_gradients = unscale
        return accelerator

    def arm():
        monkeypatch.setattr(toolkit.run, "build_accelerator", with_scaler)

    arm()
    return arm


def test_an_update_that_the_scaler_leaves_out_is_no_step_of_the_schedule(scaler, tmp_path, monkeypatch):
    for engine in ("loop", "trainer"):
        train("reviews", tmp_path / engine, *RUN, f"engine={engine}", "train.ema_decay=0.5")
    assert_same_weights(tmp_path / "loop", tmp_path / "trainer")
    assert lines(tmp_path / "loop") == lines(tmp_path / "trainer")
    steps = lines(tmp_path / "loop", "loss")
    state = json.loads((tmp_path / "loop" / "checkpoints" / "step-12" / "state.json").read_text())["train"]
    skipped = state["skipped_steps"]
    assert skipped == 1
    rates = [line["learning_rate"] for line in steps]
    assert rates[: skipped + 1] == [rates[0]] * (skipped + 1)
    assert all(later < before for before, later in zip(rates[skipped:], rates[skipped + 1 :], strict=False))
    stop_before = stopper(monkeypatch)
    stop_before(3)
    scaler()
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *RUN, "train.ema_decay=0.5")
    stop_before(None)
    scaler()
    train("reviews", tmp_path / "parts", *RUN, "train.ema_decay=0.5", "checkpoint.resume=auto")
    assert_same_weights(tmp_path / "loop", tmp_path / "parts")
    assert lines(tmp_path / "loop") == lines(tmp_path / "parts")
