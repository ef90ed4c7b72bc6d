"""What each process of a split run holds, and what it drops: `accelerate launch rank_runs.py OUTPUT_DIR`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from accelerate.utils import gather_object
from finishing import finish
from runs import train
from torch import Tensor, nn

import toolkit.models.build
from toolkit.api.training import Callback
from toolkit.base.shards import local_bytes
from toolkit.distributed.stop import StopSignal
from toolkit.engine.training import Session

LARGE = (
    *("model.from_config.hidden_size=512", "model.from_config.intermediate_size=2048"),
    *("model.from_config.num_hidden_layers=4", "model.from_config.vocab_size=400", "task.max_length=8"),
)
"""Fields of a model of 13 million parameters, and short inputs."""
RUN = (
    *("data.max_train_samples=8", "data.max_eval_samples=2", "train.max_steps=1", "train.optim=adamw_torch"),
    *("train.per_device_train_batch_size=2", "train.gradient_accumulation_steps=2", "checkpoint.save_steps=null"),
)
STRATEGIES = {
    "zero1": ("parallel.zero_stage=1",),
    "zero2": ("parallel.zero_stage=2",),
    "fsdp": ("parallel.fsdp=2",),
    "tensor": ("parallel.tensor=2",),
    "context": ("parallel.context=2",),
    "pipeline": ("parallel.pipeline=2",),
}
DROPPED = 0.3


@dataclass
class Held(Callback):
    """Bytes that a process holds; an observer of its run.

    Args:
        parameters: before the update of a step.
        gradients: before the update.
        optimizer_state: after the update.
        in_window: parameters, the most after any micro-batch.
        phases: seconds of the run, by phase.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    in_window: int = 0
    phases: dict[str, float] = field(default_factory=dict)

    def before_update(self) -> None:
        """Counts parameters and gradients."""
        model = self.training.bare_model
        self.parameters = held(model.parameters())
        self.gradients = held(p.grad for p in model.parameters() if p.grad is not None)


def held(tensors: Iterable[Tensor]) -> int:
    return sum(map(local_bytes, tensors))


def count(output: Path, strategy: str) -> Held:
    """Trains one step and counts what this process holds; the strategy `one` is that of one process."""
    found, models = Held(), list[nn.Module]()
    begin, beat = Session.begin_window, StopSignal.beat

    def begin_window(session: Session, batches: Any) -> float:
        models[:] = [session.bare_model]
        return begin(session, batches)

    def after_micro_batch(stop: StopSignal) -> None:
        beat(stop)
        found.in_window = max([found.in_window, *(held(model.parameters()) for model in models)])

    settings = STRATEGIES.get(strategy, ())
    with patch.object(Session, "begin_window", begin_window), patch.object(StopSignal, "beat", after_micro_batch):
        result = train("reviews", output / strategy, *RUN, *settings, sizes=LARGE, observer=found)
    found.optimizer_state, found.phases = result.memory.optimizer_state, dict(result.phases)
    return found


def dropped(output: Path, strategy: str) -> dict[str, Any]:
    """Trains two steps with dropout and returns what it kept, and how often another process kept the same.

    Returns:
        `elements` and the share `kept` of them on this process; `agreeing`, the share of equal decisions of both.
    """
    masks, dropout = list[Tensor](), torch.nn.functional.dropout

    def recorded(values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training:
            return values
        masks.append((dropout(torch.ones_like(values), p) > 0).flatten())
        return values * masks[-1].unflatten(0, values.shape) / (1 - p)

    settings = (f"model.from_config.hidden_dropout_prob={DROPPED}", "train.max_steps=2", *STRATEGIES[strategy])
    with patch("torch.nn.functional.dropout", recorded):
        train("reviews", output / f"{strategy}-dropout", *RUN, *settings)
    found = torch.cat(masks)
    one, other = gather_object([found])
    common = min(one.numel(), other.numel())
    agreeing = float((one[:common] == other[:common]).double().mean())
    return {"elements": common, "kept": float(found.double().mean()), "agreeing": agreeing}


class Statistics(Callback):
    """Collects the running statistics of a batch norm at each evaluation; an observer of a run."""

    def __init__(self) -> None:
        self.own: list[list[float]] = []

    def on_evaluated(self, metrics: Any) -> None:
        """Collects the means of all processes."""
        self.own.append(self.training.bare_model.classifier[0].running_mean.tolist())


def statistics(output: Path, strategy: str) -> list[list[float]]:
    """Trains a model with a batch norm and returns its running means at each evaluation."""
    build, found = toolkit.models.build.build_model, Statistics()

    def changed(*arguments):
        model = build(*arguments)
        model.classifier = nn.Sequential(nn.BatchNorm1d(32), model.classifier)
        return model

    rows = ("data.max_train_samples=16", "data.max_eval_samples=4", "train.per_device_train_batch_size=2",
            "train.max_steps=3", "eval.eval_steps=1", "checkpoint.save_steps=null")  # fmt: skip
    with patch("toolkit.models.build.build_model", changed):
        settings = STRATEGIES.get(strategy, ())
        train("reviews", output / f"{strategy}-statistics", *rows, *settings, observer=found)
    return found.own


def snapshots(output: Path) -> list[list[float]]:
    """Trains with local SGD and returns parameters of this process whenever a snapshot is written."""
    found = []

    def noted(accelerator: Any, tensors: dict[str, Tensor], step: int) -> None:
        found.append(tensors["classifier.weight"].flatten().tolist())

    settings = ("train.strategy=local_sgd", "train.local_sgd_steps=4", "train.snapshot_ensemble=true",
                "train.lr_scheduler_type=cosine_with_restarts", "train.lr_scheduler_kwargs={num_cycles: 2}",
                "train.warmup_steps=0", "train.max_steps=6", "train.per_device_train_batch_size=2",
                "data.max_train_samples=24", "data.max_eval_samples=4", "checkpoint.save_steps=null")  # fmt: skip
    with patch("toolkit.engine.callbacks.snapshots.require_finite", noted):
        train("reviews", output / "snapshots", *settings)
    return found


def main(output: Path) -> None:
    """Writes what this process holds and drops with each strategy, as `<strategy>-<rank>.json`."""
    for strategy in ("ddp", "zero1", "fsdp"):
        file = output / f"{strategy}-statistics-{os.environ['RANK']}.json"
        file.write_text(json.dumps(statistics(output, strategy)), encoding="utf-8")
    (output / f"snapshots-{os.environ['RANK']}.json").write_text(json.dumps(snapshots(output)), encoding="utf-8")
    for strategy in STRATEGIES:
        found = {"held": asdict(count(output, strategy)), "dropped": dropped(output, strategy)}
        file = output / f"{strategy}-{os.environ['RANK']}.json"
        file.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    finish()
