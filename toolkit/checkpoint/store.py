"""Checkpoints: folders that are whole or not there, of which the newest that verifies is used.

    <run>/checkpoints/step-<N>/
        model.safetensors  optimizer.safetensors  state.json  (whatever else the caller adds)
        manifest.json      size and sha256 of every file, and of itself; written last

Only the main process saves, and the run's folder is locked, so there is one writer and nothing here knows about
ranks. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_file, save_model
from torch import nn

from toolkit.api.run import Checkpoint
from toolkit.base.errors import CheckpointError, RunError
from toolkit.optim.state import load_optimizer_state, optimizer_state

FORMAT = 1
MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"
_REQUIRED = (MODEL, OPTIMIZER, STATE)
_SCALARS = "state"  # key in the header of the optimizer's file
_PREFIX, _TEMPORARY, _ASIDE = "step-", ".tmp-", ".old-"


def save(
    root: Path,
    step: int,
    model: nn.Module,
    optimizer: Any,
    state: dict[str, Any],
    extra: Callable[[Path], None] | None = None,
) -> Path:
    """Writes `root/step-<step>`; whatever happens meanwhile, the newest valid checkpoint before it stays usable.

    Checkpoints of later steps are removed once this one is complete: the run has gone back behind them (they were
    damaged, or an earlier one was asked for), and a resume must not jump onto a path that was left.

    Args:
        root: the run's `checkpoints` folder; made where it does not exist.
        step: number of optimizer steps done.
        model: the unwrapped model; tied weights are written once.
        optimizer: its optimizer, accelerate's wrapper or not.
        state: anything JSON-able with text keys; floats come back exactly, NaN and infinities too.
        extra: writes further files into the folder it is given.

    Returns:
        The checkpoint's folder.

    Raises:
        RunError: when it cannot be written (no space, no permission); what was written of it is removed.
    """
    folder = root / f"{_PREFIX}{step}"
    temporary = root / f"{_TEMPORARY}{folder.name}-{os.getpid()}"
    try:
        _restore_aside(root)
        for leftover in [*root.glob(f"{_TEMPORARY}*"), *root.glob(f"{_ASIDE}*")]:
            shutil.rmtree(leftover)
        temporary.mkdir(parents=True)
        _write_files(temporary, model, optimizer, state)
        if extra is not None:
            extra(temporary)
        _write_manifest(temporary, step)
        _commit(temporary, folder)
        for later in [path for number, path in steps(root) if number > step]:
            _remove(later)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"cannot write the checkpoint {folder.absolute()}: {error}. Checkpoints before it are untouched: free some "
            "space or mend the folder's permissions, then go on with checkpoint.resume=auto"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def prune(root: Path, keep: int | None, protect: Collection[int] = ()) -> list[Path]:
    """Removes all but the newest checkpoints; call it after `save`, whose checkpoint is then the newest.

    Args:
        root: the run's `checkpoints` folder.
        keep: how many of the newest stay, at least 1; None keeps all.
        protect: steps that stay besides them.

    Returns:
        The folders removed, oldest first.

    Raises:
        RunError: when one cannot be removed.
    """
    if keep is None:
        return []
    assert keep >= 1, "the newest checkpoint always stays"
    old = [path for step, path in steps(root)[:-keep] if step not in protect]
    try:
        for path in old:
            _remove(path)
    except OSError as error:
        raise RunError(f"cannot remove an old checkpoint: {error}") from error
    return old


def verify(folder: Path) -> list[str]:
    """Checks every byte of a checkpoint against its manifest.

    Returns:
        What is wrong, one short message per file; empty for a valid checkpoint.
    """
    try:
        files = _read_manifest(folder)["files"]
    except (OSError, ValueError) as error:
        return [f"{MANIFEST}: {_reason(error)}"]
    problems = [f"{name}: not in the manifest" for name in _REQUIRED if name not in files]
    for name, expected in files.items():
        try:
            size = (folder / name).stat().st_size
            if size != expected["size"]:
                problems.append(f"{name}: size differs ({size} bytes instead of {expected['size']})")
            elif _sha256(folder / name) != expected["sha256"]:
                problems.append(f"{name}: sha256 differs")
        except OSError as error:
            problems.append(f"{name}: {_reason(error)}")
    unexpected = [name for name in _files(folder) if name not in {*files, *_REQUIRED, MANIFEST}]
    return problems + [f"{name}: unexpected file" for name in unexpected]


def latest(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """Finds the newest valid checkpoint. Not to be called while a checkpoint is being saved.

    Args:
        root: the run's `checkpoints` folder; need not exist.

    Returns:
        The checkpoint, or None where none is valid, and one message for each newer folder that is damaged.
    """
    with contextlib.suppress(OSError):  # a folder that is read-only can still be read
        _restore_aside(root)
    found, damaged = None, []
    for _, folder in reversed(steps(root)):
        problems = verify(folder)
        if not problems:
            found = _opened(folder)
            break
        damaged.append(f"{root.name}/{folder.name} is damaged ({'; '.join(problems)})")
    instead = f"using {found.path.name}" if found else "no valid checkpoint is left"
    return found, [f"{message}; {instead}" for message in damaged]


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens the checkpoint in the folder `path`; raises CheckpointError when there is none, or it is damaged."""
    problems = verify(path) if path.is_dir() else ["there is no such folder"]
    if problems:
        raise CheckpointError(
            f"the checkpoint {path.absolute()} cannot be used ({'; '.join(problems)}); give another step-<N> folder, "
            "or checkpoint.resume=auto for the output folder's newest valid one"
        )
    return _opened(path)


