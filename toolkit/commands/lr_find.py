"""Find a learning rate: `toolkit lr-find RECIPE --config FILE [--processes N] [section.key=value ...]`."""

from __future__ import annotations

import argparse
import math
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import InputError, RunError
from toolkit.commands import _recipe_config, options
from toolkit.commands.options import at_least
from toolkit.config.sections import Config

if TYPE_CHECKING:
    from toolkit.lab.jobs.jobs import Launch
    from toolkit.lab.lr_find import Reading

STEPS, LEAST_STEPS = 100, 20
RANGE = 1000.0
"""The test rises from the configured rate divided by this to the rate multiplied by it."""
CYCLES = ("one_cycle", "cyclic")
CYCLE = 100
"""Steps for which `cyclic` rises, as an example."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the range of rates."""
    _recipe_config.add_recipe(parser)
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


def work(arguments: argparse.Namespace) -> None:
    """Runs the test, prints what it found and writes it.

    Raises:
        InputError: if arguments are invalid.
        ToolkitError: if the settings are invalid.
        RunError: if training fails, or the test ends too early to read anything from it.
    """
    task_type, loaded = _recipe_config.load(arguments)
    from toolkit.base.console import quiet_libraries, say
    from toolkit.checks.run import refuse_wrong_launch
    from toolkit.lab import lr_find
    from toolkit.lab.jobs.jobs import Launch, step_rows
    from toolkit.lab.lr_find import read

    cfg = loaded.config
    low, high = _range(arguments, cfg)
    launch = Launch.of(arguments.launch, arguments.processes)
    launch.check(1)
    overrides = _overrides(arguments, cfg, low, high)
    quiet_libraries()
    with TemporaryDirectory(prefix="lr-find-") as folder:
        settings = [*overrides, f"output_dir={folder}/run"]
        tested = launch.load(task_type, arguments.config, settings)
        refuse_wrong_launch(tested, task_type, launch.processes)
        output = options.output_folder(arguments.output_dir or f"{cfg.output_dir.rstrip('/')}-lr-find")
        measured = _measured(arguments, settings, launch, Path(folder))
    rates, losses = zip(*measured["curve"], strict=True) if measured["curve"] else ((), ())
    if len(rates) < 3:
        raise RunError(
            f"the loss was not finite after {len(rates)} steps already, at a rate of {low:g}; lower --start-lr"
        )
    reading = read(rates, losses, blew_up=measured["ended"] != "finished")
    found = {
        "suggestion": reading.high if cfg.train.lr_scheduler_type in CYCLES else reading.plain,
        "schedule": _schedule(cfg),
        "overrides": _choices(reading, cfg),
        "others": {"start_of_decline": reading.decline, "steepest": reading.steepest, "lowest": reading.lowest,
                   "divergence": reading.divergence, "plain": reading.plain, "one_cycle": reading.high,
                   "cyclic": None if reading.high is None else [reading.decline, reading.high]},
        "curve": measured["curve"], "smoothed": reading.smoothed, "ended": measured["ended"],
        "from": low, "to": high, "ramp": arguments.ramp, "steps": arguments.steps,
        "rows_per_step": step_rows(tested, launch.processes), "processes": launch.processes,
        "config": arguments.config, "command": shlex.join(arguments.command),
    }  # fmt: skip
    lr_find.write(found, output)
    say("\n".join(["", *lr_find.chart(found), "", *lr_find.words(found), "", *lr_find.choices(found)]))
    say(f"\nwritten to {output}/lr_find.html, .md, .json, .svg and .png")


