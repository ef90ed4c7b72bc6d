"""Commands that find settings by short trainings: lr-plot, lr-find, batch-find."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from toolkit.api.task import Task
from toolkit.base.errors import InputError, RunError
from toolkit.base.outputs import output_file, output_folder
from toolkit.commands import options
from toolkit.commands.options import Command, at_least
from toolkit.config.sections import Config
from toolkit.system.limits import available_memory

if TYPE_CHECKING:
    from toolkit.api.state import Milestones


MOST_POINTS = 2000


def add_lr_plot(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML, the image file and the number of processes."""
    options.add_recipe(parser)
    options.add(parser, "--output", default_text="lr.png", default="lr.png")
    options.add(parser, "--processes", default_text="1", default=1)


def run_lr_plot(arguments: argparse.Namespace) -> None:
    """Writes the plot, and prints peak, warm-up and number of steps."""
    path = output_file(arguments.output)
    task_type, loaded = options.load(arguments)
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


STEPS, LEAST_STEPS = 100, 20


def add_lr_find(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the range of rates."""
    options.add_recipe(parser)
    parser.add_argument("--start-lr", type=_rate, metavar="RATE",
                        help="first rate (default: a thousandth of train.learning_rate)")  # fmt: skip
    parser.add_argument("--end-lr", type=_rate, metavar="RATE",
                        help="last rate (default: a thousand times train.learning_rate)")  # fmt: skip
    parser.add_argument("--ramp", choices=("exponential", "linear"), default="exponential",
                        help="how the rate rises (default: exponential)")  # fmt: skip
    options.add(
        parser, "--steps", default_text=f"{STEPS}, at least {LEAST_STEPS}", default=STEPS, type=at_least(LEAST_STEPS)
    )
    options.add_launch(parser)
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-lr-find")


def run_lr_find(arguments: argparse.Namespace) -> None:
    """Runs the test, prints what it found and writes it."""
    request = options.request(arguments, "lr-find")
    from toolkit.lab.lr_find import find

    report = find(request, arguments.start_lr, arguments.end_lr, arguments.ramp, arguments.steps)
    report.publish(request.output)


def _rate(text: str) -> float:
    """Argparse `type` for learning rates."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"received {text}, must be a number above 0")
    return value


TIMED_STEPS, LEAST_TIMED_STEPS = 8, 3
GROWTH = 8
"""Largest window that a rule for the rate tries, as a multiple of the configured one."""
OF_LIBRARIES = 512 * 2**20
"""Bytes of each process that are not a step's: the context of a GPU, or the libraries on a CPU."""
SHARE = 0.9
"""Share of this machine's free memory that processes on a CPU may use; beyond it, the system might end others."""
SCALES = ("linear", "sqrt")


def add_batch_find(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, the memory, and how the learning rate follows the window."""
    options.add_recipe(parser)
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory that each process may use, for example 16GiB (default: what is free)"
    )
    parser.add_argument(
        "--scale-lr", choices=SCALES,
        help="try larger windows, too, with the learning rate multiplied by their growth or its square root",
    )  # fmt: skip
    parser.add_argument(
        "--reference-rows", type=at_least(1), metavar="N",
        help="rows of a step for which train.learning_rate is meant (default: as configured)",
    )  # fmt: skip
    options.add(
        parser,
        "--steps",
        default_text=f"{TIMED_STEPS}, in each of two rounds",
        default=TIMED_STEPS,
        type=at_least(LEAST_TIMED_STEPS),
    )
    options.add_launch(parser)
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-batch-find")


def run_batch_find(arguments: argparse.Namespace) -> None:
    """Tries micro-batches, prints what it found and writes it.

    Raises:
        InputError: if arguments are invalid, or the model cannot be simulated.
        ToolkitError: if the settings or the rows are invalid.
        RunError: if training fails, or no micro-batch fits.
    """
    task_type, loaded = options.load(arguments)
    from toolkit.base.console import quiet_libraries, say
    from toolkit.checks.run import refuse_wrong_launch
    from toolkit.lab import batch_find
    from toolkit.lab.batch_find import Search, sizes_of, window_of
    from toolkit.lab.jobs.jobs import Launch, step_rows
    from toolkit.lab.plan.subject import subject_of

    _check(arguments, loaded.config)
    launch = Launch.of(arguments.launch, arguments.processes)
    launch.check(1)
    overrides = _batch_find_overrides(arguments, loaded.config)

    def load(more: Sequence[str]) -> Config:
        return launch.load(task_type, arguments.config, [*overrides, *more])

    cfg = load([])
    refuse_wrong_launch(cfg, task_type, launch.processes)
    memory = _memory(arguments, launch.processes)
    output = output_folder(arguments.output_dir or f"{loaded.config.output_dir.rstrip('/')}-batch-find")
    quiet_libraries()
    subject = subject_of(cfg, task_type(cfg))
    ranks, window = step_rows(cfg, launch.processes) // window_of(cfg), window_of(cfg)
    reference = arguments.reference_rows / ranks if arguments.reference_rows else window
    sizes = sizes_of(cfg, subject.longest, GROWTH * window, reference, arguments.scale_lr)
    job = {
        "recipe": str(Path(arguments.recipe).absolute()),
        "config": str(Path(arguments.config).absolute()),
        "overrides": overrides,
    }
    tried = Search(subject, load, memory, launch, job, arguments.steps).run(sizes)
    facts = {
        "unit": "rows" if cfg.train.max_tokens_per_batch is None else "tokens",
        "scale_lr": arguments.scale_lr, "memory": memory, "steps": arguments.steps, "processes": launch.processes,
        "config": arguments.config, "command": shlex.join(arguments.command),
    }  # fmt: skip
    found = batch_find.found_of(tried, cfg.train.max_tokens_per_batch or cfg.train.per_device_train_batch_size, facts)
    batch_find.write(found, output)
    batch_find.show(found)
    say(f"\nwritten to {output}/batch_find.html, .md, .json and .svg")


def _check(arguments: argparse.Namespace, cfg: Config) -> None:
    """Refuses options that would have no effect.

    Raises:
        InputError: if there are any.
    """
    from toolkit.optim.presets import PRESETS

    if arguments.scale_lr is None:
        if arguments.reference_rows:
            raise InputError("--reference-rows: has no effect without --scale-lr")
    elif PRESETS[cfg.train.optim].relative_step:
        raise InputError(f"--scale-lr: {cfg.train.optim} computes its own learning rate, so there is none to scale")


def _batch_find_overrides(arguments: argparse.Namespace, cfg: Config) -> list[str]:
    """Returns the overrides of all runs."""
    from toolkit.config.keys import written
    from toolkit.lab.jobs.training import FEW_STEPS, unfrozen_at_once

    return [*arguments.overrides, *written(FEW_STEPS | unfrozen_at_once(cfg))]


def _memory(arguments: argparse.Namespace, processes: int) -> int:
    """Returns the bytes that a step may use on each process."""
    import torch

    from toolkit.lab.plan.report import parse_bytes

    if arguments.memory:
        return parse_bytes(arguments.memory, "--memory")
    if torch.cuda.is_available():
        free = min(torch.cuda.mem_get_info(device)[0] for device in range(torch.cuda.device_count()))
    else:
        free = int(SHARE * available_memory()) // processes
    return max(0, free - OF_LIBRARIES)


COMMANDS = {
    "lr-plot": Command(add_lr_plot, run_lr_plot),
    "lr-find": Command(add_lr_find, run_lr_find),
    "batch-find": Command(add_batch_find, run_batch_find),
}
