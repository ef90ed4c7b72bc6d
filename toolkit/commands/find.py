"""Plot the learning rate of a run: `toolkit lr-plot RECIPE --config FILE [section.key=value ...]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from toolkit.api.task import Task
from toolkit.base.errors import RunError
from toolkit.commands import _recipe_config, options
from toolkit.config.sections import Config

if TYPE_CHECKING:
    from toolkit.api.state import Milestones

MOST_POINTS = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML, the image file and the number of processes."""
    _recipe_config.add_recipe(parser)
    options.add(parser, "--output", default_text="lr.png", default="lr.png")
    options.add(parser, "--processes", default_text="1", default=1)


def work(arguments: argparse.Namespace) -> None:
    """Writes the plot, and prints peak, warm-up and number of steps.

    Raises:
        InputError: if the image cannot be written.
        ToolkitError: if settings or data cannot be used.
    """
    path = options.output_file(arguments.output)
    task_type, loaded = _recipe_config.load(arguments)
    cfg = loaded.config
    from toolkit.checks.run import refuse_wrong_settings
    from toolkit.document.plots import learning_rate
    from toolkit.optim.schedules import factor_of, has_epochs, in_steps, is_cycled, momentum_of, peak_rate, warmup_steps

    task = task_type(cfg)
    refuse_wrong_settings(cfg, task)
    total = cfg.train.max_steps
    train = cfg.train
    if total <= 0 or has_epochs(train):
        milestones = plan(cfg, task, arguments.processes)
        total, train = milestones.total_steps, in_steps(train, milestones.steps_per_epoch)
    factor, peak = factor_of(train, total), peak_rate(train)
    steps = sorted({round(i * (total - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)})
    rates = [peak * factor(step) for step in steps]
    momenta = [*map(momentum_of(train, total), steps)] if is_cycled(train) else []
    try:
        learning_rate([step + 1 for step in steps], rates, train.lr_scheduler_type, path, momenta)
    except (OSError, ValueError) as error:
        raise RunError(f"--output: cannot write {path}: {error}") from error
    highest = max(range(len(rates)), key=rates.__getitem__)
    print(f"peak     {rates[highest]:.4g} at step {steps[highest] + 1}")
    print(f"warm-up  {warmup_steps(train, total)} steps")
    print(f"total    {total} steps, the last at {rates[-1]:.4g}")
    if momenta:
        lowest = min(range(len(momenta)), key=momenta.__getitem__)
        print(f"momentum {momenta[0]:.4g} at first, {momenta[lowest]:.4g} at step {steps[lowest] + 1}")
    if train.lr_scheduler_type == "reduce_lr_on_plateau":
        print("From there the rate depends on evaluation results and cannot be drawn in advance.")
    print(f"written to {path}")


def plan(cfg: Config, task: Task, num_processes: int) -> Milestones:
    """Reads and preprocesses the rows like a run, without a model, and returns the run's milestones.

    Raises:
        ToolkitError: if settings or data cannot be used.
    """
    from toolkit.api.mesh import Mesh
    from toolkit.api.state import Milestones
    from toolkit.base.console import quiet_libraries
    from toolkit.checkpoint.output_folder import Claimed
    from toolkit.data.batching.batches import training_order
    from toolkit.distributed.launch import build_accelerator
    from toolkit.prepare.inputs import read_inputs

    quiet_libraries()
    accelerator = build_accelerator(cfg)
    with TemporaryDirectory(prefix="lr-plot-") as folder:
        inputs = read_inputs(cfg, task, accelerator, Claimed(Path(folder), None))
        order = training_order(inputs.data.train, cfg, Mesh(replicas=num_processes))
    return Milestones.of(cfg, order.windows_per_epoch)
