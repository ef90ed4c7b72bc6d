"""Fetch a run's inputs: `toolkit fetch RECIPE --config FILE --to DIR [--prepare] [section.key=value ...]`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.commands import _recipe_config

if TYPE_CHECKING:
    from toolkit.api.task import Task
    from toolkit.base.offline import Fetched
    from toolkit.config.sections import Config
    from toolkit.lab.fetch import Target

COMMIT = 8
"""Characters of a commit that are shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML, the folder and whether to prepare the rows."""
    _recipe_config.add_recipe(parser)
    parser.add_argument(
        "--to", required=True, metavar="DIR",
        help="folder to write to; a second time, only what is missing, damaged or changed is written",
    )  # fmt: skip
    parser.add_argument("--prepare", action="store_true", help="check and tokenise the rows, too, as the run would")


def work(arguments: argparse.Namespace) -> None:
    """Writes the model, the processor and the rows of a run into the folder.

    Raises:
        ConfigError: if a setting is invalid.
        InputError: if there is no such model or dataset, or the folder cannot be used.
        RunError: if the folder cannot be written.
    """
    from toolkit.base.console import quiet_libraries
    from toolkit.base.errors import InputError, RunError
    from toolkit.base.files import expanded, why
    from toolkit.checkpoint.output_folder import OutputLock
    from toolkit.lab.fetch import Target

    chosen = arguments.overrides
    arguments.overrides = [*chosen, "offline_dir=null"]
    task_type, loaded = _recipe_config.load(arguments)
    folder = expanded(arguments.to).absolute()
    quiet_libraries()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with OutputLock(folder):
            target = Target(folder)
            _fetch(target, loaded.config, task_type(loaded.config))
            target.keep_prepared()
            found = target.finish()
            if arguments.prepare:
                from toolkit.lab.fetch import fetch_prepared

                arguments.overrides = [*chosen, f"offline_dir={folder}"]
                _, loaded = _recipe_config.load(arguments)
                fetch_prepared(target, loaded.config, task_type)
                found = target.finish()
    except FileExistsError as error:
        raise InputError(f"--to: {folder} is a file; name a folder") from error
    except OSError as error:
        place = Path(str(error.filename)) if error.filename else folder
        raise RunError(f"cannot write {folder}: {place}: {why(error, place)}") from error
    _show_fetched(target, found)


def _fetch(target: Target, cfg: Config, task: Task) -> None:
    """Writes everything that a run reads, except prepared rows."""
    from dataclasses import replace

    from toolkit.base.errors import InputError
    from toolkit.base.offline import MODEL, Source
    from toolkit.lab.fetch import MODEL_FOLDER, commit_of, fetch_dataset, fetch_files, model_file_names, model_source

    model = cfg.model
    if model.name_or_path is not None:
        now = commit_of(model.name_or_path, model.revision, "model")
        source = Source(model.name_or_path, MODEL_FOLDER, model.revision, None, now)
        if not target.has(MODEL, source):
            pinned = replace(model, revision=source.commit or model.revision)
            folder, commit = model_source(pinned)
            for name in model_file_names(folder, model):
                target.copy(folder / name, f"{MODEL_FOLDER}/{name}")
            target.sources[MODEL] = replace(source, commit=commit)
    if cfg.data.dataset_name is not None:
        fetch_dataset(target, cfg.data)
    fetch_files(target, cfg, task)
    if not target.sources:
        raise InputError("this run reads no model, dataset or file, so there is nothing to fetch")


def _show_fetched(target: Target, found: Fetched) -> None:
    """Prints what the folder has, and what was done."""
    from toolkit.base.console import counted, format_bytes

    for name, reason in target.damaged.items():
        print(f"replaced: {name} {reason}" if name in found.files else f"removed: {name} {reason}")
    for key, source in found.sources.items():
        print(f"{key}: {source.value}" + (f" (commit {source.commit[:COMMIT]})" if source.commit else ""))
    print("\n".join(_sizes(found)))
    new = sum(found.files[name].bytes for name in target.written)
    what = f"wrote {counted(len(target.written), 'file')}, {format_bytes(new)}" if target.written else "nothing to do"
    print(f"{what}; {found.folder} has {counted(len(found.files), 'file')}")
    print(f"use it: offline_dir={found.folder}")


def _sizes(found: Fetched) -> Iterator[str]:
    """Yields the number and size of the files in each part of the folder."""
    from toolkit.base.console import counted, format_bytes

    parts: dict[str, list[int]] = {}
    for name, entry in found.files.items():
        parts.setdefault(name.partition("/")[0], []).append(entry.bytes)
    for part, sizes in parts.items():
        yield f"  {part}: {counted(len(sizes), 'file')}, {format_bytes(sum(sizes))}"