def steps(root: Path) -> list[tuple[int, Path]]:
    """Returns the steps and folders of all checkpoints in `root`, valid or not, oldest first."""
    numbers = [(path.name.removeprefix(_PREFIX), path) for path in root.glob(f"{_PREFIX}*") if path.is_dir()]
    return sorted((int(number), path) for number, path in numbers if number.isdecimal())


def load_model_into(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Copies the weights into `model`, in place; raises CheckpointError, saying which, when names or shapes differ."""
    try:
        load_model(model, checkpoint.path / MODEL)
    except RuntimeError as error:
        raise CheckpointError(
            f"the weights in {checkpoint.path / MODEL} are not of this model: {error}\n"
            "Resume with the model settings that the run was started with."
        ) from error


def load_optimizer_into(checkpoint: Checkpoint, optimizer: Any, model: nn.Module) -> None:
    """Puts the optimizer's state back, bit for bit; arguments and errors are those of `load_optimizer_state`."""
    with safe_open(checkpoint.path / OPTIMIZER, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
        scalars = json.loads(file.metadata()[_SCALARS])
    load_optimizer_state(optimizer, model, tensors, scalars)


def _write_files(folder: Path, model: nn.Module, optimizer: Any, state: dict[str, Any]) -> None:
    (folder / STATE).write_text(json.dumps(state), encoding="utf-8")
    save_model(model, str(folder / MODEL))
    tensors, scalars = optimizer_state(optimizer, model)
    save_file(tensors, folder / OPTIMIZER, metadata={_SCALARS: json.dumps(scalars)})
    for name in (MODEL, OPTIMIZER):  # safetensors makes files that only their owner can read
        shutil.copymode(folder / STATE, folder / name)


def _write_manifest(folder: Path, step: int) -> None:
    """Makes all files durable, then says in the manifest what they are."""
    files = {}
    for name, path in _files(folder).items():
        _fsync(path)
        files[name] = {"size": path.stat().st_size, "sha256": _sha256(path)}
    manifest = {"format": FORMAT, "step": step, "files": files}
    manifest["sha256"] = _manifest_sha256(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _fsync(folder / MANIFEST)
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            _fsync(path)


def _commit(temporary: Path, folder: Path) -> None:
    """Moves a complete folder to its name; one that stands there goes aside until the new one is in place."""
    aside = folder.with_name(f"{_ASIDE}{folder.name}")
    if folder.exists():
        folder.rename(aside)
    temporary.rename(folder)
    _fsync(folder.parent)
    if aside.exists():
        shutil.rmtree(aside)


def _remove(folder: Path) -> None:
    """Removes a checkpoint under a temporary name, so that a removal cut short leaves no damaged checkpoint."""
    shutil.rmtree(folder.rename(folder.with_name(f"{_TEMPORARY}{folder.name}")))


def _restore_aside(root: Path) -> None:
    """Puts back a checkpoint whose replacement died between its two renames."""
    for aside in root.glob(f"{_ASIDE}{_PREFIX}*"):
        folder = root / aside.name.removeprefix(_ASIDE)
        if not folder.exists():
            aside.rename(folder)


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest without its own hash; raises ValueError with what is wrong with it."""
    content = (folder / MANIFEST).read_bytes()
    try:
        manifest: dict[str, Any] = json.loads(content)
        intact = manifest.pop("sha256") == _manifest_sha256(manifest)
    except (ValueError, KeyError, TypeError, AttributeError):
        intact = False
    if not intact:
        raise ValueError("damaged")
    if manifest["format"] != FORMAT:
        raise ValueError(f"has format {manifest['format']}, this version of the toolkit reads {FORMAT}")
    return manifest


def _opened(folder: Path) -> Checkpoint:
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    return Checkpoint(folder, _read_manifest(folder)["step"], state)


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if not path.is_dir()}


def _manifest_sha256(manifest: dict[str, Any]) -> str:
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return "missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
    return str(error)
