"""The space of a search: what may change, and every mistake in it, named before anything runs."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from runs import ROOT

from toolkit.base.errors import ConfigError, InputError
from toolkit.lab.search import space
from toolkit.lab.search.population import expected_best, explored
from toolkit.lab.search.space import (
    METHODS,
    POPULATION,
    Dimension,
    check_method,
    configured_point,
    grid_of,
    overrides_of,
    read_space,
)
from toolkit.recipe import load_settings, load_task_type

RECIPE, CONFIG = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"
RATE = Dimension("train.learning_rate", low=1e-5, high=1e-1, log=True)


def space_of(folder, text: str, *overrides: str) -> list[Dimension]:
    file = folder / "space.yaml"
    file.write_text(text)
    return read_space(file, load_task_type(RECIPE), str(CONFIG), list(overrides))


def configured(*overrides: str):
    return load_settings(load_task_type(RECIPE), CONFIG, overrides).config


def test_ranges_have_the_types_of_their_settings(tmp_path):
    space = space_of(tmp_path, (
        "train.learning_rate: {low: 1e-5, high: 1e-3, log: true}\n"
        "train.weight_decay: {low: 0, high: 1}\n"
        "train.per_device_train_batch_size: {low: 2, high: 8, step: 2}\n"
        "train.optim: [adamw_torch, adafactor]\n"
        "train.num_train_epochs: {low: 1, high: 2, step: 0.5}\n"
        "model.config_overrides.hidden_dropout_prob: {low: 0.0, high: 0.3}\n"
        "model.freeze: [[], [backbone]]\n"
    ))  # fmt: skip
    rate, decay, batch, optim, epochs, dropout, freeze = space
    assert (rate.log, rate.whole, decay.whole, dropout.whole) == (True, False, False, False)
    assert (batch.values(), optim.values()) == ([2, 4, 6, 8], ["adamw_torch", "adafactor"])
    assert epochs.values() == [1.0, 1.5, 2.0]
    assert freeze.choices == ("[]", "[backbone]")
    assert repr(decay.distribution()).startswith("FloatDistribution")
    assert batch.distribution().high == 8
    point = {"train.optim": "adafactor", "train.per_device_train_batch_size": 4, "train.learning_rate": 1e-4}
    loaded = configured(*overrides_of(point))
    assert (loaded.train.optim, loaded.train.per_device_train_batch_size) == ("adafactor", 4)
    assert loaded.train.learning_rate == 1e-4


def test_everything_wrong_is_named_with_its_line(tmp_path):
    text = """\
