"""Commands about files of a run: checkpoint, verify."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.files import expanded
from toolkit.base.outputs import output_folder
from toolkit.commands import options
from toolkit.commands.options import Command

if TYPE_CHECKING:
    from toolkit.api.run import Checkpoint


OPERATIONS = ("show", "verify", "convert")
ONLY_FOR = {"tensors": "show", "output_dir": "convert", "format": "convert", "recipe": "convert",
            "trust_remote_code": "convert"}  # fmt: skip
"""The operation that has each option."""


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Adds the operation, the checkpoint, and the options of the operations."""
    parser.add_argument(
        "operation", choices=OPERATIONS, help="show what it holds, verify every byte, or convert it into a model"
    )
    parser.add_argument(
        "checkpoint",
        metavar="RUN_OR_CHECKPOINT",
        help="a step-<N> folder; of a run, the newest valid one (verify: all)",
    )
    parser.add_argument("--tensors", action="store_true", help="show: list every tensor")
    options.add(parser, "--output-dir")
    formats = "convert: a model; full and sharded write a checkpoint"
    options.add(parser, "--format", type=options.one_of("full", "sharded"), default_text=formats)
    options.add(parser, "--recipe", default_text="that of the run")
    options.add(parser, "--trust-remote-code")


def run_checkpoint(arguments: argparse.Namespace) -> None:
    """Does what was asked.

    Raises:
        InputError: if an option belongs to another operation, or the checkpoint cannot be used.
        RunError: if a checkpoint is damaged, or the result cannot be written.
    """
    from toolkit.base.errors import InputError

    for name, operation in ONLY_FOR.items():
        if getattr(arguments, name) and operation != arguments.operation:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option}: only `toolkit checkpoint {operation}` has this option; remove it")
    path = expanded(arguments.checkpoint)
    {"show": _show, "verify": _verify, "convert": _convert}[arguments.operation](path, arguments)


def _newest(path: Path) -> Checkpoint:
    from toolkit.base.console import say
    from toolkit.checkpoint.resume import newest

    checkpoint, messages = newest(path)
    for message in messages:
        say(message)
    return checkpoint


def _show(path: Path, arguments: argparse.Namespace) -> None:
    from toolkit.base.console import format_bytes, print_lines, print_table
    from toolkit.checkpoint.manifest import files_of, read_manifest, tensor_names
    from toolkit.checkpoint.state import SavedState, described
    from toolkit.checkpoint.tensors import verified_tensors

    checkpoint = _newest(path)
    manifest = read_manifest(checkpoint.path)
    rows = {
        "step": checkpoint.step,
        "format": manifest.format,
        "saved by": described(SavedState.from_json(checkpoint.state).identity),
        "size": format_bytes(sum(entry.size for entry in manifest.files.values())),
    }
    tensors = {}
    for name in tensor_names(manifest.files):
        with verified_tensors(checkpoint, name) as saved:
            tensors[name] = saved.entries
        files = files_of(manifest.files, name)
        size = format_bytes(sum(manifest.files[file].size for file in files))
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        values = sum(entry.numel() for entry in saved.entries.values())
        rows[name] = f"{len(saved)} tensors, {values:,} values, {size} in {count}"
    print_table(str(checkpoint.path), rows)
    for name, entries in tensors.items() if arguments.tensors else ():
        types = {key: str(entry.dtype).removeprefix("torch.") for key, entry in entries.items()}
        print_lines(name, [f"{key}  {types[key]} {[*entries[key].shape]}" for key in sorted(entries)])


def _verify(path: Path, arguments: argparse.Namespace) -> None:
    from toolkit.base.console import say
    from toolkit.base.errors import CheckpointError, RunError
    from toolkit.base.run_folder import RunFolder
    from toolkit.checkpoint.manifest import verify
    from toolkit.checkpoint.store import steps

    run = RunFolder(path)
    folders = [folder for _, folder in steps(run.checkpoints if run.checkpoints.is_dir() else path)]
    if not path.is_dir():
        raise CheckpointError(f"{path.absolute()}: there is no such folder; give a run or one of its checkpoints")
    if not folders and (run.checkpoints.is_dir() or run.facts.exists()):
        raise CheckpointError(f"{path}: this run has no checkpoints; `toolkit verify {path}` checks its other files")
    damaged = []
    for folder in folders or [path]:
        problems = verify(folder)
        say(f"{folder}: {'; '.join(problems) or 'every byte is intact'}")
        damaged += [folder.name] if problems else []
    if damaged:
        raise RunError(f"damaged: {', '.join(damaged)}. checkpoint.resume=auto uses the newest intact checkpoint")


