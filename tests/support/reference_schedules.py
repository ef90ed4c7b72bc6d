"""Learning rates of every schedule over 100 steps, and those of its reference in torch or transformers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.optim import SGD, Optimizer, lr_scheduler

from toolkit.config.sections import TrainConfig
from toolkit.optim.optimizers import build_optimizer
from toolkit.optim.schedules import build_schedule

STEPS, PEAK = 100, 0.7
WARM = {"warmup_steps": 10}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": (WARM, {}),
    "linear-fraction": ({"warmup_steps": 0.25}, {}),
    "linear-cold": ({}, {}),
    "cosine": (WARM, {}),
    "cosine-waves": (WARM, {"num_cycles": 1.5}),
    "cosine_with_restarts": (WARM, {"num_cycles": 4}),
    "cosine_with_restarts-longer": ({"warmup_steps": 9}, {"num_cycles": 3, "t_mult": 2}),
    "polynomial": (WARM, {}),
    "polynomial-power": (WARM, {"power": 2.5, "lr_end": 0.01}),
    "constant": ({}, {}),
    "constant_with_warmup": (WARM, {}),
    "inverse_sqrt": (WARM, {}),
    "inverse_sqrt-cold": ({}, {}),
    "inverse_sqrt-scale": (WARM, {"timescale": 30}),
    "cosine_with_min_lr": (WARM, {"min_lr": 0.1}),
    "cosine_with_min_lr-rate": (WARM, {"min_lr_rate": 0.2, "num_cycles": 1.0}),
    "cosine_warmup_with_min_lr": (WARM, {"min_lr": 0.1}),
    "cosine_warmup_with_min_lr-start": (WARM, {"min_lr_rate": 0.1, "warmup_lr_rate": 0.3}),
    "warmup_stable_decay": (WARM, {"num_decay_steps": 20}),
    "warmup_stable_decay-linear": (WARM, {"num_decay_steps": 20, "decay_type": "linear", "warmup_type": "cosine"}),
    "warmup_stable_decay-root": (
        WARM,
        {"num_decay_steps": 20, "num_stable_steps": 30, "decay_type": "1-sqrt", "warmup_type": "1-sqrt",
         "min_lr_ratio": 0.1},
    ),
    "step": ({}, {"step_size": 30}),
    "multi_step": ({}, {"milestones": [20, 50, 51], "gamma": 0.5}),
    "exponential": ({}, {"gamma": 0.97}),
    "cyclic": ({}, {"base_lr": 0.1, "step_size_up": 7, "step_size_down": 13}),
    "cyclic-halved": ({}, {"base_lr": 0.1, "step_size_up": 10, "mode": "triangular2"}),
    "cyclic-shrinking": ({}, {"base_lr": 0.1, "step_size_up": 10, "mode": "exp_range", "gamma": 0.98}),
    "one_cycle": ({}, {}),
    "one_cycle-linear": ({}, {"anneal_strategy": "linear", "pct_start": 0.4, "div_factor": 5.0, "three_phase": True}),
    "range_test": ({}, {"start_lr": 0.001}),
    "range_test-linear": ({}, {"start_lr": 0.001, "mode": "linear"}),
}  # fmt: skip
"""By the schedule's name and a variant: further settings of `train`, and the schedule's arguments."""


def settings(case: str) -> TrainConfig:
    """Returns the settings of a case."""
    train, arguments = CASES[case]
    name = case.partition("-")[0]
    return TrainConfig(optim="sgd", learning_rate=PEAK, lr_scheduler_type=name, lr_scheduler_kwargs=arguments, **train)


def reference(case: str) -> Any:
    """Builds the reference schedule of a case, with its own optimizer."""
    train, arguments = CASES[case]
    warmup = train.get("warmup_steps", 0)
    optimizer, name = SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK), case.partition("-")[0]
    torchs = {
        "step": lr_scheduler.StepLR,
        "multi_step": lr_scheduler.MultiStepLR,
        "exponential": lr_scheduler.ExponentialLR,
    }
    if "t_mult" in arguments:  # warm-up and cycles of 13, 26 and 52 steps
        cycles = lr_scheduler.CosineAnnealingWarmRestarts(SGD([torch.zeros(1)], lr=1.0), T_0=13, T_mult=2)
        wanted = [step / warmup for step in range(warmup)] + walk(cycles.optimizer, cycles)
        return lr_scheduler.LambdaLR(optimizer, lambda step: wanted[step])
    if name in torchs:
        return torchs[name](optimizer, **arguments)
    if name == "range_test":
        rates = np.linspace if arguments.get("mode") == "linear" else np.geomspace
        wanted = rates(arguments["start_lr"], PEAK, STEPS) / PEAK
        return lr_scheduler.LambdaLR(optimizer, lambda step: float(wanted[min(step, STEPS - 1)]))
    if name == "cyclic":
        return lr_scheduler.CyclicLR(optimizer, max_lr=PEAK, cycle_momentum=False, **arguments)
    if name == "one_cycle":
        return lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=STEPS, cycle_momentum=False, **arguments)
    steps = warmup if warmup >= 1 else int(warmup * STEPS)
    total = None if "num_stable_steps" in arguments else STEPS  # transformers takes only one of them
    return transformers.get_scheduler(name, optimizer, steps, total, arguments)


def walk(optimizer: Optimizer, schedule: Any) -> list[float]:
    """Returns the learning rates of `STEPS` steps."""
    rates = []
    for step in range(STEPS):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if step < STEPS - 1:  # OneCycleLR fails after its last step
            schedule.step()
    return rates


def ours(case: str, prepare: Any = None) -> list[float]:
    """Returns the learning rates of the toolkit's schedule, with an optimizer prepared as in the engines."""
    train = settings(case)
    model = torch.nn.Linear(1, 1)
    optimizer = build_optimizer(model, train)
    schedule = build_schedule(optimizer, train, STEPS)
    if prepare is not None:
        optimizer = prepare(optimizer)
    return walk(optimizer, schedule)


def write(output: Path) -> None:
    """Writes the learning rates of all cases in this process to a file for its rank."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    assert accelerator.num_processes == int(os.environ["WORLD_SIZE"])
    rates = {case: ours(case, accelerator.prepare) for case in CASES}
    name = f"rates-{accelerator.num_processes}-{accelerator.process_index}.json"
    (output / name).write_text(json.dumps(rates))
