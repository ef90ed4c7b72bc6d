"""The rows that a run reads: a dataset of the Hub as Arrow files, and copies of local files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.task import Task
from toolkit.base.errors import InputError
from toolkit.base.files import expanded, kind_of, write_json, written_folder
from toolkit.base.offline import DATA_FILES, DATASET, Source
from toolkit.config.paths import files_of
from toolkit.config.sections import Config, DataConfig
from toolkit.data.columns import columns_in, used_columns
from toolkit.data.media.files import file_names
from toolkit.data.readers.raw import Reading
from toolkit.data.sources import SPLITS, folder_of, load_hub, read_rows
from toolkit.data.table import PROGRESS_FROM_BYTES, progress_bars
from toolkit.lab.fetch.folder import DATASET_FOLDER, FILES_FOLDER, Target
from toolkit.lab.fetch.hub import commit_of

if TYPE_CHECKING:
    import datasets

EMBEDDED_ROWS = 100
"""Rows whose images or audio are read into memory at a time."""


def fetch_dataset(target: Target, data: DataConfig) -> None:
    """Writes all splits of the dataset, unless the folder has them.

    Raises:
        DataError: if the dataset cannot be loaded.
    """
    name = str(data.dataset_name)
    commit = commit_of(name, data.revision, "dataset")
    source = Source(name, DATASET_FOLDER, data.revision, data.dataset_config_name, commit)
    if target.has(DATASET, source):
        return
    splits = load_hub(name, data.dataset_config_name, commit or data.revision)
    target.change(DATASET_FOLDER)
    with written_folder(target.folder / DATASET_FOLDER) as folder:
        for split, rows in splits.items():
            save_split(rows, folder / str(split))
        write_json(folder / SPLITS, {str(split): rows._fingerprint for split, rows in splits.items()})
    target.add_folder(DATASET_FOLDER)
    target.sources[DATASET] = source


def save_split(rows: datasets.Dataset, folder: Path) -> None:
    """Saves a split with everything that it refers to."""
    import datasets
    from datasets.table import embed_table_storage

    media = (datasets.Image, datasets.Audio)
    if any(isinstance(getattr(feature, "feature", feature), media) for feature in rows.features.values()):
        # Until then, a split may refer to files in the cache.
        rows = rows.with_format("arrow").map(
            embed_table_storage, batched=True, batch_size=EMBEDDED_ROWS, keep_in_memory=False,
            cache_file_name=str(folder.with_name(f"{folder.name}.arrow")),
        ).with_format(None)  # fmt: skip
    with progress_bars((rows.dataset_size or 0) >= PROGRESS_FROM_BYTES):
        rows.save_to_disk(folder)
    folder.with_name(f"{folder.name}.arrow").unlink(missing_ok=True)


def fetch_files(target: Target, cfg: Config, task: Task) -> None:
    """Copies the data files, and the files that their rows refer to.

    Files stay where they are in relation to each other, in a folder `files/<n>` for each folder of data files.

    Raises:
        DataError: if a file cannot be read.
        InputError: if rows refer to files outside of the folder of their data file.
    """
    places: dict[Path, str] = {}
    for key in DATA_FILES:
        value = getattr(cfg.data, key.partition(".")[2])
        if value is None:
            continue
        given = expanded(value)
        parent = expanded(files_of(value)[0]).absolute().parent  # a group of an HDF5 file has a path of its own
        place = places.setdefault(parent, f"{FILES_FOLDER}/{len(places)}")
        for inside in sorted({*_own_files(value, parent), *_referenced(key, value, cfg, task, parent)}):
            target.copy(parent / inside, f"{place}/{inside}")
        target.sources[key] = Source(str(given), f"{place}/{given.absolute().relative_to(parent).as_posix()}")


def _own_files(value: str, parent: Path) -> Iterator[str]:
    """Yields the files of a data file, relative to its folder."""
    for name in files_of(value):
        path = expanded(name).absolute()
        if not path.is_relative_to(parent):
            raise InputError(f"{name}: line-aligned files must be in one folder to be fetched")
        inside = path.relative_to(parent)
        if path.is_dir():
            yield from ((inside / each).as_posix() for each in file_names(path))
        else:
            yield inside.as_posix()


def _referenced(key: str, value: str, cfg: Config, task: Task, parent: Path) -> Iterator[str]:
    """Yields the files that the rows of a table refer to, relative to the folder of the table."""
    named = columns_in(value, task, cfg.data.columns)
    columns = [named.get(name, name) for name, column in used_columns(task).items() if column.file]
    if not columns or expanded(value).is_dir():
        return
    base = folder_of(value)
    for row in read_rows(value, Reading.of(cfg.data)):
        for column in columns:
            name = _name(dict(row.values or {}).get(column))
            path = None if name is None else base / name
            if path is None or kind_of(path) != "file":  # a bad row, wherever it is read
                continue
            if name is None or Path(name).is_absolute() or ".." in Path(name).parts:
                raise InputError(
                    f"{key}: row {row.number} of {value} refers to {name}; only files below the folder of the table "
                    f"({parent}), named by relative paths, can be fetched with it"
                )
            yield path.relative_to(parent).as_posix()


def _name(value: Any) -> str | None:
    if isinstance(value, dict):
        value = None if isinstance(value.get("bytes"), bytes) else value.get("path")
    return value if isinstance(value, str) and value.strip() else None
