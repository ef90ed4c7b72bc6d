"""Commands that find settings by short trainings: lr-plot, lr-find, batch-find."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from toolkit.api.task import Task
from toolkit.base.errors import InputError
from toolkit.base.outputs import output_file
from toolkit.commands import options
from toolkit.config.sections import Config

if TYPE_CHECKING:
    from toolkit.api.state import Milestones


MOST_POINTS = 2000
"""Steps of a plot at which the rate is computed."""


def add_lr_plot(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML, the file and the number of processes."""
    options.add_recipe(parser)
    options.add_output(parser, "lr.svg", default="lr.svg")
    options.add(parser, "--processes", default_text="1", default=1)


def run_lr_plot(arguments: argparse.Namespace) -> None:
    """Draws the rates as SVG, and prints peak, warm-up and number of steps."""
    path = output_file(arguments.output, arguments.overwrite)
    if path.suffix != ".svg":
        raise InputError(f"--output: received {path}; the plot is an SVG, so the name must end in .svg")
    task_type, loaded = options.load(arguments)
    cfg = loaded.config
    from toolkit.base.files import write_text
    from toolkit.checks.run import check_settings
    from toolkit.document.charts import line_chart
    from toolkit.document.svg import sheet
    from toolkit.optim.schedules import factor_of, has_epochs, in_steps, is_cycled, momentum_of, peak_rate, warmup_steps

    task = task_type(cfg)
    check_settings(cfg, task)
    total = cfg.train.max_steps
    train = cfg.train
    if total <= 0 or has_epochs(train):
        milestones = plan(cfg, task, arguments.processes)
        total, train = milestones.total_steps, in_steps(train, milestones.steps_per_epoch)
    factor, peak = factor_of(train, total), peak_rate(train)
    steps = sorted({round(i * (total - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)})
    curves = {"learning rate": [peak * factor(step) for step in steps]}
    if is_cycled(train):
        curves["momentum"] = [*map(momentum_of(train, total), steps)]
    numbers, title = [step + 1 for step in steps], train.lr_scheduler_type
    drawings = [
        line_chart({name: (numbers, values)}, title=title, x_label="optimizer step", y_label=name, zero=True)
        for name, values in curves.items()
    ]
    write_text(path, sheet(drawings))
    rates, momenta = curves["learning rate"], curves.get("momentum")
    highest = max(range(len(rates)), key=rates.__getitem__)
    print(f"peak     {rates[highest]:.4g} at step {numbers[highest]}")
    print(f"warm-up  {warmup_steps(train, total)} steps")
    print(f"total    {total} steps, the last at {rates[-1]:.4g}")
    if momenta:
        lowest = min(range(len(momenta)), key=momenta.__getitem__)
        print(f"momentum {momenta[0]:.4g} at first, {momenta[lowest]:.4g} at step {numbers[lowest]}")
    if train.lr_scheduler_type == "reduce_lr_on_plateau":
        print("From there the rate depends on evaluation results and cannot be drawn in advance.")
    print(f"written to {path}")


def plan(cfg: Config, task: Task, num_processes: int) -> Milestones:
    """Reads and preprocesses the rows like a run, without a model, and returns the run's milestones.

    Raises ToolkitError if settings or data cannot be used.
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


STEPS, LEAST_STEPS = 100, 20


def add_lr_find(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the range of rates."""
    options.add_recipe(parser)
    rate = options.number_where(lambda value: value > 0, "above 0")
    parser.add_argument("--start-lr", type=rate, metavar="RATE",
                        help="first rate (default: a thousandth of train.learning_rate)")  # fmt: skip
    parser.add_argument("--end-lr", type=rate, metavar="RATE",
                        help="last rate (default: a thousand times train.learning_rate)")  # fmt: skip
    parser.add_argument("--ramp", choices=("exponential", "linear"), default="exponential",
                        help="how the rate rises (default: exponential)")  # fmt: skip
    options.add_least(parser, "--steps", f"{STEPS}, at least {LEAST_STEPS}", STEPS, LEAST_STEPS)
    about = "train STEPS steps from the same weights for each of --steps rates (default: one training through all)"
    parser.add_argument("--reset", type=options.at_least(2), metavar="STEPS", help=about)
    options.add_launch(parser)
    options.add_output(parser, "OUTPUT_DIR-lr-find", folder=True)


def run_lr_find(arguments: argparse.Namespace) -> None:
    """Runs the test, prints what it found and writes it."""
    request = options.request(arguments, "lr-find")
    from toolkit.lab.lr_find import find

    report = find(request, arguments.start_lr, arguments.end_lr, arguments.ramp, arguments.steps, arguments.reset)
    report.publish(request.output)


TIMED_STEPS, LEAST_TIMED_STEPS = 8, 3
SCALES = ("linear", "sqrt")


def add_batch_find(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, the memory, and how the learning rate follows the window."""
    options.add_recipe(parser)
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory that each process may use, for example 16GiB (default: what is free)"
    )
    larger = "try larger windows, too, with the learning rate multiplied by their growth or its square root"
    parser.add_argument("--scale-lr", choices=SCALES, help=larger)
    meant = "rows of a step for which train.learning_rate is meant (default: as configured)"
    options.add_count(parser, "--reference-rows", meant)
    options.add_least(parser, "--steps", f"{TIMED_STEPS}, in each of two rounds", TIMED_STEPS, LEAST_TIMED_STEPS)
    options.add_launch(parser)
    options.add_output(parser, "OUTPUT_DIR-batch-find", folder=True)


def run_batch_find(arguments: argparse.Namespace) -> None:
    """Tries micro-batches, prints what it found and writes it."""
    request = options.request(arguments, "batch-find")
    from toolkit.lab.batch_find import find

    report = find(request, arguments.memory, arguments.scale_lr, arguments.reference_rows, arguments.steps)
    report.publish(request.output)