def _convert(path: Path, arguments: argparse.Namespace) -> None:
    from toolkit.base.console import quiet_libraries, say
    from toolkit.base.errors import InputError
    from toolkit.deploy.convert import convert_format, convert_to_model

    if not arguments.output_dir:
        raise InputError("--output-dir: `toolkit checkpoint convert` needs a folder to write to")
    quiet_libraries()
    checkpoint = _newest(path)
    output = output_folder(arguments.output_dir)
    if arguments.format:
        folder = convert_format(checkpoint, output, arguments.format)
        say(f"wrote {folder}; resume with checkpoint.resume={folder}")
    else:
        convert_to_model(checkpoint, output, arguments.recipe, arguments.trust_remote_code)
        say(f"wrote the model of step {checkpoint.step} to {output}")


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Adds the run."""
    options.add(parser, "run")


def run_verify(arguments: argparse.Namespace) -> None:
    """Verifies results, checkpoints and the files that a resume reads.

    Raises:
        InputError: if the folder holds nothing of a run.
        RunError: if a file is damaged; names all of them.
    """
    from toolkit.base.console import say
    from toolkit.base.errors import InputError, RunError
    from toolkit.base.files import kind_of
    from toolkit.base.run_folder import RunFolder

    folder = expanded(arguments.run)
    files = RunFolder(folder)
    if not any(map(kind_of, (files.facts, files.config, files.checkpoints, files.model))):
        raise InputError(f"{folder}: not a run, missing run.json (tried {folder.absolute()})")
    problems = list(dict.fromkeys(damages(folder)))
    if problems:
        raise RunError("\n".join([f"{folder} is damaged:", *(f"  - {problem}" for problem in problems)]))
    say(f"{folder}: every file is as it was written")


def damages(folder: Path) -> Iterator[str]:
    """Yields one phrase for each damaged file of a run."""
    from toolkit.base.errors import CheckpointError, InputError
    from toolkit.base.run_folder import RunFolder
    from toolkit.checkpoint.manifest import reason, verify
    from toolkit.checkpoint.state import SavedState
    from toolkit.checkpoint.store import open_checkpoint, steps
    from toolkit.report.facts import damaged
    from toolkit.report.runs import read_record
    from toolkit.tracking.jsonl import has_changed, wrong_lines

    files, sealed = RunFolder(folder), False
    try:
        record = read_record(folder)
    except InputError as error:
        yield str(error)
    else:
        yield from damaged(folder, record.facts)
        sealed = files.metrics.name in record.facts.get("files", {})
        if record.finished and "files" not in record.facts:
            yield "run.json has no checksums: the run is of an older version, and its model was not verified"
    mark = None
    if files.checkpoints.is_dir():
        whole = None
        for _, checkpoint in steps(files.checkpoints):
            problems = verify(checkpoint)
            whole = whole if problems else checkpoint
            yield from (f"{checkpoint.relative_to(folder)}: {problem}" for problem in problems)
        try:
            mark = None if whole is None else SavedState.from_json(open_checkpoint(whole).state).metrics
        except CheckpointError as error:
            yield str(error)
    try:
        if files.metrics.exists():
            yield from (f"{files.metrics.name}: line {n} cannot be read" for n in wrong_lines(files.metrics, sealed))
        if has_changed(files.metrics, mark):
            yield f"{files.metrics.name} is not as it was when the newest checkpoint was written"
    except OSError as error:
        yield f"{files.metrics.name}: {reason(error)}"


COMMANDS = {
    "checkpoint": Command(add_checkpoint, run_checkpoint),
    "verify": Command(add_verify, run_verify),
}