train.learnig_rate: {low: 1e-5, high: 1e-3}
train.optim: [adamw_torch, adamw]
train.per_device_train_batch_size: {low: 0, high: 8}
train.num_train_epochs: {low: 3, high: 1}
train.weight_decay: {low: 0, high: 1, log: true}
train.adam_beta1: {low: 0.5, high: 0.9, stepp: 0.1}
train.adam_beta2: {low: 0.5, high: 0.9, step: 0.3}
train.max_grad_norm: 1
seed: [1, 2]
data.train_file: [a.csv, b.csv]
train: [1, 2]
eval.per_device_eval_batch_size: [8]
"""
    with pytest.raises(ConfigError) as error:
        space_of(tmp_path, text)
    expected = (
        "did you mean train.learning_rate?", "did you mean 'adam'", "must be at least 1",
        "low 3 is not below high 1", "must be above 0 with log", "unknown key 'stepp' of a range (did you mean 'step'",
        "must divide the distance", "expected a list of values or a range", "a seed that was chosen by its score",
        "must be scored on the same rows", "this is a section", "at least two values",
    )  # fmt: skip
    assert len(error.value.problems) == len(expected)
    problems = sorted(error.value.problems, key=lambda each: int(each.split(":")[1]))
    for line, (problem, words) in enumerate(zip(problems, expected, strict=True), start=1):
        assert f"space.yaml:{line}: " in problem, problem
        assert words in problem, problem


def test_a_combination_is_no_mistake_of_the_space(tmp_path):
    assert space_of(tmp_path, "train.optim_args: [{}, {momentum: 0.9}]\n")[0].choices == ("{}", "{momentum: 0.9}")


def test_the_configured_settings_are_a_point_if_the_space_has_it():
    cfg = configured("train.optim=adafactor")
    optim = Dimension("train.optim", ("sgd", "adafactor"))
    batch = Dimension("train.per_device_train_batch_size", low=2, high=8, step=2, whole=True)
    assert configured_point([RATE, optim, batch], cfg) == {
        "train.learning_rate": 1e-3, "train.optim": "adafactor", "train.per_device_train_batch_size": 8,
    }  # fmt: skip
    assert configured_point([RATE, Dimension("train.optim", ("sgd", "adam"))], cfg) is None
    assert configured_point([Dimension("train.weight_decay", low=0.1, high=0.2)], cfg) is None


def test_a_grid_is_every_combination_and_has_an_end():
    batch = Dimension("train.per_device_train_batch_size", low=1, high=3, whole=True)
    decay = Dimension("train.weight_decay", low=0.0, high=0.2, step=0.1)
    points = grid_of([batch, decay])
    assert len(points) == 9
    assert points[0] == {"train.per_device_train_batch_size": 1, "train.weight_decay": 0.0}
    with pytest.raises(ConfigError, match=r"train\.learning_rate: grid needs a list"):
        grid_of([RATE, batch])
    with pytest.raises(ConfigError, match="more than 10,000"):
        grid_of([Dimension(f"a.{n}", low=1, high=100, whole=True) for n in range(3)])


def test_methods_that_do_not_fit_are_rejected(monkeypatch):
    optim = Dimension("train.optim", ("sgd", "adam"))
    blind = configured("eval.eval_steps=null")
    for method in ("asha", "hyperband", "pbt"):
        with pytest.raises(ConfigError, match=rf"eval\.eval_steps: {method} compares trials at their evaluations"):
            check_method(method, [RATE], blind, None)
    with pytest.raises(ConfigError, match=r"train\.optim: cmaes needs ranges(.|\n)*at least two settings"):
        check_method("cmaes", [optim], configured(), None)
    with pytest.raises(ConfigError, match=r"train\.optim: cannot change in the middle of a run"):
        check_method("pbt", [RATE, optim], configured(), None)
    ends = configured("train.early_stopping_patience=2", "train.max_time=00:01:00:00", "eval.eval_steps=1")
    with pytest.raises(ConfigError, match=r"train\.early_stopping_patience: would end(.|\n)*train\.max_time: would"):
        check_method("pbt", [RATE], ends, None)
    with pytest.raises(InputError, match="--storage: the members of a population"):
        check_method("pbt", [RATE], configured(), "sqlite:///a.db")
    with monkeypatch.context() as patched:
        patched.setattr(space, "find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=r"cmaes needs a package .*\[search\]"):
            check_method("cmaes", [RATE, RATE], configured(), None)
    for method in METHODS:
        if method not in ("cmaes", *POPULATION):
            check_method(method, [RATE, optim], configured(), None)


def test_a_child_explores_near_its_parent_and_inside_the_space():
    space = [
        RATE,
        Dimension("train.max_grad_norm", ("0.5", "1.0", "2.0")),
        Dimension("train.local_sgd_steps", low=2, high=10, step=4, whole=True),
    ]
    parent = {"train.learning_rate": 1e-2, "train.max_grad_norm": "0.5", "train.local_sgd_steps": 6}
    drawn = random.Random(1)
    found = [explored(space, parent, drawn) for _ in range(200)]
    rates = [each["train.learning_rate"] for each in found]
    near = [rate for rate in rates if rate in (0.8e-2, 1.2e-2)]
    assert 100 < len(near) < 190
    assert len(set(near)) == 2
    assert all(1e-5 <= rate <= 1e-1 for rate in rates)
    assert {each["train.max_grad_norm"] for each in found} == {"0.5", "1.0", "2.0"}
    assert {each["train.local_sgd_steps"] for each in found} <= {2, 6, 10}


def test_new_settings_are_expected_where_gains_were_largest():
    """Gains of the first evaluation are ten times larger, and say nothing else."""
    rates = [10 ** (-5 + number / 4) for number in range(17)]
    histories = [
        [{"settings": {RATE.key: rate}, "gains": {"1": 10.0, "2": -abs(math.log10(rate) + 4)}}] for rate in rates
    ]
    found = [math.log10(expected_best([RATE], histories, True, seed)[RATE.key]) for seed in range(9)]
    assert abs(median(found) + 4) < 0.7
    away = [math.log10(expected_best([RATE], histories, False, seed)[RATE.key]) for seed in range(9)]
    assert abs(median(away) + 4) > 1
    assert expected_best([RATE], histories, True, 3) == expected_best([RATE], histories, True, 3)
    assert expected_best([RATE], [[{"settings": {RATE.key: 1e-3}}]], True, 1).keys() == {RATE.key}
