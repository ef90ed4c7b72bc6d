"""What the commands about a finished run share: their arguments, and opening the run."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.deploy.trained import TrainedRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and how its rows are read."""
    parser.add_argument("run", metavar="RUN", help="output folder of a finished run")
    parser.add_argument("--recipe", metavar="FILE", help="the recipe, if it was moved since the run")
    parser.add_argument(
        "--bad-rows", choices=("error", "skip"), help="what to do with unusable rows (default: as the run)"
    )
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code that lies beside the model")
    parser.add_argument("--batch-size", type=int, metavar="N", help="rows per process and batch (default: as the run)")


def open_trained(arguments: argparse.Namespace) -> TrainedRun:
    """Opens the finished run that `add_arguments` was given."""
    from toolkit.base.console import quiet_libraries
    from toolkit.base.errors import InputError
    from toolkit.base.processes import die_with_launcher
    from toolkit.deploy.trained import load

    if arguments.batch_size is not None and arguments.batch_size < 1:
        raise InputError(f"--batch-size: received {arguments.batch_size}, must be at least 1")
    die_with_launcher()
    quiet_libraries()
    run = load(arguments.run, arguments.recipe, arguments.batch_size, arguments.trust_remote_code)
    policy = arguments.bad_rows or run.cfg.data.bad_rows
    return replace(run, cfg=replace(run.cfg, data=replace(run.cfg.data, bad_rows=policy)))


def output_file(path: str | Path) -> Path:
    """Returns the file to write, once its folder is known to be there and writable.

    Raises:
        InputError: if it is not.
    """
    from toolkit.base.errors import InputError

    file = Path(path).expanduser()
    if not file.parent.is_dir():
        raise InputError(f"--output: there is no folder {file.parent.absolute()}; make it first")
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise InputError(f"--output: cannot write {file.absolute()}; give another place")
    return file
