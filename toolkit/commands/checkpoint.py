"""Commands about files of a run: checkpoint, verify."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.console import quiet_libraries, say
from toolkit.base.errors import InputError, ToolkitError
from toolkit.base.files import expanded
from toolkit.base.outputs import output_folder
from toolkit.commands import options

if TYPE_CHECKING:
    from toolkit.api.run import Checkpoint


OPERATIONS = ("show", "verify", "convert")
ONLY_FOR = {"tensors": "show", "output": "convert", "format": "convert", "recipe": "convert",
            "trust_remote_code": "convert"}  # fmt: skip
"""The operation that has each option."""


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Adds the operation, the checkpoint, and the options of the operations."""
    about = "show what it holds, verify every byte, or convert it into a model"
    parser.add_argument("operation", choices=OPERATIONS, help=about)
    about = "a step-<N> folder; of a run, the newest valid one (verify: all)"
    parser.add_argument("checkpoint", metavar="RUN_OR_CHECKPOINT", help=about)
    parser.add_argument("--tensors", action="store_true", help="show: list every tensor")
    options.add_output(parser, folder=True)
    formats = "convert: a model; full and sharded write a checkpoint"
    options.add(parser, "--format", type=options.one_of("full", "sharded"), default_text=formats)
    options.add(parser, "--recipe", default_text="that of the run")
    options.add(parser, "--trust-remote-code")


def run_checkpoint(arguments: argparse.Namespace) -> None:
    """Shows, verifies or converts a checkpoint."""
    for name, operation in ONLY_FOR.items():
        if getattr(arguments, name) and operation != arguments.operation:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option}: only `toolkit checkpoint {operation}` has this option; remove it")
    from toolkit.deploy.verify import show_checkpoint, verify_checkpoints

    path = expanded(arguments.checkpoint)
    if arguments.operation == "show":
        with _reading(_newest(path)) as checkpoint:
            show_checkpoint(checkpoint, arguments.tensors)
    elif arguments.operation == "verify":
        verify_checkpoints(path)
    else:
        _convert(path, arguments)


def _newest(path: Path) -> Checkpoint:
    from toolkit.checkpoint.resume import newest

    checkpoint, messages = newest(path)
    for message in messages:
        say(message)
    return checkpoint


def _convert(path: Path, arguments: argparse.Namespace) -> None:
    from toolkit.deploy.convert import convert_format, convert_to_model

    if not arguments.output:
        raise InputError("--output: `toolkit checkpoint convert` needs a folder to write to")
    quiet_libraries()
    with _reading(_newest(path)) as checkpoint:
        output = output_folder(arguments.output)
        if arguments.format:
            folder = convert_format(checkpoint, output, arguments.format)
            say(f"wrote {folder}; resume with checkpoint.resume={folder}")
        else:
            convert_to_model(checkpoint, output, arguments.recipe, arguments.trust_remote_code)
            say(f"wrote the model of step {checkpoint.step} to {output}")


@contextmanager
def _reading(checkpoint: Checkpoint) -> Iterator[Checkpoint]:
    """Makes errors say that the checkpoint was removed meanwhile, as the run does with old ones, if that is so."""
    try:
        yield checkpoint
    except (ToolkitError, OSError) as error:
        if checkpoint.path.exists():
            raise
        raise InputError(f"{checkpoint.path} was removed while it was read, as its run does with old ones") from error


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Adds the run."""
    options.add(parser, "run")


def run_verify(arguments: argparse.Namespace) -> None:
    """Verifies results, checkpoints and the files that a resume reads."""
    from toolkit.deploy.verify import verify_run

    verify_run(expanded(arguments.run))
