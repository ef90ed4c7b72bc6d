"""The names of files and folders in the settings: checked without reading them, and where those of a model are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from toolkit.base.errors import InputError, problems_of
from toolkit.base.files import expanded, kind_of
from toolkit.base.offline import DATASET, MODEL, Fetched, read_fetched
from toolkit.base.package import find_shipped, is_shipped
from toolkit.base.run_folder import RunFolder
from toolkit.catalog.entries import command_for
from toolkit.config.messages import did_you_mean, join, show
from toolkit.config.problems import value_of
from toolkit.config.sections import DATA_FILES, Config, ModelConfig
from toolkit.config.source import Settings

ARCHIVES = (".tar", ".zip")
"""Suffixes of archives of image and audio files."""
HDF5 = (".h5", ".hdf5")
FILE_FORMATS = (
    *(".arrow", ".arrows", ".conll", ".csv", ".feather", ".tsv", ".json", ".jsonl", ".parquet", ".tmx", ".txt"),
    *(".xlsx", *HDF5, *ARCHIVES),
)
"""Suffixes of data files that can be read."""
COMPRESSED = (".7z", ".bz2", ".gz", ".rar", ".tbz", ".tgz", ".txz", ".xz", ".zst")
"""Suffixes of compressed files, in which nothing can be read by its offset."""
DECOMPRESS = "decompress it first (an archive of images or recordings may be .tar or .zip)"
SPREADSHEETS = (".ods", ".xls", ".xlsb", ".xlsm", ".numbers")
"""Suffixes of spreadsheets that cannot be read."""
SAVE_SPREADSHEET = "in the program that made it, save it as .xlsx or 'CSV UTF-8'"


def find_shipped_data(settings: Settings, file: Path) -> None:
    """Replaces the paths of sample data in a shipped configuration that do not exist in the current directory.

    Other files are left alone, since their paths may be typos.
    """
    if is_shipped(file):
        _replace_files(settings, lambda _, name: None if kind_of(Path(name)) else find_shipped(name))


def find_fetched_data(settings: Settings) -> None:
    """Replaces the names of data files that the folder `offline_dir` has by the paths of its files.

    A folder that cannot be used is reported by `fetched_problems`.
    """
    folder = settings.get(("offline_dir",))
    if not isinstance(folder, str) or problems_of(lambda: read_fetched(folder)):
        return
    _replace_files(settings, read_fetched(folder).find)


def _replace_files(settings: Settings, find: Callable[[str, str], Path | None]) -> None:
    """Replaces the data files for which `find`, called with the key and the name, returns a path."""
    for key in [("data", name) for name in DATA_FILES]:
        value = settings.get(key)
        files = value if isinstance(value, list) else [value]
        found = [str(find(".".join(key), file) or file) if isinstance(file, str) else file for file in files]
        if found != files:
            settings.set(key, found if isinstance(value, list) else found[0], settings.source(key))


def find_run_model(settings: Settings) -> None:
    """Replaces the folder of a run as the name of a model by the folder of its model."""
    key = ("model", "name_or_path")
    if isinstance(value := settings.get(key), str) and (run := former_run(value)) and run.path == expanded(value):
        settings.set(key, str(Path(value) / run.model.name), settings.source(key))


def former_run(name: str) -> RunFolder | None:
    """Returns the finished run of which `name` is the folder, or the folder of the model; None for other names."""
    folder = expanded(name)
    runs = [RunFolder(path) for path in (folder, folder.parent)]
    own = (run for run in runs if folder in (run.path, run.model, run.merged))
    return next((run for run in own if kind_of(run.facts) == "file"), None)


def aligned_files(name: str) -> dict[str, str]:
    """Returns the line-aligned files that a name with braces means, by column; nothing for other names.

    `train.{en,de}` is `{"en": "train.en", "de": "train.de"}`, unless a file of exactly that name exists.
    """
    braces = re.fullmatch(r"([^{}]*)\{([^{}]+)\}([^{}]*)", name)
    if braces is None or kind_of(Path(name)):
        return {}
    return {column: f"{braces[1]}{column}{braces[3]}" for column in braces[2].split(",")}


def sheet_of(name: str) -> tuple[str, str | None]:
    """Returns the file and the sheet, or group, that a name like `reviews.xlsx#Sheet2` or `reviews.h5#train` means.

    The sheet is None for every other name, and if a file of exactly that name exists.
    """
    file, separator, sheet = name.rpartition("#")
    if not separator or not file.lower().endswith((".xlsx", *HDF5)) or kind_of(Path(name)):
        return name, None
    return file, sheet or None


def files_of(name: str) -> list[str]:
    """Returns the files that the name of a data file means: several for line-aligned files."""
    return list(aligned_files(name).values()) or [sheet_of(name)[0]]


def blank_problems(config: Config, key: str) -> Iterator[str]:
    """Yields a message if a setting, or an entry of a list, is text and blank."""
    value = value_of(config, key)
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and not text.strip() and text != "\t":  # a delimiter
            expected = "the name of a folder" if key == "output_dir" else "text that is not blank"
            yield f"{key}: received {show(text)}, expected {expected}"


def folder_problems(config: Config, key: str) -> Iterator[str]:
    """Yields a message if a setting names a file and not a folder."""
    value = value_of(config, key)
    if value and value.strip() and kind_of(expanded(value)) == "file":
        yield f"{key}: received {show(value)}, which is a file; name a folder"


def data_file_problems(config: Config, key: str) -> Iterator[str]:
    """Yields a message for each file of a setting that is not there or has a format that cannot be read."""
    for file in filter(str.strip, config.data.files(key.removeprefix("data."))):
        yield from _file_problems(key, file)


def _file_problems(key: str, value: str) -> Iterator[str]:
    if aligned := aligned_files(value):
        for name in aligned.values():
            if kind_of(expanded(name)) != "file":
                tried = f"there is no file {show(name)} (tried {Path(name).absolute()})"
                yield f"{key}: received {show(value)}, which means line-aligned files, but {tried}"
        return
    file, _ = sheet_of(value)
    path = expanded(file)
    kind = kind_of(path)
    if not kind:
        tried = f"there is no such file (tried {path.absolute()}); a relative path starts at the current directory"
        command = command_for(path)
        hint = f"; `{command}` downloads this public dataset" if command else ""
        if found := find_shipped(value):
            hint = f"; the toolkit's sample data is {found}"
        yield f"{key}: received {show(value)}, {tried}{hint}"
    elif kind == "file" and path.suffix.lower() not in FILE_FORMATS:
        expected = f"expected a name that ends in {join(FILE_FORMATS)}, or line-aligned files as in 'train.{{en,de}}'"
        if path.suffix.lower() in SPREADSHEETS:
            expected = SAVE_SPREADSHEET
        elif path.suffix.lower() in COMPRESSED:
            expected = DECOMPRESS
        yield f"{key}: received {show(value)}, whose format is not supported; {expected}"


def fetched_problems(config: Config) -> Iterator[str]:
    """Yields why the folder `offline_dir` cannot be used, and what the settings name that is not there."""
    if (folder := config.offline_dir) is not None:
        yield from problems_of(lambda: read_fetched(folder)) or _fetched(config, read_fetched(folder))


def model_problems(config: Config) -> Iterator[str]:
    """Yields a message if the model is a folder that is not there; a model of `offline_dir` is checked with it."""
    offline = config.offline_dir
    if offline is None or problems_of(lambda: read_fetched(offline)):
        yield from _model(config.model.name_or_path or "", config.model.revision)


def _model(name: str, revision: str | None) -> Iterator[str]:
    is_folder = kind_of(Path(name)) == "folder" and name.strip() != ""
    is_path = name.startswith(("/", "./", "../", "~")) or name.count("/") > 1  # a hub id is `name` or `owner/name`
    if is_path and not is_folder:
        yield f"model.name_or_path: received {show(name)}, there is no such folder (tried {Path(name).absolute()})"
    if is_folder and revision is not None:
        yield f"model.revision: received {show(revision)}, but {show(name)} is a local folder; remove it"


def _fetched(config: Config, fetched: Fetched) -> Iterator[str]:
    """Yields what the settings name that is neither in the fetched folder nor on this machine, and damaged files."""
    model, data = config.model, config.data
    name = model.name_or_path or ""
    if name and fetched.find(MODEL, name, model.revision) is None:
        if kind_of(Path(name)) == "folder":
            yield from _model(name, model.revision)
        else:
            yield _not_fetched(fetched, MODEL, _named(name, model.revision))
    dataset = data.dataset_name or ""
    has_dataset = fetched.find(DATASET, dataset, data.revision, data.dataset_config_name) is not None
    if dataset and not has_dataset and kind_of(expanded(dataset)) != "folder":
        yield _not_fetched(fetched, DATASET, _named(dataset, data.revision, data.dataset_config_name))
    files = map(Path, data.files())
    has_file = any(file.is_relative_to(fetched.folder) for file in files)
    if not (has_dataset or has_file or fetched.find(MODEL, name, model.revision)):
        yield f"offline_dir: received {show(config.offline_dir)}, but nothing that this run reads is there; remove it"
    yield from problems_of(lambda: fetched.require_intact(content=False))


def _not_fetched(fetched: Fetched, key: str, wanted: str) -> str:
    has = fetched.sources.get(key)
    instead = f"has {_named(has.value, has.revision, has.config)} instead" if has else "does not have it"
    return (
        f"{key}: received {wanted}, but the folder of offline_dir ({fetched.folder}) {instead}; fetch it with `toolkit "
        "fetch`, or remove offline_dir"
    )


def _named(value: str, revision: str | None, config: str | None = None) -> str:
    about = [f"configuration {show(config)}"] * bool(config) + [f"revision {show(revision)}"] * bool(revision)
    return show(value) + (f" ({', '.join(about)})" if about else "")


def resume_problems(config: Config, key: str) -> Iterator[str]:
    """Yields a message if `checkpoint.resume` is neither a word that it may be nor a folder."""
    value = value_of(config, key)
    if value.strip() and value not in ("none", "auto") and kind_of(Path(value)) != "folder":
        tried = f"a checkpoint's folder (tried {Path(value).absolute()}){did_you_mean(value, ['none', 'auto'])}"
        yield f"{key}: received {show(value)}, expected 'none', 'auto' or {tried}"


def source_of(cfg: Config) -> ModelConfig:
    """Returns the settings of the model with the name under which its files are to be read.

    That is a folder of `offline_dir`, if this has the model. The settings themselves keep the name, so that a run is
    the same one wherever its files come from. Raises InputError if `offline_dir` cannot be used.
    """
    return _source(cfg.model, cfg.offline_dir)


def _source(model: ModelConfig, offline_dir: str | None) -> ModelConfig:
    if offline_dir is None or model.name_or_path is None:
        return model
    found = read_fetched(offline_dir).find(MODEL, model.name_or_path, model.revision)
    return model if found is None else replace(model, name_or_path=str(found), revision=None)


def source_of_finished(model: ModelConfig, offline_dir: str | None) -> ModelConfig:
    """Returns what `source_of` does for a run that has ended, whose fetched folder may be gone."""
    try:
        return _source(model, offline_dir)
    except InputError:
        return model
