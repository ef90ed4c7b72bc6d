"""Say what a run will take, before it runs: memory by parts, strategies, and what to switch to make it fit.

`toolkit plan recipes/<task>.py --config FILE [--gpu-memory 16GiB] [--processes 8] [section.key=value ...]`
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import InputError
from toolkit.commands import _options, _recipe_config
from toolkit.commands._options import at_least
from toolkit.config.sections import Config
from toolkit.recipe import load_settings

if TYPE_CHECKING:
    from toolkit.footprint.footprint import Footprint
    from toolkit.footprint.simulate import Subject
    from toolkit.lab.plan.calibrate import Correction, Measured
    from toolkit.lab.plan.strategies import Scaling

OF_THE_DRIVER = 512 * 2**20
"""What a GPU's driver keeps of its memory for each process: context, kernels' code, libraries' workspaces."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, and what is to be planned of it."""
    _recipe_config.add_arguments(parser)
    parser.add_argument("--gpu-memory", metavar="SIZE", help="plan for a GPU of this size, for instance 16GiB")
    _options.add(parser, "--processes", default_text="1; of several, parallel strategies are compared", default=1)
    parser.add_argument(
        "--length", type=at_least(1), metavar="N", help="length of inputs (default: the most that the options allow)"
    )
    parser.add_argument("--calibrate", action="store_true", help="train a few steps here, and correct the plan")
    parser.add_argument(
        "--bandwidth", metavar="RATE", help="of an all-reduce, for instance 25GB/s (default: measured here)"
    )
    _options.add(parser, "--output", default_text="none; the plan as JSON")


def work(arguments: argparse.Namespace) -> None:
    """Plans, prints tables, and writes the JSON."""
    from toolkit.lab.plan.units import parse_bytes

    if arguments.bandwidth and not arguments.calibrate:
        raise InputError("--bandwidth: has no effect without --calibrate, which measures the computing beside it")
    output = _options.output_file(arguments.output) if arguments.output else None
    capacity = parse_bytes(arguments.gpu_memory, "--gpu-memory") if arguments.gpu_memory else None
    bandwidth = parse_bytes(arguments.bandwidth, "--bandwidth") if arguments.bandwidth else None
    task_type, loaded = _recipe_config.load(arguments)
    from toolkit.base.console import quiet_libraries, say
    from toolkit.base.files import write_json
    from toolkit.footprint.simulate import simulate
    from toolkit.lab.plan import render
    from toolkit.lab.plan.strategies import strategies
    from toolkit.lab.plan.subject import subject_of
    from toolkit.models.adapter_checks import check_adapters
    from toolkit.optim.optimizers import check_optim_args

    cfg = loaded.config
    check_optim_args(cfg.train)
    check_adapters(cfg.model)
    quiet_libraries()
    subject = subject_of(cfg, task_type(cfg), arguments.length, gpu=capacity is not None)
    footprint = simulate(subject)
    table = strategies(footprint, cfg.train, arguments.processes)
    found: dict[str, Any] = {
        "rows": footprint.rows,
        "flops": footprint.flops,
        "footprint": asdict(footprint),
        "strategies": [asdict(each) for each in table],
    }
    say("\n".join(_heading(subject, footprint)))
    render.show(render.parts_table(footprint, cfg.train.optim))
    if arguments.processes > 1:
        render.show(*render.strategies_tables(table, arguments.processes))
        say("Strategies in brackets are for orientation: the toolkit does not run them today.\n"
            "Speed is against one device, as if sending took no time.\n")  # fmt: skip
    correction = None
    if arguments.calibrate:
        correction = _calibrate(arguments, cfg, footprint, bandwidth, found, on_gpu=capacity is not None)
    if capacity is not None:
        _fit(arguments, subject, capacity, correction, found)
    if output is not None:
        write_json(output, found)
        say(f"written to {output}")


def _heading(subject: Subject, footprint: Footprint) -> list[str]:
    from toolkit.lab.plan.subject import sizes
    from toolkit.lab.plan.units import show_flops

    train = subject.cfg.train
    where = "a GPU" if subject.fused_attention or subject.device.type == "cuda" else "the CPU"
    return [
        f"{subject.config.model_type}, {footprint.total:,} weights, {footprint.trained:,} of them trained, on {where}",
        f"micro-batches of {footprint.rows} rows ({sizes(subject.batch)}), {train.gradient_accumulation_steps or 1} in "
        f"a step, {train.mixed_precision or 'no'} mixed precision",
        f"{show_flops(footprint.flops)} for forward and backward pass of one"
        + (f", {footprint.recomputed / footprint.flops:.0%} of it done again" if footprint.recomputed else ""),
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
    """Measures here, says what that corrects, and how speed would grow with processes."""
    from toolkit.base.console import format_bytes, say
    from toolkit.lab.plan import render
    from toolkit.lab.plan.calibrate import calibrate, rows_that_fit, serial_seconds
    from toolkit.lab.plan.units import show_flops

    rows = rows_that_fit(footprint)
    correction, runs = calibrate(arguments.recipe, arguments.config, arguments.overrides, rows)
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
        say(f"Corrected: what comes and goes within a step times {correction.factor:.2f}, plus "
            f"{format_bytes(correction.constant)} for libraries.\nPeak of a step here: "
            f"{format_bytes(correction.peak(footprint))}\n")  # fmt: skip
    else:
        say("A GPU has another allocator, so the plan for it stays as it is.\n")
    if large.seconds:
        serial = serial_seconds(runs)
        larger = footprint.flops * (cfg.train.gradient_accumulation_steps or 1) / large.footprint.flops
        seconds = serial + max(0.0, large.seconds - serial) * larger
        say(f"{show_flops(large.flops_per_second or 0.0)}/s; a step as configured would take {seconds:.3g} s here.\n")
        lines = _scaling(arguments, runs, seconds, footprint, bandwidth, found)
        if len(lines) > 1:
            render.show(render.scaling_table(lines))
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
    from toolkit.lab.plan.bandwidth import measured_bandwidth
    from toolkit.lab.plan.calibrate import serial_seconds
    from toolkit.lab.plan.strategies import scaling

    if bandwidth is None and runs[-1].device != "cpu":
        say("How fast GPUs exchange is not measured here: say --bandwidth for the speed of several.\n")
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
    """Looks for the smallest set of switches that fits, and says it."""
    from toolkit.base.console import say
    from toolkit.lab.plan import render
    from toolkit.lab.plan.calibrate import Correction
    from toolkit.lab.plan.fit import smallest_fit

    def load(more: Sequence[str]) -> Config:
        settings = [*arguments.overrides, *more]
        return load_settings(type(subject.task), arguments.config, settings).config

    corrected = replace(correction or Correction(), constant=(correction or Correction()).constant + OF_THE_DRIVER)
    fit, fits = smallest_fit(subject, load, capacity, corrected.peak)
    needed = corrected.peak(fit.footprint)
    found["fit"] = {
        "gpu_memory": capacity, "fits": fits, "overrides": list(fit.overrides), "needed": needed,
        "reserved": corrected.constant, "footprint": asdict(fit.footprint),
    }  # fmt: skip
    original = found["footprint"]
    say("\n".join(render.fit_lines(fit, fits, needed, capacity, type(fit.footprint)(**original))))
    say(f"({render.format_bytes(corrected.constant)} of that is reserved for the driver and libraries.)\n")
