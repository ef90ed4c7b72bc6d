"""The files of a pretrained model that a run's numbers rest on: their sha256, or the commit of a model of the hub."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.base.errors import RunError
from toolkit.base.files import expanded, file_sha256, read_json, sha256, write_json
from toolkit.base.offline import MANIFEST, read_fetched
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import ModelConfig

FILES = "model.files."
"""Beginning of their keys in a run's identity."""
COMMIT = "commit"
_SUFFIXES = (".json", ".jinja", ".model", ".py", ".safetensors", ".txt")


def origin(model: ModelConfig) -> dict[str, str]:
    """Returns the sha256 of each file of a local folder, by name, or the commit of a model of the hub.

    Raises OSError if a file cannot be read, or is not as `toolkit fetch` has written it.
    """
    if model.name_or_path is None:
        return {}
    folder = expanded(model.name_or_path)
    if folder.is_dir():
        if commit := _fetched_commit(folder):
            return {COMMIT: commit}
        files = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
        return {path.name: known_sha256(path) for path in files}
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):
        found = try_to_load_from_cache(model.name_or_path, "config.json", revision=model.revision)
        if isinstance(found, str):
            return {COMMIT: Path(found).parent.name}
    return {}


def _fetched_commit(folder: Path) -> str | None:
    """Returns the commit of a model of the hub in a folder of `toolkit fetch`."""
    if not (folder.parent / MANIFEST).is_file():
        return None
    fetched = read_fetched(folder.parent)
    for name, entry in fetched.files.items():
        path = fetched.folder / name
        if path.parent == fetched.folder / folder.name and known_sha256(path) != entry.sha256:
            raise OSError(errno.EIO, "its content has changed since `toolkit fetch`", str(path))
    return next((source.commit for source in fetched.sources.values() if source.path == folder.name), None)


def known_sha256(path: Path) -> str:
    """Returns the sha256 of a file, which is computed once for its inode, size and times.

    `touch` and `cp --preserve` set the time of the content, but not that of the last change of the inode.
    """
    import datasets

    status = path.stat()
    state = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    name = sha256(str(path.resolve()))
    note = Path(datasets.config.HF_DATASETS_CACHE) / "toolkit" / "files" / f"{name}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        noted = read_json(note)
        if noted["state"] == state:
            return str(noted["sha256"])
    found = file_sha256(path)
    with suppress(OSError):  # without a cache, it is computed each time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, {"file": str(path), "state": state, "sha256": found})
    return found


def changes(model: ModelConfig, before: Mapping[str, Any]) -> list[str]:
    """Returns which of the files differ from those of a run, which `before` describes; runs of older versions none."""
    try:
        now = origin(model) if before else {}
    except OSError as error:
        return [f"{error.filename}: {error.strerror}"]
    where = str(model.name_or_path)
    return [
        f"{where}: commit {now.get(name)} instead of {value}" if name == COMMIT
        else f"{Path(where) / name}: {'is missing' if name not in now else 'its content has changed'}"
        for name, value in before.items() if now.get(name) != value and (now or name != COMMIT)
    ]  # fmt: skip


def require_same_model(model: ModelConfig, run: Path) -> None:
    """Raises RunError if the pretrained model is not the one that a run was trained with."""
    if found := changes(model, read_json(RunFolder(run).facts).get("model_files", {})):
        raise RunError(
            f"{run}: its base model is not the one that it was trained with:\n  - " + "\n  - ".join(found)
            + "\nRestore these files, or name a copy of the former ones."
        )  # fmt: skip
