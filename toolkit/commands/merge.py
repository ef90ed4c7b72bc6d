"""Merge a run's adapters into its model: `toolkit merge RUN [--output-dir DIR] [--data FILE]`."""

from __future__ import annotations

import argparse

from toolkit.base.files import expanded
from toolkit.base.run_folder import RunFolder
from toolkit.commands import _options, export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the output folder, and the rows to compare on."""
    _options.add(parser, "run")
    _options.add(parser, "--output-dir", default_text="RUN/merged")
    _options.add(parser, "--data", default_text="the run's own rows, to compare the merged model with the run")
    _options.add(parser, "--recipe", default_text="that of the run")
    _options.add(parser, "--trust-remote-code")


def work(arguments: argparse.Namespace) -> None:
    """Exports a run as `merged`, below the run unless a folder is named.

    Raises:
        InputError: if the run cannot be merged, or the folder cannot be written.
        RunError: if the outputs of the merged model differ.
    """
    from toolkit.base.launcher import refuse_launcher

    refuse_launcher("merge")
    default = RunFolder(expanded(arguments.run)).merged
    output = _options.output_folder(arguments.output_dir or default, make=False)
    export.write_folder(arguments, "merged", output)
