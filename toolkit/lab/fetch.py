"""Writes a fetched folder: model, rows and prepared rows, only what is missing or damaged, the manifest last."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from toolkit.api.task import Task
from toolkit.base.console import counted, format_bytes, warn
from toolkit.base.errors import InputError, RunError, pretrained_error
from toolkit.base.files import (
    copy_and_hash,
    expanded,
    file_sha256,
    is_temporary,
    kind_of,
    read_json,
    remove_leftovers,
    temporary_file,
    texts_in,
    why,
    write_json,
    written_folder,
)
from toolkit.base.offline import (
    DATA_FILES,
    DATASET,
    FORMAT,
    MANIFEST,
    MODEL,
    PREPARED,
    Entry,
    Fetched,
    Source,
    prepare_download,
    read_fetched,
)
from toolkit.base.package import replaced
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.lock import OutputLock
from toolkit.checkpoint.output_folder import Claimed
from toolkit.checks.check import Told
from toolkit.checks.run import check_settings
from toolkit.config.paths import files_of
from toolkit.config.sections import Config, DataConfig, ModelConfig
from toolkit.data.columns import columns_in, roles
from toolkit.data.media.files import file_names
from toolkit.data.readers.raw import Reading
from toolkit.data.row_cache import FOLDER, LOCK_SUFFIX
from toolkit.data.sources import SPLITS, folder_of, load_hub, read_rows
from toolkit.data.table import PROGRESS_FROM_BYTES, progress_bars
from toolkit.recipe import load_settings

if TYPE_CHECKING:
    import datasets


MODEL_FOLDER, DATASET_FOLDER, FILES_FOLDER = "model", "dataset", "files"


class Target:
    """A fetched folder that is being written; it exists and is locked.

    Raises InputError if it holds anything that `toolkit fetch` did not write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: dict[str, Source] = {}
        self.files: dict[str, Entry] = {}
        self.written: list[str] = []
        """Files that were not there, or not as they must be."""
        files = RunFolder(folder)
        own = {MANIFEST, MODEL_FOLDER, DATASET_FOLDER, FILES_FOLDER, PREPARED, files.lock.name, files.lock_owner.name}
        own.add(files.lock_removal.name)
        foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in own and not is_temporary(entry))
        if foreign:
            raise InputError(
                f"--output: {folder} holds {', '.join(foreign[:5])}, not of `toolkit fetch`; use another folder"
            )
        remove_leftovers(folder)
        self.former = self._former()
        self.damaged = dict(self.former.damage())
        """What was wrong with files that the manifest has, by their names."""

    def _former(self) -> Fetched:
        nothing = Fetched(self.folder, {}, {})
        if kind_of(self.folder / MANIFEST) != "file":
            return nothing
        try:
            return read_fetched(self.folder)
        except InputError:  # of another version
            return nothing

    def has(self, key: str, source: Source) -> bool:
        """Keeps what the folder already has of a setting, if all of its files are as they were written.

        Without a commit in `source`, that of the folder counts, if the revision is equal.
        """
        former = self.former.sources.get(key)
        if former is None or (former.value, former.config) != (source.value, source.config):
            return False
        same = former.commit == source.commit if source.commit else former.revision == source.revision
        names = [name for name in self.former.files if Path(name).is_relative_to(former.path)]
        if former.commit is None or not same or any(name in self.damaged for name in names):
            return False
        self.sources[key] = Source(former.value, former.path, source.revision, former.config, former.commit)
        self.files |= {name: self.former.files[name] for name in names}
        return True

    def copy(self, source: Path, name: str) -> None:
        """Copies a file to `name` in the folder, unless the folder has it."""
        place = self.folder / name
        digest = file_sha256(source)
        size = source.stat().st_size
        if kind_of(place) != "file" or place.stat().st_size != size or file_sha256(place) != digest:
            self.change(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            with temporary_file(place) as temporary:
                written = copy_and_hash(source, temporary)
            if written != digest:
                raise InputError(f"{source} changed while it was copied; repeat the command")
        self.files[name] = Entry(size, digest)

    def add_folder(self, name: str) -> None:
        """Adds all files of a folder that has just been written."""
        for file in sorted(path for path in (self.folder / name).rglob("*") if path.is_file()):
            inside = file.relative_to(self.folder).as_posix()
            self.files[inside] = Entry(file.stat().st_size, file_sha256(file))
            if self.former.files.get(inside) != self.files[inside] or inside in self.damaged:
                self.change(inside)

    def keep_prepared(self) -> None:
        """Keeps the prepared rows that are as they were written; others with the same key are prepared again."""
        keys = {_key(name) for name in self.former.files} - {_key(name) for name in self.damaged} - {""}
        self.files |= {name: entry for name, entry in self.former.files.items() if _key(name) in keys}

    def change(self, name: str) -> None:
        """Notes that a file or folder is written; until `finish`, the folder counts as incomplete."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        if name not in self.written:
            self.written.append(name)

    def finish(self) -> Fetched:
        """Removes what the folder no longer has, and writes the manifest."""
        for name in [path for path in self._all() if path not in self.files]:
            self.change(name)
            (self.folder / name).unlink()
        self.written = [name for name in self.written if name in self.files]
        for place in sorted(self.folder.rglob("*"), reverse=True):  # what is in a folder comes before it
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
        sources = {key: asdict(source) for key, source in self.sources.items()}
        files = {name: asdict(self.files[name]) for name in sorted(self.files)}
        write_json(self.folder / MANIFEST, {"format": FORMAT, "sources": sources, "files": files})
        return Fetched(self.folder, self.sources, self.files)

    def _all(self) -> Iterable[str]:
        for top in (MODEL_FOLDER, DATASET_FOLDER, FILES_FOLDER, PREPARED):
            for path in (self.folder / top).rglob("*"):
                if path.is_file() or path.is_symlink():
                    yield path.relative_to(self.folder).as_posix()


def _key(name: str) -> str:
    """Returns the name of the folder of prepared rows that a file is in, or an empty text."""
    top, _, rest = name.partition("/")
    return rest.partition("/")[0] if top == PREPARED else ""


def commit_of(name: str, revision: str | None, kind: Literal["model", "dataset"]) -> str | None:
    """Returns the commit that a revision is now; None for a local folder, or if the Hub does not say."""
    from huggingface_hub import HfApi, constants

    prepare_download(name)
    if kind_of(expanded(name)) == "folder" or constants.is_offline_mode():
        return None
    try:
        return HfApi().repo_info(name, revision=revision, repo_type=kind).sha
    except Exception as error:  # of the Hub or the network
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"  # whole: it says what to do at the end
        warn(f"the Hub does not say which commit {name!r} is ({reason}); an earlier copy is kept")
        return None


EMBEDDED_ROWS = 100
"""Rows whose images or audio are read into memory at a time."""


def fetch_dataset(target: Target, data: DataConfig) -> None:
    """Writes all splits of the dataset, unless the folder has them."""
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
    """Copies data files, and those that their rows refer to, into `files/<n>` for each folder of data files."""
    places: dict[Path, str] = {}
    for key, value in ((name, file) for name in DATA_FILES for file in cfg.data.files(name.partition(".")[2])):
        given = expanded(value)
        parent = expanded(files_of(value)[0]).absolute().parent  # a group of an HDF5 file has a path of its own
        place = places.setdefault(parent, f"{FILES_FOLDER}/{len(places)}")
        for inside in sorted({*_own_files(value, parent), *_referenced(key, value, cfg, task, parent)}):
            target.copy(parent / inside, f"{place}/{inside}")
        name = f"{key}[{len(target.sources)}]" if key in target.sources else key
        target.sources[name] = Source(str(given), f"{place}/{given.absolute().relative_to(parent).as_posix()}")


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
    read = roles(task, columns_in(value, task, cfg.data.columns))
    columns = [column for column, name in read.items() if task.columns[name].file]
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


OTHER_WEIGHTS = (
    *("*.bin", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.onnx_data", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.ggml"),
    *("*.tflite", "*.pb", "*.pkl", "*.npz", "*.zip", "*.tar", "*.gz", "*.mlmodel", "*.nemo"),
)
"""Files in the folder of a model that the toolkit never reads."""
IMAGES = ("*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.pdf")
WEIGHTS, INDEX, ADAPTERS = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"
COMMIT_CHARS = 40
"""Length of a commit, by which the Hub's cache names a snapshot."""


def model_source(model: ModelConfig) -> tuple[Path, str | None]:
    """Returns the folder with a model's files, downloaded if need be, and its commit; None for a local folder."""
    from huggingface_hub import snapshot_download

    name = str(model.name_or_path)
    if kind_of(Path(name)) == "folder":
        return Path(name), None
    prepare_download(name)
    code = () if model.trust_remote_code else ("*.py",)
    skipped = ["*/*", "*.safetensors", *OTHER_WEIGHTS, *IMAGES, *code]
    try:
        # Subfolders hold other formats of the weights. Which safetensors are read follows from the other files.
        folder = Path(snapshot_download(name, revision=model.revision, ignore_patterns=skipped))
        weights = shards(folder / INDEX) if (folder / INDEX).is_file() else []
        snapshot_download(name, revision=folder.name, allow_patterns=[WEIGHTS, *weights])
    except Exception as error:  # whatever the Hub answers, or the cache lacks
        raise pretrained_error(MODEL, name, error) from error
    return folder, folder.name if len(folder.name) == COMMIT_CHARS else None


def model_file_names(folder: Path, model: ModelConfig) -> list[str]:
    """Returns the names of the files in a model's folder that a run reads."""
    name, found = str(model.name_or_path), {path.name for path in folder.iterdir() if path.is_file()}
    if ADAPTERS in found:
        base = read_json(folder / ADAPTERS).get("base_model_name_or_path")
        raise InputError(
            f"{MODEL}: {name!r} are adapters of {base!r}, so a run reads two models; merge "
            "them into their model first (`toolkit merge` for a run, `merge_and_unload` of peft)"
        )
    if "config.json" not in found:
        raise InputError(f"{MODEL}: {name!r} has no config.json in {folder}")
    _reject_code_elsewhere(read_json(folder / "config.json"), name, model.trust_remote_code)
    weights = [WEIGHTS] if WEIGHTS in found else [INDEX, *shards(folder / INDEX)] if INDEX in found else []
    missing = [each for each in weights if each not in found]
    if missing or not weights:
        what = f"lacks {', '.join(missing)}" if weights else "has no safetensors weights"
        raise InputError(f"{MODEL}: {name!r} {what} (looked in {folder})")
    skipped = (*OTHER_WEIGHTS, *IMAGES, "*.safetensors", INDEX, *(() if model.trust_remote_code else ("*.py",)))
    others = [each for each in found if not any(Path(each).match(pattern) for pattern in skipped)]
    return sorted({*weights, *(each for each in others if not each.startswith("."))})


def shards(index: Path) -> list[str]:
    """Returns the names of the files of weights that an index has, sorted."""
    return sorted({str(name) for name in read_json(index).get("weight_map", {}).values()})


def _reject_code_elsewhere(config: Mapping[str, Any], name: str, trusted: bool) -> None:
    """Refuses a model whose code is in another repository, which it names as `owner/name--module.Class`."""
    elsewhere = sorted({value.split("--")[0] for value in texts_in(config.get("auto_map")) if "--" in value})
    if trusted and elsewhere:
        raise InputError(
            f"{MODEL}: the code of {name!r} is in another repository, {', '.join(elsewhere)}, which a fetched folder "
            "cannot hold; copy the code beside the model, and give that folder"
        )


def _fetch_prepared(target: Target, cfg: Config, task: Task) -> None:
    """Reads, checks and tokenises the rows, and keeps the result in the folder, which `cfg.offline_dir` names."""
    import datasets

    from toolkit.distributed.launch import build_accelerator
    from toolkit.prepare.inputs import read_inputs

    check_settings(cfg, task)
    with written_folder(target.folder / PREPARED) as folder:
        cached = replaced(datasets.config, "HF_DATASETS_CACHE", folder)
        with cached, TemporaryDirectory(prefix="fetch-") as output:
            read_inputs(cfg, task, build_accelerator(cfg), Claimed(Path(output), None))
        made = folder / FOLDER
        for entry in [*made.iterdir()] if made.is_dir() else []:
            if entry.is_dir():
                entry.rename(folder / entry.name)
        for entry in folder.iterdir():
            if entry == made or entry.suffix == LOCK_SUFFIX:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for lock in folder.rglob(f"*{LOCK_SUFFIX}"):
            lock.unlink()
    target.add_folder(PREPARED)


COMMIT = 8
"""Characters of a commit that are shown."""


def fetch(
    task_type: type[Task], config: str, overrides: Sequence[str], folder: Path, prepare: bool
) -> tuple[Target, Fetched]:
    """Writes the model, the processor and the rows of a run into a new folder, tokenised too with `prepare`.

    Raises ConfigError if a setting is invalid; InputError if there is no such model or dataset, or the folder cannot be
    used; RunError if it cannot be written.
    """
    cfg = load_settings(task_type, config, [*overrides, "offline_dir=null"], told=Told()).config
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with OutputLock(folder):
            target = Target(folder)
            _fetch_inputs(target, cfg, task_type(cfg))
            target.keep_prepared()
            found = target.finish()
            if prepare:
                cfg = load_settings(task_type, config, [*overrides, f"offline_dir={folder}"], told=Told()).config
                _fetch_prepared(target, cfg, task_type(cfg))
                found = target.finish()
    except FileExistsError as error:
        raise InputError(f"--output: {folder} is a file; name a folder") from error
    except OSError as error:
        place = Path(str(error.filename)) if error.filename else folder
        raise RunError(f"cannot write {folder}: {place}: {why(error, place)}") from error
    return target, found


def _fetch_inputs(target: Target, cfg: Config, task: Task) -> None:
    """Writes everything that a run reads, except prepared rows."""
    model = cfg.model
    if model.name_or_path is not None:
        now = commit_of(model.name_or_path, model.revision, "model")
        source = Source(model.name_or_path, MODEL_FOLDER, model.revision, None, now)
        if not target.has(MODEL, source):
            folder, commit = model_source(replace(model, revision=source.commit or model.revision))
            for name in model_file_names(folder, model):
                target.copy(folder / name, f"{MODEL_FOLDER}/{name}")
            target.sources[MODEL] = replace(source, commit=commit)
    if cfg.data.dataset_name is not None:
        fetch_dataset(target, cfg.data)
    fetch_files(target, cfg, task)
    if not target.sources:
        raise InputError("this run reads no model, dataset or file, so there is nothing to fetch")


def lines(target: Target, found: Fetched) -> Iterator[str]:
    """Yields what the folder has, and what was done, as lines."""
    for name, reason in target.damaged.items():
        yield f"replaced: {name} {reason}" if name in found.files else f"removed: {name} {reason}"
    for key, source in found.sources.items():
        yield f"{key}: {source.value}" + (f" (commit {source.commit[:COMMIT]})" if source.commit else "")
    parts: dict[str, list[int]] = {}
    for name, entry in found.files.items():
        parts.setdefault(name.partition("/")[0], []).append(entry.bytes)
    for part, sizes in parts.items():
        yield f"  {part}: {counted(len(sizes), 'file')}, {format_bytes(sum(sizes))}"
    new = sum(found.files[name].bytes for name in target.written)
    what = f"wrote {counted(len(target.written), 'file')}, {format_bytes(new)}" if target.written else "nothing to do"
    yield f"{what}; {found.folder} has {counted(len(found.files), 'file')}"
    yield f"use it: offline_dir={found.folder}"
