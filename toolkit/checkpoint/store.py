"""Saves, finds and removes the checkpoints of a run. A checkpoint is either complete or absent.

    <run>/checkpoints/step-<N>/
        model.safetensors  optimizer.safetensors  state.json  (and what callbacks and processors add)
        manifest.json      size and sha256 of every file, and of itself; written last

With `checkpoint.format: sharded`, each `<name>.safetensors` is a folder `<name>/` with one file of each process.

The main process runs a transaction (`new_checkpoint`) in the run's locked folder. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from toolkit.api.run import Checkpoint
from toolkit.base.console import warn
from toolkit.base.errors import CheckpointError, RunError
from toolkit.base.files import disk_problem, read_json, sync
from toolkit.base.run_folder import CheckpointFolder
from toolkit.checkpoint.lock import require_own
from toolkit.checkpoint.manifest import STEP_PREFIX, FileEntry, read_manifest, reason, verify, write_manifest

_TEMPORARY, _ASIDE = ".tmp-", ".old-"
NOTHING: Mapping[Path, str] = MappingProxyType({})
_NO_HASHES: Mapping[str, FileEntry] = MappingProxyType({})


@contextlib.contextmanager
def new_checkpoint(
    root: Path, step: int, written: Mapping[str, FileEntry] = _NO_HASHES, size: int | None = None
) -> Iterator[Path]:
    """Creates the checkpoint `root/step-<step>` from the files written into a temporary folder inside the block.

    When the block ends, every file is flushed to disk and listed in the manifest, and the folder is renamed. The
    previous checkpoint stays usable at all times; after an error the temporary folder is removed. The main process
    runs the transaction; other ranks may write into the folder too, but must finish before the block ends.

    Checkpoints of later steps are then removed: they exist if the run was resumed from an earlier step, and a later
    resume must not use them.

    Sizes and hashes of files that are hashed while they are `written` are added inside the block; `size` is in bytes,
    if it is known.

    Raises:
        RunError: if the checkpoint cannot be written (no space, no permission).
    """
    folder = root / f"{STEP_PREFIX}{step}"
    temporary = root / f"{_TEMPORARY}{folder.name}"
    require_own(root.parent)
    try:
        sweep(root)
        temporary.mkdir(parents=True)
        yield temporary
        _make_readable(temporary)
        write_manifest(temporary, step, written)
        require_own(root.parent)
        _commit(temporary, folder)
        for later in [path for number, path in steps(root) if number > step]:
            _remove(later)
    except OSError as error:
        raise not_written(folder, error, size) from error
    finally:
        with contextlib.suppress(RunError):
            require_own(root.parent)
            shutil.rmtree(temporary, ignore_errors=True)


def sweep(root: Path) -> None:
    """Restores or removes what a killed run left beside its checkpoints; only the run that owns the folder may."""
    for aside, folder in _interrupted(root):
        aside.rename(folder)
    for leftover in [*root.glob(f"{_TEMPORARY}*"), *root.glob(f"{_ASIDE}*")]:
        shutil.rmtree(leftover, ignore_errors=True)


def not_written(folder: Path, error: Exception, size: int | None = None) -> RunError:
    """Returns the error for a checkpoint of `size` bytes that cannot be written into its (temporary) folder."""
    final = folder.with_name(folder.name.removeprefix(_TEMPORARY)).absolute()
    reason = disk_problem(error, final.parent, size) or error
    return RunError(
        f"cannot write the checkpoint {final}: {reason}. Earlier checkpoints are intact: free some "
        "space or fix the folder's permissions, then resume with checkpoint.resume=auto"
    )


def not_restored(path: Path, part: object, error: Exception) -> CheckpointError:
    """Returns the error for a checkpoint whose state of a strategy or callback cannot be used."""
    return CheckpointError(
        f"{path}: the state of {type(part).__name__} cannot be restored ({type(error).__name__}: {error}); use another "
        "checkpoint"
    )


def prune(root: Path, keep: int | None, protect: Collection[int] = ()) -> list[Path]:
    """Removes all but the newest `keep` checkpoints (None: all) and those of protected steps; returns them."""
    if keep is None:
        return []
    assert keep >= 1, "the newest checkpoint always stays"
    require_own(root.parent)
    old = [path for step, path in steps(root)[:-keep] if step not in protect]
    for path in old:
        try:
            _remove(path)
        except OSError as error:  # the new one is complete
            warn(f"cannot remove an old checkpoint: {disk_problem(error, root) or error}")
    return old


def prune_behind(checkpoint: Path, keep: int | None, protect: Collection[int] = ()) -> None:
    """Prunes as `prune` behind a loaded checkpoint if it is the newest; leaves to the next save what cannot be removed.

    A run that ended between a save and this removal has left one too many.
    """
    root = checkpoint.parent
    if [path for _, path in steps(root)[-1:]] == [checkpoint]:
        prune(root, keep, protect)


def latest(root: Path, skip: Mapping[Path, str] = NOTHING) -> tuple[Checkpoint | None, list[str]]:
    """Finds the newest valid checkpoint in a `checkpoints` folder; must not run while a checkpoint is being saved.

    Large tensor files are verified when they are loaded. If that raises `DamagedCheckpoint`, call this function again
    with the damaged checkpoint in `skip` (folders, and what is wrong with each).

    Returns:
        The checkpoint, or None if none is valid, and one message for each newer damaged folder.
    """
    found, damaged = None, []
    there = dict(steps(root)) | {_step_of(folder): aside for aside, folder in _interrupted(root)}
    for _, folder in sorted(there.items(), reverse=True):
        found, problems = _opened(folder, skip)
        if found is not None:
            break
        if folder.exists():  # or its run has removed it meanwhile
            damaged.append(f"{root.name}/{folder.name} is damaged ({'; '.join(problems)})")
    instead = f"using {found.path.name}" if found else "no valid checkpoint is left"
    return found, [f"{message}; {instead}" for message in damaged]


def open_checkpoint(path: Path, skip: Mapping[Path, str] = NOTHING) -> Checkpoint:
    """Opens the checkpoint in the folder `path`; large tensor files are verified when they are loaded.

    Raises CheckpointError if the folder does not exist or is damaged, or is in `skip`.
    """
    found, problems = _opened(path, skip) if path.is_dir() else (None, ["there is no such folder"])
    if found is None:
        raise CheckpointError(
            f"the checkpoint {path.absolute()} cannot be used ({'; '.join(problems)}); use another step-<N> folder, "
            "or checkpoint.resume=auto for the newest valid checkpoint of the output folder"
        )
    return found


def steps(root: Path) -> list[tuple[int, Path]]:
    """Returns the steps and folders of all checkpoints in `root`, valid or not, oldest first."""
    folders = [path for path in root.glob(f"{STEP_PREFIX}*") if path.is_dir()]
    return sorted((_step_of(path), path) for path in folders if path.name.removeprefix(STEP_PREFIX).isdecimal())


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix(STEP_PREFIX))


def _interrupted(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yields checkpoints moved aside whose replacement was interrupted between the two renames, and their folders."""
    for aside in root.glob(f"{_ASIDE}{STEP_PREFIX}*"):
        folder = root / aside.name.removeprefix(_ASIDE)
        if not folder.exists():
            yield aside, folder


