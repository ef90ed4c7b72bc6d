"""Download public datasets that the shipped configurations use: `toolkit data get NAME`."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.catalog.entries import CATALOG, DEFAULT_FOLDER
from toolkit.commands import _options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the action, the dataset and the output folder."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, CATALOG)) + 2
    parser.epilog = "datasets:\n" + "\n".join(
        f"  {name:{width}}{entry.summary}\n  {'':{width}}licence: {entry.licence}" for name, entry in CATALOG.items()
    )
    parser.add_argument("action", choices=("get",), metavar="get", help="download a dataset and convert it")
    parser.add_argument("name", choices=tuple(CATALOG), metavar="NAME", help=f"one of {', '.join(CATALOG)}")
    place = f"{DEFAULT_FOLDER}, where the shipped configurations look; the dataset is written to its subfolder NAME"
    _options.add(parser, "--output-dir", default_text=place, default=DEFAULT_FOLDER)
    parser.add_argument(
        "--from", dest="mirror", metavar="DIR", help="folder with manually downloaded source files (works offline)"
    )


def work(arguments: argparse.Namespace) -> None:
    """Downloads and converts a dataset, unless its folder is complete.

    Raises:
        InputError: if the folder of `--from` does not exist.
        ToolkitError: if the dataset cannot be downloaded or converted.
    """
    from toolkit.base.errors import InputError
    from toolkit.catalog.get import get_dataset

    mirror = Path(arguments.mirror).expanduser() if arguments.mirror else None
    if mirror is not None and not mirror.is_dir():
        raise InputError(f"--from: there is no folder {mirror.absolute()}")
    get_dataset(arguments.name, Path(arguments.output_dir).expanduser(), mirror, print)