def _rate(text: str) -> float:
    """Argparse `type` for learning rates."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"received {text}, must be a number above 0")
    return value


def _range(arguments: argparse.Namespace, cfg: Config) -> tuple[float, float]:
    """Returns the first and the last rate.

    Raises:
        InputError: if there is no range, or the optimizer has no rate.
    """
    from toolkit.optim.presets import PRESETS

    preset = PRESETS[cfg.train.optim]
    if preset.relative_step or preset.averages:
        why = (
            "computes its own learning rate"
            if preset.relative_step
            else "averages weights instead of following a schedule"
        )
        raise InputError(f"train.optim: {cfg.train.optim} {why}, so no rate can be found for it; use another optimizer")
    rate = cfg.train.learning_rate
    if not rate and None in (arguments.start_lr, arguments.end_lr):
        raise InputError("train.learning_rate: received 0, from which no range follows; set --start-lr and --end-lr")
    low, high = arguments.start_lr or rate / RANGE, arguments.end_lr or rate * RANGE
    if low >= high:
        raise InputError(f"--start-lr: {low:g} is not below --end-lr ({high:g})")
    return low, high


def _overrides(arguments: argparse.Namespace, cfg: Config, low: float, high: float) -> list[str]:
    """Returns the overrides of the test; rates that are set separately rise in proportion."""
    from toolkit.config.keys import written
    from toolkit.lab.jobs.training import STEPS_ONLY, unfrozen_at_once

    train = cfg.train
    settings: dict[str, Any] = (
        STEPS_ONLY
        | unfrozen_at_once(cfg)
        | {
            "train.learning_rate": high,
            "train.lr_scheduler_type": "range_test",
            "train.lr_scheduler_kwargs": {"start_lr": low, "mode": arguments.ramp},
            "train.warmup_steps": 0,
            "train.max_steps": arguments.steps,
            "train.non_finite": "stop",
        }
    )
    if train.head_learning_rate is not None and train.learning_rate:
        settings["train.head_learning_rate"] = train.head_learning_rate * high / train.learning_rate
    return [*arguments.overrides, *written(settings)]


def _measured(arguments: argparse.Namespace, overrides: list[str], launch: Launch, folder: Path) -> dict[str, Any]:
    from toolkit.lab.jobs.jobs import Trial, run_trials

    job = {
        "recipe": str(Path(arguments.recipe).absolute()),
        "config": str(Path(arguments.config).absolute()),
        "overrides": overrides,
    }
    trial = Trial("lr_find", job, folder / "outcome.json")
    (outcome,) = run_trials([trial], folder / "lr_find.log", launch.processes, launch.file, launch.environ)
    if outcome.error is not None:
        raise RunError(outcome.error)
    measured: dict[str, Any] = outcome.result
    return measured


def _schedule(cfg: Config) -> str:
    """Returns the name under which the configured schedule has its overrides."""
    name = cfg.train.lr_scheduler_type
    return name if name in CYCLES else "plain"


def _choices(reading: Reading, cfg: Config) -> dict[str, list[str]]:
    """Returns overrides by schedule: `plain` ones decay from the peak or stay at it."""
    from toolkit.config.keys import written

    if reading.plain is None or reading.high is None:
        return {}
    train = cfg.train

    def settings(rate: float, **more: Any) -> list[str]:
        rates: dict[str, Any] = {"train.learning_rate": _short(rate)}
        if train.head_learning_rate is not None and train.learning_rate:
            rates["train.head_learning_rate"] = _short(rate * train.head_learning_rate / train.learning_rate)
        return written(rates | {f"train.{name}": value for name, value in more.items()})

    low = _short(min(reading.decline or reading.high / 10, reading.high / 4))
    cycle = {"warmup_steps": 0, **({"lr_scheduler_kwargs": {}} if train.lr_scheduler_kwargs else {})}
    triangle = {"lr_scheduler_kwargs.base_lr": low, "lr_scheduler_kwargs.step_size_up": CYCLE}
    return {
        "plain": settings(reading.plain),
        "one_cycle": settings(reading.high, lr_scheduler_type="one_cycle", **cycle),
        "cyclic": settings(reading.high, lr_scheduler_type="cyclic", **cycle, **triangle),
    }


def _short(rate: float) -> float:
    """Returns a rate with two significant digits."""
    return float(f"{rate:.2g}")
