"""Export a finished run for others: `toolkit export RUN --format zip --output FILE`."""

from __future__ import annotations

import argparse

from toolkit.base.files import expanded
from toolkit.commands import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the format and the output file."""
    _options.add(parser, "run")
    _options.add(parser, "--format", type=_options.one_of("zip"), default="zip", default_text="zip")
    _options.add(parser, "--output", default_text="RUN.zip")
    _options.add(parser, "--recipe", default_text="that of the run")
    _options.add(parser, "--trust-remote-code")


def work(arguments: argparse.Namespace) -> None:
    """Writes a zip with the model, its card, the report and a script that predicts with transformers alone.

    Raises:
        InputError: if the run cannot be exported, or the file cannot be written.
        RunError: if the zip cannot be written.
    """
    from toolkit.base.console import format_bytes, quiet_libraries, say
    from toolkit.base.errors import InputError
    from toolkit.deploy.export import export_zip

    folder = expanded(arguments.run)
    output = _options.output_file(arguments.output or folder.absolute().with_suffix(".zip"))
    if output.suffix.lower() != ".zip":
        raise InputError(f"--output: received {output.name!r}, expected a name that ends in .zip")
    quiet_libraries()
    export_zip(folder, arguments.recipe, output, arguments.trust_remote_code)
    say(f"{output} ({format_bytes(output.stat().st_size)}) has the model, its card, the report and predict.py,")
    say("which needs torch and transformers, but not the toolkit; README.txt tells how to use it")
