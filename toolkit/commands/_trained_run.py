"""Arguments and loading shared by the commands that take a finished run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.commands import options

if TYPE_CHECKING:
    import socket

    from toolkit.deploy.trained import TrainedRun


READ_FROM_REQUESTS = ("columns", "unescape_html")
"""Settings of the section `data` that concern rows which come from no file."""
KERNELS = "0"
"""Prepared kernels that oneDNN keeps on a CPU. It would keep 1024, one for each operation and shape, and batches of
requests have all shapes, so the memory of a server would grow for a long time."""


def add_run(parser: argparse.ArgumentParser, bad_rows: str | None = "as the run") -> None:
    """Adds the run and the options for reading rows.

    Args:
        parser: the command's parser.
        bad_rows: what happens to unusable rows by default, for the help text; None for a command that refuses them.
    """
    options.add(parser, "run")
    options.add(parser, "overrides", default_text="as the run; how rows are read: data.columns.text=body and similar")
    options.add(parser, "--recipe", default_text="that of the run")
    if bad_rows is not None:
        options.add(parser, "--bad-rows", default_text=bad_rows)
    options.add(parser, "--trust-remote-code")
    options.add(parser, "--per-device-eval-batch-size", default_text="as the run")


def open_trained(arguments: argparse.Namespace, skips_rows: bool = False) -> TrainedRun:
    """Opens the finished run.

    Args:
        arguments: those of the command.
        skips_rows: whether the command may skip rows that cannot be used, as `data.bad_rows` or `--bad-rows` says.

    Raises:
        ToolkitError: if it cannot be opened.
    """
    from toolkit.base.console import quiet_libraries
    from toolkit.base.processes import die_with_launcher
    from toolkit.deploy.trained import POLICY, READING, open_finished

    die_with_launcher()
    quiet_libraries()
    return open_finished(
        arguments.run,
        arguments.recipe,
        arguments.per_device_eval_batch_size,
        arguments.trust_remote_code,
        _with_policy(arguments.overrides, arguments.bad_rows) if skips_rows else arguments.overrides,
        (*READING, *POLICY) if skips_rows else READING,
    )


def _with_policy(overrides: Sequence[str], bad_rows: str | None) -> list[str]:
    """Returns the overrides with `--bad-rows`, which are then checked together.

    Raises:
        InputError: if `data.bad_rows` is among them as well.
    """
    from toolkit.base.errors import InputError
    from toolkit.config.sections import DataConfig

    if bad_rows is None:
        return [*overrides]
    if any(override.partition("=")[0] == "data.bad_rows" for override in overrides):
        raise InputError("--bad-rows, data.bad_rows: both were given; remove one of them")
    # What the run allowed to skip would be refused with `error`, but it is not what the user asks for here.
    unset = [f"data.max_bad_rows={DataConfig().max_bad_rows}"] if bad_rows == "error" else []
    return [*unset, *overrides, f"data.bad_rows={bad_rows}"]


def open_served(arguments: argparse.Namespace, libraries: Sequence[str]) -> tuple[TrainedRun, str, socket.socket]:
    """Opens the finished run of a command that serves it.

    Args:
        arguments: those of the command.
        libraries: modules of the extra that has the command's name.

    Returns:
        The run, its name, and a socket that has the address; what is wrong with this is known before the run is read.

    Raises:
        ToolkitError: if an argument is wrong, a library is missing, or the run cannot be opened.
    """
    from toolkit.base.files import expanded
    from toolkit.deploy.serving.server import bound, require_libraries
    from toolkit.system.launcher import refuse_launcher

    command = arguments.command[1]
    require_libraries(command, libraries)
    _refuse_overrides_of_files(arguments.overrides)
    refuse_launcher(command)
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)
    opened = bound(arguments.host, arguments.port)
    try:
        return open_trained(arguments), expanded(arguments.run).absolute().name, opened
    except BaseException:
        opened.close()
        raise


def _refuse_overrides_of_files(overrides: Sequence[str]) -> None:
    """Refuses settings that concern files, for commands that read none.

    Raises:
        ConfigError: naming each of them.
    """
    from toolkit.base.errors import ConfigError

    keys = [override.partition("=")[0] for override in overrides]
    own = [["data", name] for name in READ_FROM_REQUESTS]
    if others := [key for key in keys if key.split(".")[:2] not in own]:
        known = " and ".join(f"data.{name}" for name in READ_FROM_REQUESTS)
        raise ConfigError([f"{key}: rows come from requests; only {known} concern them" for key in others])