def _opened(folder: Path, skip: Mapping[Path, str]) -> tuple[Checkpoint | None, list[str]]:
    """Returns a checkpoint, or None and what is wrong with it."""
    problems = [skip[folder]] if folder in skip else verify(folder, large_files=False)
    if problems:
        return None, problems
    state = CheckpointFolder(folder).state
    try:
        step, content = read_manifest(folder).step, read_json(state)
    except (OSError, ValueError) as error:
        return None, [f"{state.name}: {reason(error)}"]
    train = content.get("train") if isinstance(content, Mapping) else None
    if isinstance(train, Mapping) and train.get("step", step) != step:
        return None, [f"{state.name}: is of step {train['step']!r}, not of the folder's"]
    return Checkpoint(folder, step, content), []


def _make_readable(folder: Path) -> None:
    """Gives all files the folder's read permissions; safetensors creates files that only the owner can read."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if not path.is_dir():
            path.chmod(mode)


def _commit(temporary: Path, folder: Path) -> None:
    """Renames a complete folder; an existing folder is moved aside until the new one is in place."""
    aside = folder.with_name(f"{_ASIDE}{folder.name}")
    if folder.exists():
        folder.rename(aside)
    temporary.rename(folder)
    sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Removes a checkpoint after renaming it, so that an interrupted removal leaves no damaged checkpoint."""
    renamed = folder.rename(folder.with_name(f"{_TEMPORARY}{folder.name}"))
    sync(folder.parent)  # or a power loss might leave a checkpoint of this name without its files
    shutil.rmtree(renamed)
