"""Optimizers, parameter groups and schedules."""

from __future__ import annotations

import typing

import pytest
import torch
import transformers
from torch import nn

from toolkit.config.sections import TrainConfig
from toolkit.errors import ConfigError
from toolkit.optim.optimizers import CONSTRUCTORS, OPTIMIZERS, build_optimizer, check_optim_args, parameter_groups
from toolkit.optim.schedules import SCHEDULES, build_schedule, seek, warmup_steps

STEPS = 40


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False))


def test_the_yamls_choices_are_what_there_is():
    hints = typing.get_type_hints(TrainConfig)
    assert set(typing.get_args(hints["optim"])) == set(OPTIMIZERS) == set(CONSTRUCTORS)
    assert set(typing.get_args(hints["lr_scheduler_type"])) == set(SCHEDULES)


def test_biases_and_norms_do_not_decay_and_frozen_parameters_are_left_out():
    network = model()
    network[3].weight.requires_grad = False
    groups = parameter_groups(network, 0.1)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    decay = {group["weight_decay"]: {names[id(p)] for p in group["params"]} for group in groups}
    assert decay == {0.1: {"0.weight", "1.weight"}, 0.0: {"1.bias", "2.weight", "2.bias"}}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_moves_every_parameter(name):
    network = model()
    before = [parameter.clone() for parameter in network.parameters()]
    optimizer = build_optimizer(network, TrainConfig(optim=name, learning_rate=0.1, adam_beta2=0.98))
    network(torch.arange(7)).square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))


def test_settings_reach_the_optimizer():
    train = TrainConfig(
        optim="adamw_torch", learning_rate=0.3, adam_beta1=0.8, adam_epsilon=1e-6, optim_args={"amsgrad": True}
    )
    group = build_optimizer(model(), train).param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["amsgrad"]) == (0.3, (0.8, 0.999), 1e-6, True)
    sgd = build_optimizer(model(), TrainConfig(optim="sgd", optim_args={"momentum": 0.9, "nesterov": True}))
    assert (sgd.param_groups[0]["momentum"], sgd.param_groups[0]["nesterov"]) == (0.9, True)


def test_wrong_arguments_of_an_optimizer_are_named():
    with pytest.raises(ConfigError, match=r"train\.optim_args\.momentun: unknown argument of sgd; known: .*momentum"):
        check_optim_args(TrainConfig(optim="sgd", optim_args={"momentun": 0.9}))
    with pytest.raises(ConfigError, match="sgd refuses"):
        build_optimizer(model(), TrainConfig(optim="sgd", optim_args={"nesterov": True}))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 5, 0.25])
def test_schedules_equal_those_of_transformers(name, warmup):
    if name == "constant":
        warmup = 0
    train = TrainConfig(optim="sgd", learning_rate=0.7, lr_scheduler_type=name, warmup_steps=warmup)
    ours = build_schedule(build_optimizer(model(), train), train, STEPS)
    reference = transformers.get_scheduler(
        name, build_optimizer(model(), train), num_warmup_steps=warmup_steps(train, STEPS), num_training_steps=STEPS
    )
    for _ in range(STEPS):
        assert ours.get_last_lr() == pytest.approx(reference.get_last_lr(), abs=1e-12)
        for schedule in (ours, reference):
            schedule.optimizer.step()
            schedule.step()


def test_a_schedule_that_seeks_equals_one_that_walked():
    train = TrainConfig(optim="sgd", lr_scheduler_type="cosine", warmup_steps=4)
    walked, sought = (build_schedule(build_optimizer(model(), train), train, STEPS) for _ in range(2))
    for _ in range(13):
        walked.optimizer.step()
        walked.step()
    seek(sought, 13)
    for _ in range(5):
        assert walked.get_last_lr() == sought.get_last_lr() == [group["lr"] for group in sought.optimizer.param_groups]
        for schedule in (walked, sought):
            schedule.optimizer.step()
            schedule.step()
