"""Runs with communication hooks on two processes, for `test_comm_hooks`: `accelerate launch ... OUTPUT_DIR`."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from finishing import finish
from runs import SGD, train
from stopping import StoppedError
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from toolkit.distributed.strategies.ddp import PowerSGD
from toolkit.engine.training import Session

RUN = (*SGD, "data.max_train_samples=37", "train.max_steps=7", "train.per_device_train_batch_size=2",
       "train.gradient_accumulation_steps=2", "eval.eval_steps=null", "checkpoint.save_steps=3",
       "checkpoint.save_total_limit=null", "train.learning_rate=0.1")  # fmt: skip
POWER = ("train.ddp_comm_hook=power_sgd", "train.power_sgd_rank=2")


def power_sgd_is_its_formula() -> float:
    """Returns how far two steps of the hook are from the paper's algorithm, computed from all raw gradients."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    layer = nn.Linear(24, 16).double()
    hook, model = PowerSGD(layer, rank=3, size=2), DistributedDataParallel(layer)
    hook.register(model)
    first = PowerSGD(layer, rank=3, size=2).query("weight", layer.weight.detach())
    query = errors = None
    worst = 0.0
    for step in range(3):
        inputs = [torch.randn(5, 24, generator=torch.Generator().manual_seed(10 * step + r)).double() for r in (0, 1)]
        layer.zero_grad()
        model(inputs[rank]).square().sum().backward()
        raw = []
        for each in inputs:
            copy = nn.Linear(24, 16).double()
            copy.load_state_dict(layer.state_dict())
            copy(each).square().sum().backward()
            raw.append((copy.weight.grad, copy.bias.grad))
        matrices = [w + (0 if errors is None else errors[r]) for r, (w, _) in enumerate(raw)]
        query = first if query is None else query
        left = torch.linalg.qr(sum(m @ query for m in matrices) / 2).Q
        query = sum(m.T @ left for m in matrices) / 2
        made = left @ query.T
        errors = [m - made for m in matrices]
        bias = (raw[0][1] + raw[1][1]) / 2
        worst = max(worst, float((layer.weight.grad - made).abs().max()), float((layer.bias.grad - bias).abs().max()))
    return worst


def main(output: Path) -> None:
    """Trains all runs that the test compares."""
    train("reviews", output / "whole", *RUN, *POWER, double=True)
    worst = power_sgd_is_its_formula()
    if dist.get_rank() == 0:
        (output / "formula.json").write_text(json.dumps(worst))
    train("reviews", output / "sync", *RUN, double=True)
    train("reviews", output / "fp16", *RUN, "train.ddp_comm_hook=fp16", double=True)
    begin = Session.begin_window

    def stop_before_5(self, batches):
        if self.state.step + 1 == 5:
            raise StoppedError
        return begin(self, batches)

    Session.begin_window = stop_before_5
    with suppress(StoppedError):
        train("reviews", output / "parts", *RUN, *POWER, "engine=trainer", double=True)
    Session.begin_window = begin
    train("reviews", output / "parts", *RUN, *POWER, "engine=trainer", "checkpoint.resume=auto", double=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    finish()
