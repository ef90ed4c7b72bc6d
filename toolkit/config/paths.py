"""The names of files and folders in the settings: checked without reading them, and where those of a model are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from toolkit.base.errors import InputError, problems_of
from toolkit.base.files import expanded, kind_of
from toolkit.base.offline import DATASET, MODEL, Fetched, read_fetched
from toolkit.base.package import find_shipped, is_shipped
from toolkit.catalog.entries import command_for
from toolkit.config.messages import did_you_mean, join, show
from toolkit.config.sections import Config, ModelConfig
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


DATA_FILES = ("train_file", "validation_file", "test_file")


def find_shipped_data(settings: Settings, file: Path) -> None:
    """Replaces the paths of sample data in a shipped configuration that do not exist in the current directory.

    Args:
        settings: the values of the file.
        file: the configuration; one that is not shipped is left as it is, since its paths may be typos.
    """
    for key in [("data", name) for name in DATA_FILES] if is_shipped(file) else []:
        value = settings.get(key)
        if isinstance(value, str) and not kind_of(Path(value)) and (found := find_shipped(value)):
            settings.set(key, str(found), settings.source(key))


def find_fetched_data(settings: Settings) -> None:
    """Replaces the names of data files that the folder `offline_dir` has by the paths of its files.

    A folder that cannot be used is reported by `path_problems`.
    """
    folder = settings.get(("offline_dir",))
    if not isinstance(folder, str) or problems_of(lambda: read_fetched(folder)):
        return
    fetched = read_fetched(folder)
    for key in [("data", name) for name in DATA_FILES]:
        value = settings.get(key)
        if isinstance(value, str) and (found := fetched.find(".".join(key), value)):
            settings.set(key, str(found), settings.source(key))


def path_problems(config: Config, present: bool = True) -> Iterator[str]:
    """Yields one message, dotted key first, for each text that is blank or names a path that cannot be used.

    Args:
        config: the settings.
        present: whether the paths must exist; False for a run that has ended, or on another machine.
    """
    for section in ("model", "data", "eval", "checkpoint", "tracking"):
        yield from _blank_texts(section, asdict(getattr(config, section)))
    if not config.output_dir.strip():
        yield f"output_dir: received {show(config.output_dir)}, expected the name of a folder"
    if present:
        for name in DATA_FILES:
            yield from _data_file(f"data.{name}", getattr(config.data, name))
        unusable = problems_of(lambda: read_fetched(config.offline_dir or "")) if config.offline_dir else []
        yield from unusable
        if config.offline_dir is None or unusable:
            yield from _model(config.model.name_or_path or "", config.model.revision)
        else:
            yield from _fetched(config, read_fetched(config.offline_dir))
        yield from _resume(config.checkpoint.resume)
        if config.output_dir.strip() and kind_of(expanded(config.output_dir)) == "file":
            yield f"output_dir: received {show(config.output_dir)}, which is a file; name a folder"
        if (stage := config.data.stage_to) and kind_of(expanded(stage)) == "file":
            yield f"data.stage_to: received {show(stage)}, which is a file; name a folder"


def _blank_texts(section: str, values: dict[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, str) and not value.strip() and value != "\t":  # a delimiter
            yield f"{section}.{name}: received {show(value)}, expected text that is not blank"


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


def _data_file(key: str, value: str | None) -> Iterator[str]:
    if not value or not value.strip():
        return
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
    files = [Path(file) for name in DATA_FILES if (file := getattr(data, name))]
    has_file = any(file.is_relative_to(fetched.folder) for file in files)
    if not (has_dataset or has_file or fetched.find(MODEL, name, model.revision)):
        yield f"offline_dir: received {show(config.offline_dir)}, but nothing that this run reads is there; remove it"
    yield from problems_of(lambda: fetched.refuse_damage(content=False))


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


def _resume(value: str) -> Iterator[str]:
    if value.strip() and value not in ("none", "auto") and kind_of(Path(value)) != "folder":
        tried = f"a checkpoint's folder (tried {Path(value).absolute()}){did_you_mean(value, ['none', 'auto'])}"
        yield f"checkpoint.resume: received {show(value)}, expected 'none', 'auto' or {tried}"


def source_of(cfg: Config) -> ModelConfig:
    """Returns the settings of the model with the name under which its files are to be read.

    That is a folder of `offline_dir`, if this has the model. The settings themselves keep the name, so that a run is
    the same one wherever its files come from.

    Raises:
        InputError: if `offline_dir` cannot be used.
    """
    model = cfg.model
    if cfg.offline_dir is None or model.name_or_path is None:
        return model
    found = read_fetched(cfg.offline_dir).find(MODEL, model.name_or_path, model.revision)
    return model if found is None else replace(model, name_or_path=str(found), revision=None)


def source_of_finished(cfg: Config) -> ModelConfig:
    """Returns what `source_of` does for a run that has ended, whose fetched folder may be gone."""
    try:
        return source_of(cfg)
    except InputError:
        return cfg.model
