"""Merge a run's adapters into its model: `toolkit merge RUN [--output-dir DIR] [--data FILE]`."""

from __future__ import annotations

import argparse

from toolkit.base.files import expanded
from toolkit.base.run_folder import RunFolder
from toolkit.commands import deploy, options

MOST = 32
"""Most rows to compare on, all of which both models compute on the CPU."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the output folder, and the rows to compare on."""
    options.add(parser, "run")
    options.add(parser, "--output-dir", default_text="RUN/merged")
    options.add(parser, "--data", default_text="the run's own rows; labelled, to compare the merged model with the run")
    options.add(parser, "--parity-rows", default_text=str(MOST))
    options.add(parser, "--recipe", default_text="that of the run")
    options.add(parser, "--trust-remote-code")


def work(arguments: argparse.Namespace) -> None:
    """Exports a run as `merged`, below the run unless a folder is named.

    Raises:
        InputError: if the run cannot be merged, or the folder cannot be written.
        RunError: if the outputs of the merged model differ.
    """
    from toolkit.deploy.trained import read_settings
    from toolkit.system.launcher import refuse_launcher

    refuse_launcher("merge")
    folder = expanded(arguments.run)
    read_settings(folder, arguments.recipe)  # a wrong run is said before the folder that would be in it
    output = options.output_folder(arguments.output_dir or RunFolder(folder).merged, make=False)
    deploy.write_folder(arguments, "merged", output, arguments.parity_rows or MOST)
