"""Draw the learning rate before a run: `toolkit lr-plot recipes/<task>.py --config FILE [section.key=value ...]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from toolkit.api.task import Task
from toolkit.base.errors import RunError
from toolkit.commands import _options, _recipe_config
from toolkit.config.sections import Config

if TYPE_CHECKING:
    from toolkit.api.milestones import Milestones

MOST_POINTS = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML, the picture and the number of processes."""
    _recipe_config.add_arguments(parser)
    _options.add(parser, "--output", default_text="lr.png", default="lr.png")
    _options.add(parser, "--processes", default_text="1", default=1)


def work(arguments: argparse.Namespace) -> None:
    """Writes the picture, and prints the peak, the warm-up and the number of steps."""
    path = _options.output_file(arguments.output)
    task_type, loaded = _recipe_config.load(arguments)
    cfg = loaded.config
    from toolkit.document.plots import learning_rate
    from toolkit.optim.optimizers import check_optim_args
    from toolkit.optim.schedules import check_schedule, factor_of, peak_rate, warmup_steps

    check_optim_args(cfg.train)
    check_schedule(cfg.train)
    total = cfg.train.max_steps
    if total <= 0:
        total = plan(cfg, task_type(cfg), arguments.processes).total_steps
    factor, peak = factor_of(cfg.train, total), peak_rate(cfg.train)
    steps = sorted({round(i * (total - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)})
    rates = [peak * factor(step) for step in steps]
    try:
        learning_rate([step + 1 for step in steps], rates, cfg.train.lr_scheduler_type, path)
    except (OSError, ValueError) as error:
        raise RunError(f"--output: cannot write {path}: {error}") from error
    highest = max(range(len(rates)), key=rates.__getitem__)
    print(f"peak     {rates[highest]:.4g} at step {steps[highest] + 1}")
    print(f"warm-up  {warmup_steps(cfg.train, total)} steps")
    print(f"total    {total} steps, the last at {rates[-1]:.4g}")
    if cfg.train.lr_scheduler_type == "reduce_lr_on_plateau":
        print("The rate falls from there when evaluations are no longer better, which nobody can draw before.")
    print(f"written to {path}")


def plan(cfg: Config, task: Task, num_processes: int) -> Milestones:
    """Reads and prepares the rows as a run does, but no model, and returns what happens when."""
    from toolkit.api.mesh import Mesh
    from toolkit.api.milestones import Milestones
    from toolkit.base.console import quiet_libraries
    from toolkit.data.batches import training_loader
    from toolkit.data.prepare import load_rows, prepare
    from toolkit.distributed.launch import build_accelerator
    from toolkit.modalities.processor import build_processor, configure_model
    from toolkit.models.load import load_model_config

    quiet_libraries()
    accelerator = build_accelerator(cfg)
    with TemporaryDirectory(prefix="lr-plot-") as folder:
        config = load_model_config(cfg.model)
        rows = load_rows(cfg, task, accelerator, None)
        processor = build_processor(cfg, task, config, rows, accelerator, Path(folder), None)
        configure_model(config, task, processor, new=cfg.model.from_config is not None)
        features = prepare(rows, task, processor, cfg, accelerator).train
        _, sampler = training_loader(features, task, processor, cfg, Mesh(replicas=num_processes))
    return Milestones.of(cfg, sampler.order.windows_per_epoch)
