"""Commands about rows: data, doctor, fetch."""

from __future__ import annotations

import argparse

from toolkit.base.errors import InputError
from toolkit.base.files import expanded
from toolkit.catalog.entries import CATALOG, DEFAULT_FOLDER
from toolkit.commands import options

SIGNALS = 5
"""Rows whose trained tokens are shown."""


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds the action, what it is about, and the options of the actions."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, CATALOG)) + 2
    parser.epilog = "datasets:\n" + "\n".join(
        f"  {name:{width}}{entry.summary}\n  {'':{width}}licence: {entry.licence}" for name, entry in CATALOG.items()
    )
    actions = "`show` what a run will be trained on, or `get` a public dataset: download and convert it"
    parser.add_argument("action", choices=("show", "get"), help=actions)
    about = f"show: a file or folder, or a recipe with --config; get: one of {', '.join(CATALOG)}"
    parser.add_argument("name", metavar="FILE|RECIPE|NAME", help=about)
    options.add(parser, "overrides")
    options.add(parser, "--config")
    signal = f"show: N training rows with the tokens that are trained, measured by gradients (N: {SIGNALS})"
    options.add_count(parser, "--signal", signal, nargs="?", const=SIGNALS)
    place = f"{DEFAULT_FOLDER}, where the shipped configurations look; the dataset is written to its subfolder NAME"
    options.add_output(parser, place, folder=True)
    about = "folder with manually downloaded source files (works offline)"
    parser.add_argument("--from", dest="mirror", metavar="DIR", help=about)


def run_data(arguments: argparse.Namespace) -> None:
    """Does what was asked."""
    others = {"show": ("output", "mirror"), "get": ("config", "overrides", "signal")}[arguments.action]
    if given := [name for name in others if getattr(arguments, name)]:
        other = "get" if arguments.action == "show" else "show"
        names = {"mirror": "--from", "output": "--output", "overrides": "section.key=value", "signal": "--signal"}
        raise InputError(f"{names.get(given[0], '--config')}: only `toolkit data {other}` has this option; remove it")
    {"show": _show, "get": _get}[arguments.action](arguments)


def _get(arguments: argparse.Namespace) -> None:
    from toolkit.catalog.get import get_dataset
    from toolkit.config.messages import did_you_mean, join

    if arguments.name not in CATALOG:
        hint = did_you_mean(arguments.name, CATALOG)
        raise InputError(f"received {arguments.name!r}, expected the name of a dataset: {join(list(CATALOG))}{hint}")
    mirror = expanded(arguments.mirror) if arguments.mirror else None
    if mirror is not None and not mirror.is_dir():
        raise InputError(f"--from: there is no folder {mirror.absolute()}")
    get_dataset(arguments.name, expanded(arguments.output or DEFAULT_FOLDER), mirror, print)


def _show(arguments: argparse.Namespace) -> None:
    from toolkit.base.console import quiet_libraries, rich_console
    from toolkit.lab.init.overview import overview, subject, subject_of_file

    quiet_libraries(only_data=True)
    if arguments.config is None:
        shown = subject_of_file(arguments.name, arguments.overrides)
    else:
        arguments.recipe = arguments.name
        task_type, loaded = options.load(arguments)
        shown = subject(task_type, loaded.config)
    console = rich_console()
    for number, part in enumerate(overview(shown)):
        if number:
            console.print()
        console.print(part, markup=False)
    if arguments.signal:
        from toolkit.prepare.inputs import features_of
        from toolkit.prepare.signal import signals

        if not shown.task.predicts_tokens:
            raise InputError(f"--signal: {type(shown.task).__name__} does not predict tokens; remove it")
        processor, features = features_of(shown.cfg, shown.task, shown.rows)
        for each in signals(shown.task, processor, features["train"], arguments.signal, shown.cfg.seed):
            console.print()
            console.print("\n".join(each.lines()), markup=False)


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the run whose predictions are used."""
    options.add_recipe(parser)
    about = "output folder of a finished run, or of cross-validate, whose predictions show likely wrong labels"
    parser.add_argument("--run", metavar="RUN", help=about)
    options.add_output(parser, "OUTPUT_DIR-doctor", folder=True)


def run_doctor(arguments: argparse.Namespace) -> None:
    """Examines the rows, prints what it found and writes it."""
    request = options.request(arguments, "doctor")
    from toolkit.lab.doctor.examine import diagnose

    diagnose(request, expanded(arguments.run) if arguments.run else None).publish(request.output)


def add_fetch(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML, the folder and whether to prepare the rows."""
    options.add_recipe(parser)
    again = "none; a second time, only what is missing, damaged or changed is written"
    options.add_output(parser, again, folder=True, required=True)
    parser.add_argument("--prepare", action="store_true", help="check and tokenise the rows, too, as the run would")


def run_fetch(arguments: argparse.Namespace) -> None:
    """Writes the model, the processor and the rows of a run into the folder."""
    options.find(arguments)
    from toolkit.base.console import quiet_libraries
    from toolkit.recipe import load_task_type

    task_type = load_task_type(arguments.recipe)
    quiet_libraries()
    from toolkit.lab.fetch import fetch, lines

    folder = expanded(arguments.output).absolute()
    print("\n".join(lines(*fetch(task_type, arguments.config, arguments.overrides, folder, arguments.prepare))))
