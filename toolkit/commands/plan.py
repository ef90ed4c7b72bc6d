"""Commands about machines and memory: plan, preflight, profile, scale, collectives.

`toolkit plan RECIPE --config FILE [--gpu-memory 16GiB] [--processes 8] [section.key=value ...]`
"""

from __future__ import annotations

import argparse
import gzip
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from toolkit.base.cli_errors import EXIT_INTERRUPT
from toolkit.base.errors import ConfigError, InputError, RunError
from toolkit.base.files import expanded
from toolkit.base.outputs import output_file, output_folder
from toolkit.commands import options
from toolkit.commands.options import Command, at_least
from toolkit.config.sections import Config
from toolkit.recipe import load_settings

if TYPE_CHECKING:
    from toolkit.api.task import Task
    from toolkit.checks.check import Findings
    from toolkit.footprint.simulate import Footprint, Subject
    from toolkit.lab.jobs.jobs import Launch
    from toolkit.lab.plan.estimates import Load, Planner, Scaling
    from toolkit.lab.plan.measure import Correction, Measured
    from toolkit.lab.preflight import Found
    from toolkit.lab.scale import Scale


OF_THE_DRIVER = 512 * 2**20
"""Bytes that a GPU's driver reserves per process for context, kernel code and library workspaces."""


SAME_ROWS = (
    "Each step has the same rows: with fewer copies of the model, more micro-batches.\n"
    "Speed is relative to one device and ignores communication time.\n"
)


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the options of the plan."""
    options.add_recipe(parser)
    parser.add_argument("--gpu-memory", metavar="SIZE", help="plan for a GPU with this memory, for example 16GiB")
    options.add(parser, "--processes", default_text="1; with several, parallel strategies are compared", default=1)
    parser.add_argument(
        "--length", type=at_least(1), metavar="N", help="length of inputs (default: the largest that the options allow)"
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="train a few steps on this machine to correct the plan"
    )
    parser.add_argument(
        "--bandwidth",
        metavar="RATE",
        help="all-reduce bandwidth, for example 25GB/s (default: measured on this machine)",
    )
    options.add(parser, "--output", default_text="none; the plan as JSON")


def run_plan(arguments: argparse.Namespace) -> None:
    """Prints the plan and writes it as JSON.

    Raises:
        InputError: if arguments are invalid, or the model cannot be simulated.
        ToolkitError: if settings or data cannot be used.
        RunError: if the calibration fails.
    """
    from toolkit.lab.plan.report import parse_bytes

    if arguments.bandwidth and not arguments.calibrate:
        raise InputError("--bandwidth: has no effect without --calibrate, which measures the compute time")
    output = output_file(arguments.output) if arguments.output else None
    capacity = parse_bytes(arguments.gpu_memory, "--gpu-memory") if arguments.gpu_memory else None
    bandwidth = parse_bytes(arguments.bandwidth, "--bandwidth") if arguments.bandwidth else None
    task_type, loaded = options.load(arguments)
    from toolkit.base.console import quiet_libraries, say
    from toolkit.base.files import write_json
    from toolkit.checks.run import refuse_wrong_settings
    from toolkit.footprint.simulate import simulate
    from toolkit.lab.plan import report
    from toolkit.lab.plan.estimates import Planner
    from toolkit.lab.plan.subject import subject_of

    cfg = loaded.config
    task = task_type(cfg)
    quiet_libraries()
    refuse_wrong_settings(cfg, task, simulated=True)
    subject = subject_of(cfg, task, arguments.length, gpu=capacity is not None)
    footprint = simulate(subject)
    planner = Planner(footprint, task, cfg, arguments.processes, _loading(arguments, task_type))
    found: dict[str, Any] = {"rows": footprint.rows, "flops": footprint.flops, "footprint": asdict(footprint)}
    say("\n".join(_heading(subject, footprint)))
    report.show(report.parts_table(footprint, cfg.train.optim))
    _strategies(planner, found)
    correction = None
    if arguments.calibrate:
        correction = _calibrate(arguments, cfg, footprint, bandwidth, found, on_gpu=capacity is not None)
    if capacity is not None:
        _fit(arguments, subject, capacity, correction, found)
        if arguments.processes > 1:
            _splits(planner, capacity, correction, found)
    if output is not None:
        write_json(output, found)
        say(f"written to {output}")


def _strategies(planner: Planner, found: dict[str, Any]) -> None:
    """Estimates the strategies, and prints them if there are several processes."""
    from toolkit.base.console import say
    from toolkit.lab.plan import report

    table, refused = planner.strategies()
    found |= {"strategies": [asdict(each) for each in table], "refused": refused}
    if planner.processes > 1:
        report.show(*report.strategies_tables(table, refused, planner.processes))
        say(SAME_ROWS)


def _heading(subject: Subject, footprint: Footprint) -> list[str]:
    from toolkit.lab.plan.report import show_flops
    from toolkit.lab.plan.subject import sizes

    train = subject.cfg.train
    where = "a GPU" if subject.fused_attention or subject.device.type == "cuda" else "the CPU"
    return [
        f"{subject.config.model_type}, {footprint.total:,} weights, {footprint.trained:,} of them trained, on {where}",
        f"micro-batches of {footprint.rows} rows ({sizes(subject.batch)}), {subject.window} in "
        f"a step, {train.mixed_precision or 'no'} mixed precision",
        f"{show_flops(footprint.flops)} for forward and backward pass of one"
        + (f", {footprint.recomputed / footprint.flops:.0%} recomputed" if footprint.recomputed else ""),
        "",
    ]


def _calibrate(
    arguments: argparse.Namespace,
    cfg: Config,
    footprint: Footprint,
    bandwidth: int | None,
    found: dict[str, Any],
    on_gpu: bool,
) -> Correction | None:
    """Measures steps on this machine, and prints the correction and the scaling with processes."""
    from toolkit.base.console import format_bytes, say
    from toolkit.config.keys import written
    from toolkit.data.batching.budget import num_micro_batches
    from toolkit.lab.jobs.training import unfrozen_at_once
    from toolkit.lab.plan import report
    from toolkit.lab.plan.measure import calibrate, rows_that_fit, serial_seconds
    from toolkit.lab.plan.report import show_flops

    rows = rows_that_fit(footprint)
    overrides = [*arguments.overrides, *written(unfrozen_at_once(cfg))]
    correction, runs = calibrate(arguments.recipe, arguments.config, overrides, rows)
    large = runs[-1]
    found["calibration"] = {
        "device": large.device, "factor": correction.factor, "constant": correction.constant,
        "measured": [{"rows": run.footprint.rows, "peak": run.peak, "seconds": run.seconds} for run in runs],
        "peak": correction.peak(footprint),
    }  # fmt: skip
    say(f"Measured here ({large.device}), steps of {' and '.join(str(run.footprint.rows) for run in runs)} rows: "
        f"peak {format_bytes(large.peak)}, predicted {format_bytes(large.footprint.peak)}.")  # fmt: skip
    applies = large.device == ("cuda" if on_gpu else "cpu") or not on_gpu
    if applies:
        say(f"Correction: temporary memory of a step times {correction.factor:.2f}, plus "
            f"{format_bytes(correction.constant)} for libraries.\nPeak of a step here: "
            f"{format_bytes(correction.peak(footprint))}\n")  # fmt: skip
    else:
        say("A GPU has a different allocator, so the plan for it is not corrected.\n")
    if large.seconds:
        serial = serial_seconds(runs)
        larger = footprint.flops * num_micro_batches(cfg.train, footprint.rows) / large.footprint.flops
        seconds = serial + max(0.0, large.seconds - serial) * larger
        say(f"{show_flops(large.flops_per_second or 0.0)}/s; a step as configured would take {seconds:.3g} s here.\n")
        lines = _scaling(arguments, runs, seconds, footprint, bandwidth, found)
        if len(lines) > 1:
            report.show(report.scaling_table(lines))
    return correction if applies else None


def _scaling(
    arguments: argparse.Namespace,
    runs: Sequence[Measured],
    seconds: float,
    footprint: Footprint,
    bandwidth: int | None,
    found: dict[str, Any],
) -> list[Scaling]:
    if arguments.processes == 1:
        return []
    from toolkit.base.console import format_bytes, say
    from toolkit.lab.plan.estimates import scaling
    from toolkit.lab.plan.measure import measured_bandwidth, serial_seconds

    if bandwidth is None and runs[-1].device != "cpu":
        say("The bandwidth between GPUs cannot be measured here: set --bandwidth to estimate the scaling.\n")
        return []
    rate = bandwidth or measured_bandwidth()
    say(f"All-reduce at {format_bytes(rate)}/s ({'as given' if bandwidth else 'measured between two processes here'}).")
    serial = min(seconds, serial_seconds(runs))
    lines = scaling(seconds, serial, footprint.gradients, rate, arguments.processes)
    found["scaling"] = {
        "bytes_per_second": rate, "step_seconds": seconds, "serial_seconds": serial,
        "lines": [asdict(each) for each in lines],
    }  # fmt: skip
    return lines


def _fit(
    arguments: argparse.Namespace,
    subject: Subject,
    capacity: int,
    correction: Correction | None,
    found: dict[str, Any],
) -> None:
    """Finds and prints the smallest set of settings with which the run fits."""
    from toolkit.base.console import say
    from toolkit.lab.plan import report
    from toolkit.lab.plan.fit import smallest_fit

    corrected = _on_gpu(correction)
    load = _loading(arguments, type(subject.task))
    fit, fits = smallest_fit(subject, load, capacity, corrected.peak)
    needed = corrected.peak(fit.footprint)
    found["fit"] = {
        "gpu_memory": capacity, "fits": fits, "overrides": list(fit.overrides), "needed": needed,
        "reserved": corrected.constant, "footprint": asdict(fit.footprint),
    }  # fmt: skip
    original = found["footprint"]
    say("\n".join(report.fit_lines(fit, fits, needed, capacity, type(fit.footprint)(**original))))
    say(f"({report.format_bytes(corrected.constant)} of that is reserved for the driver and libraries.)\n")


def _splits(planner: Planner, capacity: int, correction: Correction | None, found: dict[str, Any]) -> None:
    """Finds and prints the splits of the model that fit."""
    from toolkit.base.console import say
    from toolkit.lab.plan import report
    from toolkit.lab.plan.estimates import fitting_splits

    splits = fitting_splits(planner, capacity, _on_gpu(correction).peak)
    found["splits"] = asdict(splits)
    report.show(*report.splits_tables(splits, planner.processes, capacity))
    say("\n".join(report.splits_lines(splits, planner.processes, capacity)))


def _on_gpu(correction: Correction | None) -> Correction:
    """Returns the correction with the memory of a GPU's driver."""
    from toolkit.lab.plan.measure import Correction

    correction = correction or Correction()
    return replace(correction, constant=correction.constant + OF_THE_DRIVER)


def _loading(arguments: argparse.Namespace, task_type: type[Task]) -> Load:
    """Returns the function that loads the configuration with further overrides."""

    def load(more: Sequence[str]) -> Config:
        return load_settings(task_type, arguments.config, [*arguments.overrides, *more]).config

    return load


SIZES = "the sizes in parallel"
"""What `validate` cannot check without processes, and this command checks with `--processes`."""


def add_preflight(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML and the number of processes."""
    options.add_recipe(parser)
    options.add(parser, "--processes", default=1, default_text="1; those on this machine")


def run_preflight(arguments: argparse.Namespace) -> None:
    """Checks everything that a run needs of this machine, and prints what is there.

    Raises:
        ConfigError: if the settings cannot be read.
        InputError: with all problems.
    """
    options.find(arguments)
    from toolkit.base.console import quiet_libraries
    from toolkit.recipe import load_task_type, validate

    task_type = load_task_type(arguments.recipe)
    quiet_libraries()
    cfg = load_settings(task_type, arguments.config, arguments.overrides).config
    from toolkit.lab.preflight import connect

    connect(cfg)
    findings = validate(task_type, arguments.config, arguments.overrides)
    table = list(_ask(cfg, task_type(cfg), findings, arguments.processes))
    problems = [*findings.problems, *(problem for found in table for problem in found.problems)]
    unchecked = [f"  not checked: {each}" for each in findings.unchecked if not each.startswith(SIZES)]
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise InputError("\n".join([f"{count} on this machine:", *(f"  - {each}" for each in problems), *unchecked]))
    _show(table)
    print("\n".join([f"{arguments.config}: this machine can start the run", *unchecked]))


def _ask(cfg: Config, task: Task, findings: Findings, processes: int) -> Iterator[Found]:
    """Yields what each check of the machine finds."""
    from toolkit.base.errors import problems_of
    from toolkit.checks.model import process_problems
    from toolkit.checks.run import size_problems
    from toolkit.lab import preflight
    from toolkit.lab.preflight import Found, Needs, needs_of

    world = processes * int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    yield from preflight.inputs(cfg)
    needs, reason = Needs(processes), "its settings or inputs are wrong"
    if not findings.problems:
        sizes = (*size_problems(cfg, world), *process_problems(cfg, world))
        yield Found("processes", f"{processes} here" + (f", {world} in all" if world > processes else ""), sizes)
        if not sizes:
            found: list[Needs] = []
            reasons = problems_of(lambda: found.append(needs_of(cfg, task, processes, world)))
            needs, reason = (found or [needs])[0], " ".join(reasons)
    if needs.memory is None:
        yield Found("prediction", f"none: {reason or 'DeepSpeed keeps more than is known'}")
    yield from preflight.folders(cfg, needs)
    yield from preflight.stage(cfg, task)
    yield from preflight.devices(needs)
    yield preflight.port()
    yield from preflight.trackers(cfg)


def _show(table: list[Found]) -> None:
    from rich.table import Table
    from rich.text import Text

    from toolkit.base.console import rich_console

    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column()
    shown.add_column(overflow="fold")
    for found in table:
        if found.shown:
            shown.add_row(Text(found.what), Text(found.shown))
    rich_console().print(shown)


SKIPPED, LEAST_SKIPPED, STEPS = 5, 2, 5
"""What split models send is counted in their first two steps, which slows these down."""
COMPRESSION = 5


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, and which steps to measure."""
    options.add_recipe(parser)
    options.add(
        parser, "--skip", default_text=f"{SKIPPED}, at least {LEAST_SKIPPED}", default=SKIPPED,
        type=at_least(LEAST_SKIPPED),
    )  # fmt: skip
    options.add(parser, "--steps", default_text=f"{STEPS} to time, and as many to trace", default=STEPS)
    options.add_launch(parser)
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-profile")


def run_profile(arguments: argparse.Namespace) -> None:
    """Measures the steps, prints where their time goes and what to change, and writes it.

    Raises:
        InputError: if arguments are invalid.
        ToolkitError: if the settings are invalid.
        RunError: if training fails.
    """
    task_type, loaded = options.load(arguments)
    from toolkit.base.console import quiet_libraries, say
    from toolkit.base.files import write_bytes
    from toolkit.checks.run import refuse_wrong_launch
    from toolkit.config.keys import written
    from toolkit.lab.jobs.jobs import Launch
    from toolkit.lab.jobs.training import FEW_STEPS, unfrozen_at_once
    from toolkit.lab.profile import report
    from toolkit.lab.profile.report import advice_of, found_of, is_setting

    launch = Launch.of(arguments.launch, arguments.processes)
    launch.check(1)
    settings = FEW_STEPS | {"train.max_steps": arguments.skip + 2 * arguments.steps + 1}
    overrides = [*arguments.overrides, *written(settings | unfrozen_at_once(loaded.config))]
    cfg = launch.load(task_type, arguments.config, overrides)
    refuse_wrong_launch(cfg, task_type, launch.processes)
    output = output_folder(arguments.output_dir or f"{loaded.config.output_dir.rstrip('/')}-profile")
    quiet_libraries()
    with TemporaryDirectory(prefix="profile-") as name:
        measured = _profile_measured(arguments, [*overrides, f"output_dir={name}/run"], launch, Path(name))
        trace = (Path(name) / "trace.json").read_bytes()
    facts = {
        "steps": arguments.steps, "skipped": arguments.skip,
        "config": arguments.config, "command": shlex.join(arguments.command),
    }  # fmt: skip
    found = found_of(measured, facts)

    def allowed(choice: Sequence[str]) -> bool:
        if not is_setting(choice):
            return True
        try:
            launch.load(task_type, arguments.config, [*arguments.overrides, *choice])
        except ConfigError:
            return False
        return True

    found["advice"] = advice_of(found, cfg, allowed)
    report.write(found, output)
    write_bytes(output / report.TRACE, gzip.compress(trace, COMPRESSION, mtime=0))
    report.show(found)
    say(f"\nwritten to {output}/profile.html, .md, .json and {report.TRACE}")


def _profile_measured(
    arguments: argparse.Namespace, overrides: list[str], launch: Launch, folder: Path
) -> dict[str, Any]:
    from toolkit.lab.jobs.jobs import Trial, run_trials

    job = {
        "recipe": str(Path(arguments.recipe).absolute()),
        "config": str(Path(arguments.config).absolute()),
        "overrides": overrides,
        "skipped": arguments.skip,
        "steps": arguments.steps,
        "trace": str(folder / "trace.json"),
    }
    trial = Trial("profile", job, folder / "outcome.json")
    (outcome,) = run_trials([trial], folder / "profile.log", launch.processes, launch.file, launch.environ)
    if outcome.error is not None:
        raise RunError(outcome.error)
    measured: dict[str, Any] = outcome.result
    return measured


ROUNDS, SCALE_STEPS, LEAST_SCALE_STEPS = 3, 20, 3
SCALE_PROCESSES = (1, 2)


def processes(text: str) -> tuple[int, ...]:
    """Argparse `type` for different numbers of processes, which it puts in order."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words) or len({*map(int, words)}) < len(words):
        raise argparse.ArgumentTypeError(f"received {text}, must be different numbers from 1 on, for instance 1,2,4")
    if len(words) < 2:
        raise argparse.ArgumentTypeError(f"received {text}, must be two numbers or more, for instance 1,2,4")
    return tuple(sorted(map(int, words)))


def add_scale(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, the processes, and how often they run."""
    options.add_recipe(parser)
    options.add(parser, "--launch")
    options.add(
        parser, "--processes", default_text="1,2; give two numbers or more", default=SCALE_PROCESSES, type=processes
    )
    text = "strong, the same rows in a step; or weak, the same rows for each process"
    options.add(parser, "--mode", default_text=text, default="strong", type=options.one_of("strong", "weak"))
    parser.add_argument(
        "--rounds", type=at_least(1), default=ROUNDS, metavar="N", help=f"runs of each, in turn (default: {ROUNDS})"
    )
    options.add(parser, "--steps", default_text=str(SCALE_STEPS), default=SCALE_STEPS, type=at_least(LEAST_SCALE_STEPS))
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-scale")


def run_scale(arguments: argparse.Namespace) -> None:
    """Runs what is left, prints what was found and writes it.

    Raises:
        ConfigError: if a number of processes cannot train the configuration; lists all problems.
        InputError: if arguments are invalid.
        RunError: if a run fails; a rerun of the command goes on with it.
    """
    scale = _scale(arguments)
    from toolkit.base.console import say
    from toolkit.checkpoint.output_folder import OutputLock
    from toolkit.lab.scale import build, measure, show, write

    scale.folder.mkdir(parents=True, exist_ok=True)
    rows = next(iter(scale.configs.values())).train.per_device_train_batch_size
    try:
        with OutputLock(scale.folder):
            measured = measure(scale, rows)
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C; rerun the same command to continue with the remaining runs", file=sys.stderr)
        sys.exit(EXIT_INTERRUPT)
    facts = {"config": arguments.config, "steps": arguments.steps, "command": shlex.join(arguments.command)}
    found = build(scale, measured, facts)
    write(found, scale.folder)
    say("")
    show(found)
    say(f"\nwritten to {scale.folder}/scale.html, .md, .json and .svg")


def _scale(arguments: argparse.Namespace) -> Scale:
    """Checks everything, and returns what to measure."""
    task_type, loaded = options.load(arguments)
    from toolkit.base.console import quiet_libraries
    from toolkit.data.row_cache import code_fingerprint
    from toolkit.lab.jobs.jobs import Launch
    from toolkit.lab.scale import Scale, threads_of

    quiet_libraries()
    launch = Launch.of(arguments.launch, arguments.processes[-1])
    launch.check(1)
    overrides, configs = _checked(arguments, task_type, launch, loaded.config)
    return Scale(
        recipe=Path(arguments.recipe),
        config=Path(arguments.config),
        launch=launch,
        mode=arguments.mode,
        overrides=overrides,
        configs=configs,
        rounds=arguments.rounds,
        threads=None if _on_gpus(launch) else threads_of(arguments.processes[-1]),
        code=code_fingerprint(task_type(loaded.config)),
        folder=expanded(arguments.output_dir or f"{loaded.config.output_dir.rstrip('/')}-scale"),
    )


def _on_gpus(launch: Launch) -> bool:
    import torch

    return torch.cuda.is_available() and launch.environ.get("ACCELERATE_USE_CPU", "").lower() not in ("1", "true")


def _checked(
    arguments: argparse.Namespace, task_type: type[Task], launch: Launch, configured: Config
) -> tuple[dict[int, list[str]], dict[int, Config]]:
    """Returns overrides and configuration of each number of processes.

    Raises:
        ConfigError: if any of them cannot be trained; lists all problems.
    """
    from toolkit.checks.run import refuse_wrong_launch
    from toolkit.config.keys import written
    from toolkit.lab.jobs.jobs import step_rows
    from toolkit.lab.jobs.strategies import Technique, window_settings
    from toolkit.lab.jobs.training import FEW_STEPS, unfrozen_at_once

    settings = FEW_STEPS | unfrozen_at_once(configured) | {"train.max_steps": arguments.steps}
    plain = [*arguments.overrides, *written(settings)]
    cfg = launch.load(task_type, arguments.config, plain)
    split = {f"parallel.{name}": str(getattr(cfg.parallel, name)) for name in ("tensor", "pipeline")}
    least = int(split["parallel.tensor"]) * int(split["parallel.pipeline"])
    rows = step_rows(cfg, least)  # those of a single group of processes
    overrides, configs, problems = dict[int, list[str]](), dict[int, Config](), list[str]()
    for number in arguments.processes:
        try:
            window = {}
            if arguments.mode == "strong" and number % least == 0:
                window = window_settings(cfg, Technique("", number, split, "", ""), rows)
            overrides[number] = [*plain, *(f"{key}={value}" for key, value in window.items())]
            configs[number] = launch.load(task_type, arguments.config, overrides[number])
            refuse_wrong_launch(configs[number], task_type, number)
        except ConfigError as error:
            problems += [f"{number} processes: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return overrides, configs


COLLECTIVES_PROCESSES = 2
TIMEOUT_SECONDS = 600.0
"""Without it, processes that cannot reach each other would wait for half an hour."""


def add_collectives(parser: argparse.ArgumentParser) -> None:
    """Adds the processes and the folder."""
    options.add(parser, "--launch")
    options.add(
        parser, "--processes", default_text=f"as in the --launch file, or {COLLECTIVES_PROCESSES}", type=at_least(2)
    )
    options.add(parser, "--output-dir", default_text="outputs/collectives")


def run_collectives(arguments: argparse.Namespace) -> None:
    """Times the operations, prints what they cost and writes it.

    Raises:
        InputError: if arguments are invalid.
        RunError: if the processes cannot reach each other.
    """
    from toolkit.base.console import say
    from toolkit.document.render import print_table
    from toolkit.lab import collectives
    from toolkit.lab.collectives import SIZES
    from toolkit.lab.jobs.jobs import Launch

    launch = Launch.of(
        arguments.launch, arguments.processes or (COLLECTIVES_PROCESSES if arguments.launch is None else None)
    )
    launch.check(2)
    output = output_folder(arguments.output_dir or "outputs/collectives")
    measured = _collectives_measured(launch, {"sizes": SIZES})
    facts = {"processes": launch.processes, "command": shlex.join(arguments.command)}
    found = collectives.found_of(measured, SIZES, facts)
    collectives.write(found, output)
    for table in (*collectives.tables(found), collectives.summary(found)):
        print_table(table)
        say("")
    say(f"written to {output}/collectives.html, .md, .json and .svg")


def _collectives_measured(launch: Any, job: dict[str, Any]) -> dict[str, Any]:
    from toolkit.lab.jobs.jobs import Trial, run_trials

    with TemporaryDirectory(prefix="collectives-") as name:
        folder = Path(name)
        trial = Trial("collectives", job, folder / "outcome.json")
        (outcome,) = run_trials(
            [trial], folder / "collectives.log", launch.processes, launch.file, launch.environ, TIMEOUT_SECONDS
        )
    if outcome.error is not None:
        raise RunError(f"these processes cannot exchange data: {outcome.error}")
    measured: dict[str, Any] = outcome.result
    return measured


COMMANDS = {
    "preflight": Command(add_preflight, run_preflight),
    "profile": Command(add_profile, run_profile),
    "plan": Command(add_plan, run_plan),
    "scale": Command(add_scale, run_scale),
    "collectives": Command(add_collectives, run_collectives),
}
