"""What concerns DeepSpeed and does not need it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch import nn

from toolkit.api.mesh import Mesh
from toolkit.base.errors import ConfigError
from toolkit.checks import run
from toolkit.config.sections import TrainConfig
from toolkit.config.train import ParallelConfig
from toolkit.distributed.strategies import strategy_type
from toolkit.distributed.strategies.deepspeed import LARGEST_BUCKET, DeepSpeed, engine_config

TWO = {"WORLD_SIZE": "2"}


def settings(stage: int, offload: bool = False) -> SimpleNamespace:
    parallel = ParallelConfig(backend="deepspeed", zero_stage=stage, offload=offload)
    train = TrainConfig(per_device_train_batch_size=4, gradient_accumulation_steps=3, max_grad_norm=0.5)
    return SimpleNamespace(parallel=parallel, train=train)


def test_a_missing_library_names_the_extra(monkeypatch) -> None:
    monkeypatch.setattr("toolkit.checks.run.find_spec", lambda name: None)
    (problem,) = run.deepspeed_problems(settings(2))
    assert problem.startswith("parallel.backend: received 'deepspeed'")
    assert "finetune-toolkit[deepspeed]" in problem
    torch_only = settings(2)
    torch_only.parallel = replace(torch_only.parallel, backend="torch")
    assert run.deepspeed_problems(torch_only) == []


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_needs_several_processes(stage: int) -> None:
    assert strategy_type(settings(stage), TWO) is DeepSpeed
    assert strategy_type(settings(stage), {}) is not DeepSpeed


def test_the_engine_gets_the_window_and_the_norm_of_the_settings() -> None:
    config = engine_config(settings(1), 2, 101)
    assert [config[name] for name in ("train_batch_size", "gradient_accumulation_steps", "gradient_clipping")] == [
        24, 3, 0.5
    ]  # fmt: skip
    zero = config["zero_optimization"]
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] == 102
    assert engine_config(settings(1), 2, 10**9)["zero_optimization"]["reduce_bucket_size"] == LARGEST_BUCKET


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_offload_moves_the_parameters_in_stage_three_only(stage: int) -> None:
    assert "offload_optimizer" not in engine_config(settings(stage), 2, 10)["zero_optimization"]
    zero = engine_config(settings(stage, offload=True), 2, 10)["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu"}
    assert ("offload_param" in zero) == (stage == 3)


def test_float64_is_rejected() -> None:
    strategy = DeepSpeed(None, Mesh(replicas=2), settings(1))
    with pytest.raises(ConfigError, match=r"float32, .*torch\.float64"):
        strategy.prepare(nn.Linear(2, 2).double())
