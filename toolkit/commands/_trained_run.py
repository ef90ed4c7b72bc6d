"""Arguments and loading shared by the commands that take a finished run."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from toolkit.commands import _options

if TYPE_CHECKING:
    from toolkit.deploy.trained import TrainedRun


def add_arguments(parser: argparse.ArgumentParser, bad_rows: str = "as the run") -> None:
    """Adds the run and the options for reading rows.

    Args:
        parser: the command's parser.
        bad_rows: what happens to unusable rows by default, for the help text.
    """
    _options.add(parser, "run")
    _options.add(parser, "overrides", default_text="as the run; how rows are read: data.columns.text=body and similar")
    _options.add(parser, "--recipe", default_text="that of the run")
    _options.add(parser, "--bad-rows", default_text=bad_rows)
    _options.add(parser, "--trust-remote-code")
    _options.add(parser, "--per-device-eval-batch-size", default_text="as the run")


def open_trained(arguments: argparse.Namespace) -> TrainedRun:
    """Opens the finished run.

    Raises:
        ToolkitError: if it cannot be opened.
    """
    from toolkit.base.console import quiet_libraries
    from toolkit.base.processes import die_with_launcher
    from toolkit.deploy.trained import load

    die_with_launcher()
    quiet_libraries()
    run = load(
        arguments.run,
        arguments.recipe,
        arguments.per_device_eval_batch_size,
        arguments.trust_remote_code,
        arguments.overrides,
    )
    policy = arguments.bad_rows or run.cfg.data.bad_rows
    return replace(run, cfg=replace(run.cfg, data=replace(run.cfg.data, bad_rows=policy)))
