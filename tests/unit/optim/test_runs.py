"""Every optimizer and schedule trains equally in both engines and resumes from a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from runs import SMALL, assert_same_weights, lines, train
from safetensors.torch import load_file
from stopping import StoppedError, stopper

from toolkit.optim.presets import PRESETS
from toolkit.optim.shapes import SHAPES

SIZES = (
    "model.from_config.hidden_size=32",
    "model.from_config.intermediate_size=128",  # 4096 weights: the fewest that have states of 8 bits
    "model.from_config.num_hidden_layers=1",
    "model.from_config.vocab_size=200",
    "model.config_overrides.hidden_dropout_prob=0.1",
    *SMALL,
    "data.max_eval_samples=8",
)
RUN = ("data.max_train_samples=24", "train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=1",
       "train.max_steps=4", "eval.eval_steps=2", "train.warmup_steps=0", "train.weight_decay=0.1",
       "checkpoint.save_steps=1", "checkpoint.save_total_limit=1")  # fmt: skip

SCHEDULES = {
    "adamw_torch": ("linear", {}),
    "adamw_torch_fused": ("cosine", {}),
    "adafactor": ("cosine_with_restarts", {"num_cycles": 2}),
    "adamw_bnb_8bit": ("polynomial", {"power": 2.0}),
    "paged_adamw_8bit": ("inverse_sqrt", {}),
    "lion_8bit": ("reduce_lr_on_plateau", {"patience": 0, "threshold": 10.0, "factor": 0.5}),
    "sgd": ("cosine_with_min_lr", {"min_lr_rate": 0.1}),
    "rmsprop": ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1}),
    "adagrad": ("warmup_stable_decay", {"num_decay_steps": 2}),
    "schedule_free_adamw": ("constant_with_warmup", {}),
    "adafactor_relative": ("constant", {}),
    "adam": ("step", {"step_size": 2}),
    "adam_bnb_8bit": ("multi_step", {"milestones": [1, 3]}),
    "sgdw": ("exponential", {"gamma": 0.5}),
    "lamb_bnb_8bit": ("cyclic", {"base_lr": 1e-4, "step_size_up": 2}),
    "muon": ("one_cycle", {}),
}
"""Each optimizer with another schedule, so that few runs go through all of both; a new one with the default."""
EXTRA = {
    "adamw_torch": ("train.layerwise_lr_decay=0.8", "train.head_learning_rate=0.01"),
    "sgd": ("train.optim_args={momentum: 0.9, nesterov: true}",),
    "sgdw": ("train.optim_args={momentum: 0.9}",),
    "adafactor_relative": ("train.learning_rate=5.0e-5",),
    "adam_bnb_8bit": ("train.weight_decay=0",),
    "schedule_free_adamw": ("train.warmup_steps=2",),
}


QUICK = ("adamw_torch", "adamw_torch_fused", "adafactor", "adamw_bnb_8bit", "sgd", "schedule_free_adamw", "muon")
"""Optimizers of the fast tests."""


def test_the_table_has_them_all():
    assert set(SCHEDULES) <= set(PRESETS)
    # The tests of `toolkit lr-find` compare the engines under its schedule.
    assert {name for name, _ in SCHEDULES.values()} == set(SHAPES) - {"range_test"}


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "optim", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in PRESETS]
)
def test_both_engines_and_a_resumed_run_end_alike(optim, tmp_path, monkeypatch):
    """The whole run is the loop's and the one in parts the Trainer's, so one comparison shows both."""
    schedule, arguments = SCHEDULES.get(optim, ("linear", {}))
    settings = (*RUN, f"train.optim={optim}", f"train.lr_scheduler_type={schedule}",
                f"train.lr_scheduler_kwargs={json.dumps(arguments)}", *EXTRA.get(optim, ()))  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    stop_before = stopper(monkeypatch)
    train("reviews", whole, *settings, sizes=SIZES)
    stop_before(3)
    with pytest.raises(StoppedError):
        train("reviews", parts, *settings, "engine=trainer", sizes=SIZES)
    before = load_file(parts / "checkpoints" / "step-2" / "model.safetensors")
    stop_before(None)
    train("reviews", parts, *settings, "engine=trainer", "checkpoint.resume=auto", sizes=SIZES)
    assert_same_weights(whole, parts)
    assert lines(whole) == lines(parts)
    assert_same_state(whole, parts)
    after = load_file(parts / "checkpoints" / "step-4" / "model.safetensors")
    still = [name for name, value in before.items() if torch.equal(value, after[name])]
    assert [name for name in still if "key.bias" not in name] == []  # whose gradient is zero but for rounding


def assert_same_state(one: Path, other: Path) -> None:
    left, right = (load_file(run / "checkpoints" / "step-4" / "optimizer.safetensors") for run in (one, other))
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []
