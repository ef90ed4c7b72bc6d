"""Estimate a run's memory and compare parallel strategies and settings that make it fit.

`toolkit plan RECIPE --config FILE [--gpu-memory 16GiB] [--processes 8] [section.key=value ...]`
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import InputError
from toolkit.commands import _recipe_config, options
from toolkit.commands.options import at_least
from toolkit.config.sections import Config
from toolkit.recipe import load_settings

if TYPE_CHECKING:
    from toolkit.api.task import Task
    from toolkit.footprint.simulate import Footprint, Subject
    from toolkit.lab.plan.estimates import Load, Planner, Scaling
    from toolkit.lab.plan.measure import Correction, Measured

OF_THE_DRIVER = 512 * 2**20
"""Bytes that a GPU's driver reserves per process for context, kernel code and library workspaces."""


SAME_ROWS = (
    "Each step has the same rows: with fewer copies of the model, more micro-batches.\n"
    "Speed is relative to one device and ignores communication time.\n"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the options of the plan."""
    _recipe_config.add_recipe(parser)
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


def work(arguments: argparse.Namespace) -> None:
    """Prints the plan and writes it as JSON.

    Raises:
        InputError: if arguments are invalid, or the model cannot be simulated.
        ToolkitError: if settings or data cannot be used.
        RunError: if the calibration fails.
    """
    from toolkit.lab.plan.report import parse_bytes

    if arguments.bandwidth and not arguments.calibrate:
        raise InputError("--bandwidth: has no effect without --calibrate, which measures the compute time")
    output = options.output_file(arguments.output) if arguments.output else None
    capacity = parse_bytes(arguments.gpu_memory, "--gpu-memory") if arguments.gpu_memory else None
    bandwidth = parse_bytes(arguments.bandwidth, "--bandwidth") if arguments.bandwidth else None
    task_type, loaded = _recipe_config.load(arguments)
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
