"""Export a finished run for others: `toolkit export RUN --format zip --output FILE`."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.base.files import expanded
from toolkit.commands import options

MOST = 256
"""Most rows to compare on."""
FORMATS = ("zip", "merged", "onnx", "torch_export", "int8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the format, the output, and the rows to compare on."""
    options.add(parser, "run")
    others = "zip; also merged, onnx, torch_export or int8"
    options.add(parser, "--format", type=options.one_of(*FORMATS), default="zip", default_text=others)
    options.add(parser, "--output", default_text="RUN.zip; for other formats than zip it is a folder, RUN-FORMAT")
    options.add(parser, "--data", default_text="the run's validation rows, to compare the export with the run")
    options.add(parser, "--parity-rows", default_text=str(MOST))
    options.add(parser, "--recipe", default_text="that of the run")
    options.add(parser, "--trust-remote-code")


def work(arguments: argparse.Namespace) -> None:
    """Writes a zip with a script for transformers, or a folder with the model in another format.

    Raises:
        InputError: if the run cannot be exported, or the output cannot be written.
        RunError: if the output cannot be written, or its model differs from the run's.
    """
    from toolkit.system.launcher import refuse_launcher

    refuse_launcher("export")
    folder = expanded(arguments.run)
    if arguments.format == "zip":
        _write_zip(arguments, folder, _zip_file(arguments, folder))
    else:
        default = f"{folder.absolute()}-{arguments.format}"
        output = options.output_folder(arguments.output or default, "--output", make=False)
        write_folder(arguments, arguments.format, output, arguments.parity_rows or MOST)


def _zip_file(arguments: argparse.Namespace, folder: Path) -> Path:
    """Returns the zip to write."""
    from toolkit.base.errors import InputError

    for option in ("--data", "--parity-rows"):
        if getattr(arguments, option[2:].replace("-", "_")) is not None:
            raise InputError(f"{option}: a zip has the run's own model, which is not compared; remove it")
    output = options.output_file(arguments.output or f"{folder.absolute()}.zip")
    if output.suffix.lower() != ".zip":
        raise InputError(f"--output: received {output.name!r}, expected a name that ends in .zip")
    return output


def _write_zip(arguments: argparse.Namespace, folder: Path, output: Path) -> None:
    from toolkit.base.console import format_bytes, quiet_libraries, say
    from toolkit.deploy.export.archive import export_zip

    quiet_libraries()
    export_zip(folder, arguments.recipe, output, arguments.trust_remote_code)
    say(f"{output} ({format_bytes(output.stat().st_size)}) has the model, its card, the report and predict.py,")
    say("which needs torch and transformers, but not the toolkit; README.txt tells how to use it")


def write_folder(arguments: argparse.Namespace, name: str, output: Path, most: int) -> None:
    """Writes a folder with the model in a format, and says how close it is to the run.

    Args:
        arguments: the run, `data`, `recipe` and `trust_remote_code`.
        name: the format.
        output: the folder, which does not exist or is empty.
        most: most rows to compare on.

    Raises:
        InputError: if the run cannot be exported.
        RunError: if the output cannot be written, or its model differs from the run's.
    """
    from toolkit.base.console import quiet_libraries, say
    from toolkit.deploy.export.folder import Request, export_folder
    from toolkit.document.blocks import Table
    from toolkit.document.render import print_table

    quiet_libraries()
    folder, remote = expanded(arguments.run), arguments.trust_remote_code
    parity = export_folder(Request(folder, name, output, most, arguments.recipe, arguments.data, remote))
    print_table(Table(["", "run", name], parity.lines()))
    allowed = "" if parity.allowed is None else f" (at most {parity.allowed:.1e} is allowed)"
    say(f"largest difference of an output on {parity.rows} rows: {parity.difference:.1e}{allowed}")
    say(f"{output} has the model in this format; README.md is its card, parity.json these figures")
