"""`train.global_batch_size`: the window belongs to the settings, micro-batches and accumulation to the launch."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML
from runs import ROOT

from toolkit.base.errors import ConfigError
from toolkit.config import dump_config
from toolkit.config.train import TrainConfig
from toolkit.data.batching.order import Order
from toolkit.recipe import load_settings, load_task_type

RECIPE, CONFIG = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"


def train(processes: int = 1, *overrides: str) -> TrainConfig:
    environ = {"WORLD_SIZE": str(processes)}
    return load_settings(load_task_type(RECIPE), CONFIG, overrides, environ, check_files=False).config.train


@pytest.mark.fast(6)
@pytest.mark.parametrize(
    ("processes", "settings", "batch", "accumulation"),
    [
        (1, (), 8, 2),
        (2, (), 8, 1),
        (4, (), 4, 1),  # no more than a process's part
        (3, ("train.per_device_train_batch_size=2",), 2, 3),
        (1, ("train.per_device_train_batch_size=null",), 16, 1),
        (2, ("train.per_device_train_batch_size=null", "parallel.pipeline=2"), 8, 2),
        (4, ("train.global_batch_size=9", "train.per_device_train_batch_size=null", "parallel.pipeline=4"), 2, 5),
        (2, ("train.global_batch_size=7", "train.per_device_train_batch_size=null", "parallel.pipeline=2"), 4, 2),
        (2, ("train.per_device_train_batch_size=4", "parallel.tensor=2"), 4, 4),
        (3, ("train.global_batch_size=7", "train.per_device_train_batch_size=null"), 3, 1),
        (1, ("train.gradient_accumulation_steps=2",), 8, 2),  # what follows may also be said
        (2, ("train.global_batch_size=null", "train.per_device_train_batch_size=null"), 8, 1),
        (2, ("train.global_batch_size=null", "train.gradient_accumulation_steps=3"), 8, 3),
    ],
)
def test_micro_batches_follow_from_the_window_and_the_launch(processes, settings, batch, accumulation):
    found = train(processes, *settings)
    assert (found.per_device_train_batch_size, found.gradient_accumulation_steps) == (batch, accumulation)


def test_numbers_that_do_not_agree_are_all_named():
    with pytest.raises(ConfigError, match=r"received 4, but the 16 rows .* take 2 with 1 x 8 rows"):
        train(1, "train.gradient_accumulation_steps=4")
    with pytest.raises(ConfigError, match="received 3, but 4 processes"):
        train(4, "train.global_batch_size=3")


def test_a_runs_configuration_is_that_of_any_number_of_processes():
    task = load_task_type(RECIPE)
    cfg = load_settings(task, CONFIG, ("train.per_device_train_batch_size=4",), {"WORLD_SIZE": "2"}).config
    assert cfg.train.accumulation == 2
    again: Any = YAML(typ="safe", pure=True).load(dump_config(cfg))
    assert load_settings(task, again, (), {}).config.train.accumulation == 4


@pytest.mark.parametrize(("rows", "ranks", "batch"), [(7, 3, 3), (7, 3, 1), (10, 4, 2), (5, 2, 8), (16, 3, 4)])
def test_an_uneven_window_is_dealt_once(rows, ranks, batch):
    part = -(-rows // ranks)
    order = Order(37, min(batch, part), -(-part // batch), ranks, seed=1, rows=rows)
    assert order.windows_per_epoch == -(-37 // rows)
    for index in range(order.windows_per_epoch):
        dealt = [order.micro_batches(0, index, rank) for rank in range(ranks)]
        assert len({len(each) for each in dealt}) == 1
        found = sorted(row for each in dealt for batch_rows in each for row in batch_rows)
        assert found == sorted(order.window(0, index).tolist())
    assert Order(37, rows, 1, 1, seed=1).window(0, 1).tolist() == order.window(0, 1).tolist()
