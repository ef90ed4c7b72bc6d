"""Time and disk are estimated before a run has used them."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from runs import lines, train

from toolkit.api.mesh import Mesh
from toolkit.api.state import Milestones
from toolkit.base.console import format_duration, log_to_console
from toolkit.base.errors import CheckpointError
from toolkit.config.sections import CheckpointConfig, ModelConfig, TrainConfig, TrainerConfig
from toolkit.config.train import ParallelConfig
from toolkit.engine.checkpointing import require_disk_space
from toolkit.engine.meter import TimeEstimate

FEW = ("data.max_train_samples=16", "data.max_eval_samples=4", "eval.eval_steps=null")


def test_the_time_is_said_once_without_the_first_step(capsys):
    log_to_console()
    estimate = TimeEstimate(100)
    for seconds in (60.0, *[1.5] * 50):
        estimate.add(seconds)
    assert capsys.readouterr().out == "Training takes about 2 min for 100 steps, without evaluations.\n"
    short = TimeEstimate(6)
    for _ in range(6):
        short.add(1.0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.42 s"),
        (7.6, "7.6 s"),
        (99, "99 s"),
        (100, "2 min"),
        (3600, "60 min"),
        (7000, "1.9 h"),
        (86400, "24.0 h"),
        (2e5, "2.3 days"),
    ],
)
def test_durations_are_short(seconds, text):
    assert format_duration(seconds) == text


def test_a_run_that_does_not_fit_on_the_disk_is_rejected_before_training(tmp_path, monkeypatch):
    free = 3_000_000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    many = (*FEW, "train.max_steps=30", "checkpoint.save_steps=1", "checkpoint.save_total_limit=null")
    with pytest.raises(CheckpointError) as refused:
        train("reviews", tmp_path / "run", *many)
    message = str(refused.value)
    assert message.startswith(f"output_dir: {tmp_path / 'run'} has 2.86 MiB of free space, but this run needs about ")
    assert "and 30 checkpoints of " in message
    assert "checkpoint.save_total_limit" in message
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    # The estimate of one checkpoint is close to its size.
    few = (*FEW, "train.max_steps=1", "checkpoint.save_total_limit=1", "checkpoint.resume=auto")
    train("reviews", tmp_path / "run", *few)
    sizes = [
        sum((tmp_path / "run" / "checkpoints" / "step-1" / f"{name}.safetensors").stat().st_size for name in names)
        for names in (("model",), ("model", "optimizer"))
    ]
    for size, word in zip(sizes, ("a model of ", "checkpoints of "), strict=True):
        value, unit = message.split(word)[1].split()[:2]
        assert float(value) * {"KiB": 2**10, "MiB": 2**20}[unit.rstrip(":.")] == pytest.approx(size, rel=0.1)


def test_snapshots_and_the_copy_of_a_split_model_need_space_too(tmp_path, monkeypatch, capsys):
    log_to_console()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000))
    kwargs = {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 4}, "warmup_steps": 0}
    cfg = SimpleNamespace(
        train=TrainConfig(snapshot_ensemble=True, **kwargs),
        checkpoint=CheckpointConfig(),
        model=ModelConfig(),
        parallel=ParallelConfig(),
        trainer=TrainerConfig(),
    )
    run = SimpleNamespace(
        cfg=cfg,
        mesh=Mesh(fsdp=2),
        output_dir=tmp_path,
        strategy=SimpleNamespace(outline=None),
        model=torch.nn.Linear(10, 10, bias=False),
        resume=None,
    )
    milestones = SimpleNamespace(total_steps=8, steps_per_epoch=4, save_every=None)
    require_disk_space(run, milestones)
    found = "about 2.34 KiB (a model of 400 B, 4 snapshots of 400 B and a complete copy of 400 B); 9.77 KiB are free"
    assert found in capsys.readouterr().out
    run.resume = SimpleNamespace(step=5)
    require_disk_space(run, milestones)
    assert "2 snapshots of 400 B" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("total", "every"),
    [(1, 1), (100, 1), (101, 2), (126, 2), (250, 4), (500, 5), (501, 10), (3000, 40), (123_456, 2000)],
)
def test_automatic_training_lines_are_50_to_100(total, every):
    cfg = SimpleNamespace(
        train=SimpleNamespace(max_steps=total),
        eval=SimpleNamespace(eval_steps=None),
        checkpoint=SimpleNamespace(save_steps=None),
        tracking=SimpleNamespace(logging_steps="auto"),
    )
    assert Milestones.of(cfg, 10).log_every == every
    assert total < 50 or 50 <= total // every <= 100


def test_a_run_logs_automatically_and_says_how_often(tmp_path):
    auto = ("tracking.logging_steps=auto", "train.max_steps=101", "checkpoint.save_steps=null")
    small = ("model.from_config.hidden_size=16", "model.from_config.num_hidden_layers=1",
             "train.per_device_train_batch_size=1", "train.gradient_accumulation_steps=1")  # fmt: skip
    train("reviews", tmp_path / "run", *FEW, *small, *auto, "engine=trainer")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (facts["total_steps"], facts["logging_steps"]) == (101, 2)
    assert [line["step"] for line in lines(tmp_path / "run", "loss")] == [*range(2, 101, 2), 101]
