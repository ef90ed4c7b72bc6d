"""Find a micro-batch: `toolkit batch-find RECIPE --config FILE [--processes N] [section.key=value ...]`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from toolkit.base.errors import InputError
from toolkit.commands import _recipe_config, options
from toolkit.commands.options import at_least
from toolkit.config.sections import Config
from toolkit.system.limits import available_memory

TIMED_STEPS, LEAST_TIMED_STEPS = 8, 3
GROWTH = 8
"""Largest window that a rule for the rate tries, as a multiple of the configured one."""
OF_LIBRARIES = 512 * 2**20
"""Bytes of each process that are not a step's: the context of a GPU, or the libraries on a CPU."""
SHARE = 0.9
"""Share of this machine's free memory that processes on a CPU may use; beyond it, the system might end others."""
SCALES = ("linear", "sqrt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, the memory, and how the learning rate follows the window."""
    _recipe_config.add_recipe(parser)
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


def work(arguments: argparse.Namespace) -> None:
    """Tries micro-batches, prints what it found and writes it.

    Raises:
        InputError: if arguments are invalid, or the model cannot be simulated.
        ToolkitError: if the settings or the rows are invalid.
        RunError: if training fails, or no micro-batch fits.
    """
    task_type, loaded = _recipe_config.load(arguments)
    from toolkit.base.console import quiet_libraries, say
    from toolkit.checks.run import refuse_wrong_launch
    from toolkit.lab import batch_find
    from toolkit.lab.batch_find import Search, sizes_of, window_of
    from toolkit.lab.jobs.jobs import Launch, step_rows
    from toolkit.lab.plan.subject import subject_of

    _check(arguments, loaded.config)
    launch = Launch.of(arguments.launch, arguments.processes)
    launch.check(1)
    overrides = _overrides(arguments, loaded.config)

    def load(more: Sequence[str]) -> Config:
        return launch.load(task_type, arguments.config, [*overrides, *more])

    cfg = load([])
    refuse_wrong_launch(cfg, task_type, launch.processes)
    memory = _memory(arguments, launch.processes)
    output = options.output_folder(arguments.output_dir or f"{loaded.config.output_dir.rstrip('/')}-batch-find")
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


def _overrides(arguments: argparse.Namespace, cfg: Config) -> list[str]:
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
