"""Schedules equal those of the libraries; plateau schedules and snapshots work in runs."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from commands import run_command
from reference_schedules import CASES, PEAK, STEPS, ours, reference, settings, walk
from runs import assert_same_weights, lines, train
from safetensors.torch import load_file
from stopping import StoppedError, stopper, train_in_legs
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

from toolkit.base.errors import ConfigError, RunError
from toolkit.config.sections import TrainConfig
from toolkit.optim.optimizers import build_optimizer
from toolkit.optim.schedules import (
    build_schedule,
    cycle_ends,
    factor_of,
    has_epochs,
    in_steps,
    momentum_of,
    schedule_problems,
    seek,
    set_momentum,
    shape_problems,
)
from toolkit.optim.shapes import SHAPES

RUN = ("data.max_train_samples=24", "data.max_eval_samples=8", "train.per_device_train_batch_size=4",
       "train.gradient_accumulation_steps=1", "train.warmup_steps=0", "train.max_steps=8")  # fmt: skip
PLATEAU = (*RUN, "eval.eval_steps=1", "checkpoint.save_steps=1", "train.lr_scheduler_type=reduce_lr_on_plateau",
           "train.lr_scheduler_kwargs={patience: 1, factor: 0.5, threshold: 10.0, cooldown: 1}",
           "eval.metric_for_best_model=loss")  # fmt: skip
CYCLES = (*RUN, "train.lr_scheduler_type=cosine_with_restarts", "train.lr_scheduler_kwargs.num_cycles=3",
          "train.snapshot_ensemble=true", "checkpoint.save_steps=1", "train.learning_rate=0.01")  # fmt: skip


def test_every_schedule_has_a_reference():
    assert {case.partition("-")[0] for case in CASES} == set(SHAPES) - {"reduce_lr_on_plateau"}


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_equals_its_reference_over_100_steps(case):
    schedule = reference(case)
    assert ours(case) == pytest.approx(walk(schedule.optimizer, schedule), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_that_seeks_equals_one_that_walked(case):
    train = settings(case)
    assert schedule_problems(train) == []
    walked, optimizer = ours(case), build_optimizer(torch.nn.Linear(1, 1), train)
    schedule = build_schedule(optimizer, train, STEPS)
    for step in (99, 0, 10, 57):
        seek(schedule, step)
        assert optimizer.param_groups[0]["lr"] == schedule.get_last_lr()[0] == walked[step]
    assert factor_of(train, STEPS)(STEPS + 5) >= 0  # after the last step, and when one goes on for longer


def test_a_warm_up_comes_before_the_schedules_of_torch():
    train = TrainConfig(lr_scheduler_type="step", lr_scheduler_kwargs={"step_size": 2}, warmup_steps=2)
    factor = factor_of(train, 10)
    assert [factor(step) for step in range(6)] == pytest.approx([0.0, 0.5, 1.0, 1.0, 0.1, 0.1])


LENGTHS = {
    "step": ({"step_size": "2 epochs"}, {"step_size": 6}),
    "multi_step": ({"milestones": [2, "1 epoch", "1.5 epochs"]}, {"milestones": [2, 3, 5]}),
    "cyclic": ({"base_lr": 0.1, "step_size_up": "1 epoch", "step_size_down": "0.1 epochs"},
               {"base_lr": 0.1, "step_size_up": 3, "step_size_down": 1}),
    "warmup_stable_decay": ({"num_decay_steps": "1 epoch", "num_stable_steps": "2 epochs"},
                            {"num_decay_steps": 3, "num_stable_steps": 6}),
    "inverse_sqrt": ({"timescale": "4 epochs"}, {"timescale": 12}),
}  # fmt: skip


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_in_epochs_are_those_in_steps(name):
    in_epochs, steps = (
        TrainConfig(lr_scheduler_type=name, lr_scheduler_kwargs=given, learning_rate=PEAK, warmup_steps=warmup)
        for given, warmup in zip(LENGTHS[name], ("0.5 epochs", 2), strict=True)
    )
    assert schedule_problems(in_epochs) == []
    assert has_epochs(in_epochs)
    assert not has_epochs(steps)
    assert in_steps(in_epochs, 3) == in_steps(steps, 3) == steps
    assert in_steps(in_epochs, 30).warmup_steps == 15


def test_tenths_of_an_epoch_are_not_rounded_up():
    assert in_steps(TrainConfig(warmup_steps="0.1 epochs"), 30).warmup_steps == 3


MOMENTA = {
    "cyclic": {"base_lr": 0.1, "step_size_up": 7, "step_size_down": 13, "mode": "triangular2", "max_momentum": 0.97},
    "cyclic-shrinking": {"base_lr": 0.1, "step_size_up": 10, "mode": "exp_range", "gamma": 0.98, "base_momentum": 0.3},
    "one_cycle": {},
    "one_cycle-linear": {"three_phase": True, "anneal_strategy": "linear", "base_momentum": 0.2, "max_momentum": 0.8},
}


@pytest.mark.parametrize("optim", ["sgd", "adamw_torch", "muon"])
@pytest.mark.parametrize("case", MOMENTA)
def test_a_cycled_momentum_is_that_of_torch(case, optim):
    given, name = MOMENTA[case], case.partition("-")[0]
    train = TrainConfig(optim=optim, learning_rate=PEAK, lr_scheduler_type=name,
                        lr_scheduler_kwargs={**given, "cycle_momentum": True})  # fmt: skip
    assert schedule_problems(train) == []
    stand_in = torch.optim.SGD([torch.zeros(1)], lr=PEAK, momentum=0.5)
    make = {"cyclic": partial(CyclicLR, max_lr=PEAK), "one_cycle": partial(OneCycleLR, max_lr=PEAK, total_steps=STEPS)}
    schedule = make[name](stand_in, cycle_momentum=True, **given)
    optimizer, momentum = build_optimizer(torch.nn.Sequential(torch.nn.Linear(2, 2)), train), momentum_of(train, STEPS)
    for step in range(STEPS):
        if step:  # the optimizer is built with the first one
            set_momentum(optimizer, momentum(step))
        found = {group["momentum"] for group in optimizer.param_groups if "momentum" in group}
        found |= {group["betas"][0] for group in optimizer.param_groups if "betas" in group}
        assert found == {momentum(step)}
        assert found.pop() == pytest.approx(stand_in.param_groups[0]["momentum"], rel=1e-9)
        stand_in.step()
        if step < STEPS - 1:
            schedule.step()


def test_a_warm_up_in_epochs_ends_before_the_run(tmp_path):
    long = ("train.num_train_epochs=1", "train.max_steps=-1", "train.warmup_steps=2 epochs")
    with pytest.raises(ConfigError, match=r"train\.warmup_steps: 2 epochs are 12 steps, and this run ends with step 6"):
        train("reviews", tmp_path, *RUN, *long)


@pytest.mark.slow
def test_momentum_and_lengths_in_epochs_are_the_same_in_both_engines_and_after_a_resume(tmp_path, monkeypatch):
    run = (*RUN, "checkpoint.save_steps=1", "train.optim=sgd", "train.optim_args.nesterov=true",
           "train.learning_rate=0.1", "train.lr_scheduler_type=cyclic", "train.lr_scheduler_kwargs="
           "{base_lr: 0.01, step_size_up: 0.5 epochs, cycle_momentum: true}")  # fmt: skip
    train("reviews", tmp_path / "whole", *run)
    found = [(line["learning_rate"], line["momentum"]) for line in lines(tmp_path / "whole", "loss")]
    rises = [0, 1 / 3, 2 / 3, 1, 2 / 3, 1 / 3, 0, 1 / 3]  # six steps per epoch
    assert found == [pytest.approx((0.01 + 0.09 * rise, 0.9 - 0.1 * rise)) for rise in rises]
    train_in_legs(monkeypatch, tmp_path / "parts", *run, legs=((3, "trainer"), (5, "loop"), (None, "trainer")))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")


@pytest.mark.parametrize("case", CASES)
def test_a_rate_of_zero_and_a_warm_up_as_long_as_the_run_have_a_factor(case):
    no_rate = {key: 0.0 for key in CASES[case][1] if key in ("min_lr", "base_lr")}
    train = replace(settings(case), learning_rate=0.0, lr_scheduler_kwargs={**CASES[case][1], **no_rate})
    assert schedule_problems(train) == []
    for warmup in (0, 10, 12):
        factor = factor_of(replace(train, warmup_steps=warmup), 10)
        assert all(0 <= factor(step) <= 1 for step in range(11))


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("linear", {"num_cycles": 2}, "lr_scheduler_kwargs.num_cycles: unknown argument of linear; it has none"),
        ("cosine", {"num_cycle": 2}, r"num_cycle: unknown argument of cosine; known: num_cycles.*did you mean"),
        ("cosine_with_restarts", {"num_cycles": 2.5}, r"num_cycles: received 2\.5"),
        ("exponential", {}, "gamma: exponential requires it"),
        ("step", {"step_size": 0}, "step_size: received 0"),
        ("multi_step", {"milestones": 3}, "milestones: received 3"),
        ("polynomial", {"lr_end": 1.0}, "lr_end .1. is not below train.learning_rate"),
        ("cosine_with_min_lr", {}, "give one of min_lr and min_lr_rate"),
        ("cosine_with_min_lr", {"min_lr": 1.0}, "min_lr .1. is above train.learning_rate"),
        ("cyclic", {"base_lr": 1.0}, "base_lr .1. is above"),
        ("cyclic", {"base_lr": 0.0, "mode": "exp_range"}, "exp_range needs gamma"),
        ("cyclic", {"base_lr": 0.0, "gamma": 0.9}, "gamma has no effect without mode: exp_range"),
        ("cyclic", {"base_lr": 0.0, "max_momentum": 0.9}, "max_momentum has no effect without cycle_momentum: true"),
        (
            "one_cycle",
            {"cycle_momentum": True, "base_momentum": 0.99},
            r"base_momentum .0\.99. is above max_momentum .0\.95",
        ),
        ("cosine_with_restarts", {"t_mult": 2}, "t_mult has no effect on a single cycle"),
        ("cosine_with_restarts", {"num_cycles": 2, "t_mult": 0.5}, r"t_mult: received 0\.5"),
        ("step", {"step_size": "2 weeks"}, "step_size: received '2 weeks'; .*steps, or of epochs such as '2 epochs'"),
        ("step", {"step_size": "0 epochs"}, "step_size: received '0 epochs'"),
        ("exponential", {"gamma": "1 epoch"}, "gamma: received '1 epoch'"),
        ("warmup_stable_decay", {"num_decay_steps": 2, "decay_type": "square"}, "decay_type: received 'square'"),
        ("reduce_lr_on_plateau", {"min_lr": 1.0}, "min_lr .1. is above train.learning_rate"),
        ("reduce_lr_on_plateau", {"mode": "min"}, "mode: unknown argument of reduce_lr_on_plateau"),
        ("reduce_lr_on_plateau", {"factor": 1.5}, r"factor: received 1\.5"),
    ],
)
def test_wrong_arguments_of_a_schedule_are_named(name, given, message):
    train = TrainConfig(lr_scheduler_type=name, lr_scheduler_kwargs=given)
    (problem,) = [*schedule_problems(train), *shape_problems(train)]
    assert re.search(message, problem)


@pytest.mark.slow
def test_a_plateau_is_that_of_torch_and_survives_a_resume(tmp_path, monkeypatch):
    train("reviews", tmp_path / "whole", *PLATEAU)
    losses = [line["eval_loss"] for line in lines(tmp_path / "whole", "eval_loss")]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)
    reference = ReduceLROnPlateau(optimizer, "min", patience=1, factor=0.5, threshold=10.0, cooldown=1)
    expected = []
    for loss in losses:
        expected.append(optimizer.param_groups[0]["lr"])
        reference.step(loss)
    assert [line["learning_rate"] for line in lines(tmp_path / "whole", "loss")] == pytest.approx(expected)
    assert len(set(expected)) == 3
    legs = ((4, "trainer"), (6, "loop"), (None, "trainer"))
    train_in_legs(monkeypatch, tmp_path / "parts", *PLATEAU, legs=legs)
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")


def test_cycles_end_where_the_rate_is_at_its_peak_again():
    train = TrainConfig(lr_scheduler_type="cosine_with_restarts", lr_scheduler_kwargs={"num_cycles": 3}, warmup_steps=2)
    ends = cycle_ends(train, 14)
    factor = factor_of(train, 14)
    assert ends == [6, 10, 14]
    assert [factor(end) for end in ends] == pytest.approx([1.0, 1.0, 0.0])
    longer = replace(train, lr_scheduler_kwargs={"num_cycles": 3, "t_mult": 2})
    assert cycle_ends(longer, 16) == [4, 8, 16]
    assert [factor_of(longer, 16)(end) for end in (4, 8, 16)] == pytest.approx([1.0, 1.0, 0.0])
    assert cycle_ends(longer, 14) == [4, 8, 14]  # 1.71, 3.43 and 6.86 steps


@pytest.mark.slow
def test_snapshots_are_averaged_under_both_engines_and_after_a_resume(tmp_path, monkeypatch, capsys):
    result = train("reviews", tmp_path / "whole", *CYCLES)
    assert re.search(r"^ +ensemble_accuracy +[\d.]+ *$", capsys.readouterr().out, re.M)
    (line,) = lines(tmp_path / "whole", "ensemble_accuracy")
    assert line["ensemble_size"] == 3
    assert result.further["ensemble_accuracy"] == line["ensemble_accuracy"]
    files = sorted((tmp_path / "whole" / "snapshots").iterdir())
    assert [file.name for file in files] == ["step-3.safetensors", "step-6.safetensors", "step-8.safetensors"]
    # The last snapshot is the last step, and scoring the others has not changed the model.
    last, final = (load_file(file) for file in (files[-1], tmp_path / "whole" / "model" / "model.safetensors"))
    assert all(torch.equal(final[name], value) for name, value in last.items())
    stop_before = stopper(monkeypatch)
    stop_before(5)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *CYCLES, "engine=trainer")
    stop_before(None)
    train("reviews", tmp_path / "parts", *CYCLES, "engine=trainer", "checkpoint.resume=auto")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    assert "ensemble_accuracy" in (tmp_path / "whole" / "report.md").read_text()


def test_snapshots_follow_cycles_that_grow(tmp_path):
    train("reviews", tmp_path / "run", *CYCLES, "train.lr_scheduler_kwargs={num_cycles: 2, t_mult: 3}")
    files = sorted(file.name for file in (tmp_path / "run" / "snapshots").iterdir())
    assert files == ["step-2.safetensors", "step-8.safetensors"]


@pytest.mark.slow
def test_snapshots_that_are_not_as_they_were_written_are_found_and_not_used(tmp_path, capsys):
    train("reviews", tmp_path / "run", *CYCLES)
    one, other, _ = sorted((tmp_path / "run" / "snapshots").iterdir())
    content = bytearray(one.read_bytes())
    content[-1] ^= 1
    one.write_bytes(content)
    other.write_bytes(content[:100])
    assert run_command("verify", tmp_path / "run") == 1
    message = capsys.readouterr().err
    assert all(f"snapshots/{file.name} is not as it was written" in message for file in (one, other))
    result = train("reviews", tmp_path / "run", *CYCLES, "checkpoint.resume=auto")
    assert result.further["ensemble_size"] == 1
    assert "snapshots are missing or damaged" in capsys.readouterr().out


def test_a_snapshot_of_a_model_that_is_not_finite_is_not_written(tmp_path):
    diverging = ("train.learning_rate=1.0e+38", "train.max_steps=1", "checkpoint.save_steps=null")
    with pytest.raises(RunError) as refused:
        train("reviews", tmp_path / "run", *CYCLES, *diverging, "train.lr_scheduler_kwargs.num_cycles=1")
    assert not (tmp_path / "run" / "snapshots").exists()
    assert "not finite; nothing was saved" in str(refused.value)


@pytest.mark.slow
def test_one_snapshot_of_the_last_step_scores_like_the_model(tmp_path):
    train("reviews", tmp_path / "run", *CYCLES, "train.lr_scheduler_kwargs.num_cycles=1")
    (ensemble,), evaluations = (lines(tmp_path / "run", f"{name}accuracy") for name in ("ensemble_", "eval_"))
    assert ensemble["ensemble_accuracy"] == evaluations[-1]["eval_accuracy"]


def test_a_task_whose_predictions_have_no_mean_takes_no_snapshots(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.snapshot_ensemble: .* cannot be averaged"):
        train("qa", tmp_path / "run", *CYCLES)


def test_peak_of_the_tables_is_the_settings():
    assert max(ours("linear-cold")) == PEAK
