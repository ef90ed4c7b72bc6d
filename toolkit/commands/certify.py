"""Verify the toolkit's guarantees on your model and data.

`toolkit certify RECIPE --config FILE [--only NAME ...] [section.key=value ...]`
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from toolkit.base.files import expanded
from toolkit.commands import _recipe_config, options
from toolkit.commands.options import at_least
from toolkit.report.runs import folder_of

NAMES = ("loss-scale", "engines", "resume", "ranks", "strategy")
ROWS, LEAST_ROWS = 37, 9
"""Default number of rows: five steps of 8 rows per epoch, the last one incomplete."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, the certificates and their options."""
    _recipe_config.add_recipe(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="all certificates (the default)")
    which.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=f"one or more of {', '.join(NAMES)}")
    parser.add_argument(
        "--rows",
        type=at_least(LEAST_ROWS),
        default=ROWS,
        metavar="N",
        help=f"training rows to use, at least {LEAST_ROWS}, more than one window of 8 (default: {ROWS})",
    )
    parser.add_argument(
        "--kill-at", type=at_least(1), metavar="STEP", help="resume: kill at this step (default: a random one)"
    )
    parser.add_argument(
        "--strategy",
        nargs="+",
        metavar="SPEC",
        help="strategy: settings of parallel to compare with one process, for instance fsdp=2 or replicas=2,tensor=2 "
        "(default: those that the model allows on two processes)",
    )
    options.add(parser, "--output-dir", default_text="certificates/ and a hash of the configuration")
    parser.add_argument("--keep", action="store_true", help="keep the runs, in DIR/runs")


def work(arguments: argparse.Namespace) -> None:
    """Runs the trainings of the certificates and writes the verdicts.

    Raises:
        ToolkitError: if the settings are invalid or a training cannot run.
        SystemExit: with exit code 1 if a guarantee does not hold.
    """
    _, loaded = _recipe_config.load(arguments)
    from toolkit.base.console import quiet_libraries, say
    from toolkit.lab.certify import certificate as text
    from toolkit.lab.certify import load_promises as promises
    from toolkit.lab.certify.certificate import FAILED
    from toolkit.lab.certify.strategy import strategies_of
    from toolkit.lab.certify.trainings import Experiment, refuse_wrong_trainings, run_trainings

    experiment = Experiment(
        recipe=str(Path(arguments.recipe).absolute()),
        config=str(Path(arguments.config).absolute()),
        overrides=arguments.overrides,
        cfg=loaded.config,
        rows=arguments.rows,
        kill_at=arguments.kill_at,
        kill_after=random.uniform(1.2, 1.9),  # in the second epoch, which has another row order
        strategies=arguments.strategy or strategies_of(loaded.config),
    )
    chosen = {name: promise for name, promise in promises().items() if name in (arguments.only or NAMES)}
    trainings = [training for promise in chosen.values() for training in promise.trainings(experiment)]
    with quiet_libraries():
        refuse_wrong_trainings(trainings, experiment)
    output = expanded(arguments.output_dir) if arguments.output_dir else folder_of(loaded.config)
    output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    runs = output / "runs" if arguments.keep else Path(tempfile.mkdtemp(prefix="certify-"))
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir()
    try:
        run_trainings(trainings, experiment, runs)
        found = [promise.judge(runs, experiment) for promise in chosen.values()]
    finally:
        if not arguments.keep:
            shutil.rmtree(runs, ignore_errors=True)
    for certificate in found:
        say("\n".join(text.lines(certificate)))
    facts = {"recipe": arguments.recipe, "config": arguments.config, "overrides": arguments.overrides,
             "rows": arguments.rows, "seconds": round(time.monotonic() - began, 1)}  # fmt: skip
    text.write(found, loaded.config, facts, output)
    say(f"\n{facts['seconds']:.0f} s; written to {output}/certificate.md and .json")
    if any(certificate.verdict == FAILED for certificate in found):
        sys.exit(1)
