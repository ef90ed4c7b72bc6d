"""Commands about machines and memory: plan, preflight, profile, scale, collectives.

`toolkit plan RECIPE --config FILE [--gpu-memory 16GiB] [--processes 8] [section.key=value ...]`
"""

from __future__ import annotations

import argparse
import gc
import shlex

from toolkit.base.errors import InputError
from toolkit.base.files import expanded, write_json
from toolkit.base.outputs import output_file
from toolkit.commands import options
from toolkit.commands.options import at_least


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the options of the plan."""
    options.add_recipe(parser)
    parser.add_argument("--gpu-memory", metavar="SIZE", help="plan for a GPU with this memory, for example 16GiB")
    options.add(parser, "--processes", default_text="1; with several, parallel strategies are compared", default=1)
    options.add_count(parser, "--length", "length of inputs (default: the largest that the options allow)")
    parser.add_argument(
        "--calibrate", action="store_true", help="train a few steps on this machine to correct the plan"
    )
    about = "all-reduce bandwidth, for example 25GB/s (default: measured on this machine)"
    parser.add_argument("--bandwidth", metavar="RATE", help=about)
    options.add_output(parser, "none; the plan as JSON")


def run_plan(arguments: argparse.Namespace) -> None:
    """Prints the plan and writes it as JSON."""
    if arguments.bandwidth and not arguments.calibrate:
        raise InputError("--bandwidth: has no effect without --calibrate, which measures the compute time")
    output = output_file(arguments.output, arguments.overwrite) if arguments.output else None
    gc.set_threshold(100_000)  # libraries create half a million objects that stay; few of them are garbage
    from toolkit.lab.plan.report import Plan, parse_bytes

    capacity, bandwidth = (
        parse_bytes(text, option) if text else None
        for text, option in ((arguments.gpu_memory, "--gpu-memory"), (arguments.bandwidth, "--bandwidth"))
    )
    request = options.request(arguments, "plan", processes=1)
    from toolkit.base.console import say
    from toolkit.document.render import print_blocks

    plan = Plan(request, arguments.processes, arguments.length, capacity, bandwidth)
    print_blocks(plan.parts(arguments.calibrate))
    if output is not None:
        write_json(output, plan.found)
        say(f"\nwritten to {output}")


def add_preflight(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML and the number of processes."""
    options.add_recipe(parser)
    options.add(parser, "--processes", default=1, default_text="1; those on this machine")


def run_preflight(arguments: argparse.Namespace) -> None:
    """Checks everything that a run needs of this machine, and prints what is there."""
    task_type, loaded = options.load(arguments)
    from toolkit.base.console import print_table, quiet_libraries, say

    quiet_libraries()
    from toolkit.lab.preflight import check_machine

    found, unchecked = check_machine(
        task_type, loaded.config, arguments.config, arguments.overrides, arguments.processes
    )
    print_table("This machine", found)
    say("\n".join([f"{arguments.config}: this machine can start the run", *unchecked]))


SKIPPED, LEAST_SKIPPED, STEPS = 5, 2, 5
"""What split models send is counted in their first two steps, which slows these down."""


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, and which steps to measure."""
    options.add_recipe(parser)
    options.add_least(parser, "--skip", f"{SKIPPED}, at least {LEAST_SKIPPED}", SKIPPED, LEAST_SKIPPED)
    options.add(parser, "--steps", default_text=f"{STEPS} to time, and as many to trace", default=STEPS)
    options.add_launch(parser)
    options.add_output(parser, "OUTPUT_DIR-profile", folder=True)


def run_profile(arguments: argparse.Namespace) -> None:
    """Measures the steps, prints where their time goes and what to change, and writes it."""
    request = options.request(arguments, "profile")
    from toolkit.lab.profile.report import profile

    profile(request, arguments.skip, arguments.steps).publish(request.output)


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
    text = "1,2; give two numbers or more"
    options.add(parser, "--processes", default_text=text, default=SCALE_PROCESSES, type=processes)
    text = "strong, the same rows in a step; or weak, the same rows for each process"
    options.add(parser, "--mode", default_text=text, default="strong", type=options.one_of("strong", "weak"))
    options.add_count(parser, "--rounds", "runs of each, in turn", ROUNDS)
    options.add_least(parser, "--steps", str(SCALE_STEPS), SCALE_STEPS, LEAST_SCALE_STEPS)
    options.add_output(parser, "OUTPUT_DIR-scale", folder=True)


def run_scale(arguments: argparse.Namespace) -> None:
    """Runs what is left, prints what was found and writes it."""
    request = options.request(arguments, "scale", processes=arguments.processes[-1])
    from toolkit.lab.scale import scale

    with options.interruptible("runs"):
        report = scale(request, arguments.processes, arguments.mode, arguments.rounds, arguments.steps)
    report.publish(request.output)


COLLECTIVES_PROCESSES = 2


def add_collectives(parser: argparse.ArgumentParser) -> None:
    """Adds the processes and the folder."""
    options.add(parser, "--launch")
    text = f"as in the --launch file, or {COLLECTIVES_PROCESSES}"
    options.add(parser, "--processes", default_text=text, type=at_least(2))
    options.add_output(parser, "outputs/collectives", folder=True)


def run_collectives(arguments: argparse.Namespace) -> None:
    """Times the operations, prints what they cost and writes it."""
    from toolkit.lab.collectives import time_operations
    from toolkit.lab.jobs.jobs import Launch

    usual = COLLECTIVES_PROCESSES if arguments.launch is None else None
    launch = Launch.of(arguments.launch, arguments.processes or usual)
    output = expanded(arguments.output or "outputs/collectives")
    time_operations(launch, output, shlex.join(arguments.command)).publish(output)
