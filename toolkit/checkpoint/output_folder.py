"""Opens an output folder: locks it, so that only one run writes, checks the disk, and finds what to resume."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

from toolkit.api.run import Checkpoint
from toolkit.base.console import say
from toolkit.base.errors import CheckpointError
from toolkit.base.files import kind_of, parse_json, read_file, remove_leftovers, temporary_name, why
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.resume import decide_resume
from toolkit.checkpoint.store import NOTHING, sweep
from toolkit.config.sections import Config
from toolkit.distributed.collectives import on_every, on_main
from toolkit.distributed.stop import STOP_DEADLINE_SECONDS
from toolkit.tracking.jsonl import bring_metrics

if TYPE_CHECKING:
    from accelerate import Accelerator


held_folders: set[str] = set()
_HELD = (BlockingIOError, PermissionError)  # POSIX allows EAGAIN and EACCES
EMPTY_SECONDS = 60.0
"""Age from which an owner file without a content is that of a dead process."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_FLOCK = "hhqqi4x"
"""Linux's `struct flock`: kind, from where, start, length, process."""


class FolderInUse(CheckpointError):  # noqa: N818 - the name says it
    """Another run holds the lock of an output folder."""


class OutputLock:
    """Context manager that locks an existing output folder.

    It takes a POSIX record lock on `<output_dir>/.lock`. Forked data loader workers do not inherit it, and the kernel
    releases it whenever the process ends, so a dead run leaves no stale lock. Such a lock does not exclude a second
    lock by the same process (hence `held_folders`), and it is lost when the process closes any other descriptor of the
    file (so no other code may open it). The file is never removed, or two runs could lock two different files.

    Where the file system has no such locks (some network file systems), it creates `<output_dir>/.lock.owner` with host
    and process instead. A dead run on the same host is recognised; after one on another host, the user must delete the
    file, as the message says.

    Args:
        output_dir: the folder.
        patience_seconds: how long to wait for another run to release the lock; a run whose launcher was just killed
            needs a moment to save and exit.

    Raises:
        FolderInUse: on entering, if another run holds the lock.
        CheckpointError: on entering, if the folder cannot be locked.
    """

    def __init__(self, output_dir: Path, patience_seconds: float = 0.0) -> None:
        self._patience = patience_seconds
        files = RunFolder(output_dir.absolute())
        self.path, self._owner_file, self._removal = files.lock, files.lock_owner, files.lock_removal
        self._key = os.path.realpath(output_dir)
        self._descriptor = -1
        self._owns_file = False

    def __enter__(self) -> Self:
        if importlib.util.find_spec("fcntl") is None:
            raise CheckpointError("output folders need POSIX file locks: use Linux, macOS or WSL")
        if self._key in held_folders:
            raise FolderInUse(f"this process already runs in the output folder {self.path.parent}")
        try:
            self._descriptor = _open(self.path, os.O_CREAT)
        except OSError as error:
            raise CheckpointError(f"cannot open the lock file {self.path}: {why(error, self.path)}") from error
        owner = _this_process()
        try:
            self._wait()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, owner, 0)
        except OSError as error:
            held = FolderInUse(self._held_message()) if isinstance(error, BlockingIOError) else None
            failure = held or CheckpointError(f"cannot lock {self.path}: {why(error, self.path, len(owner))}")
            self.__exit__()
            raise failure from None
        held_folders.add(self._key)
        return self

    def __exit__(self, *exception: object) -> None:
        held_folders.discard(self._key)
        os.close(self._descriptor)
        if self._owns_file:
            self._owner_file.unlink(missing_ok=True)

    def _wait(self) -> None:
        """Takes the lock, and waits for it if another run has it."""
        deadline, waiting = time.monotonic() + self._patience, False
        while True:
            try:
                return self._lock()
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                if not waiting:
                    say(f"waiting up to {self._patience:.0f} s: {self._held_message()}")
                waiting = True
                time.sleep(0.2)

    def _lock(self) -> None:
        """Takes the lock; raises BlockingIOError if another process has it."""
        import fcntl

        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if _has_no_locks(error, self._descriptor):
                self._create_owner_file()
            elif isinstance(error, _HELD):
                raise BlockingIOError from error
            else:
                raise

    def _create_owner_file(self) -> None:
        """Creates the file that stands for a lock; raises BlockingIOError if a run has it that may be alive."""
        if is_of_dead_process(self._owner_file):
            self._remove_owner_file()
        try:
            with self._owner_file.open("xb") as file:
                self._owns_file = True
                file.write(_this_process())
        except FileExistsError as error:
            raise BlockingIOError from error

    def _remove_owner_file(self) -> None:
        """Removes the file of a dead run; if several processes try, one does, the others raise BlockingIOError."""
        turn = self._removal
        try:
            os.close(os.open(turn, os.O_CREAT | os.O_EXCL))
        except FileExistsError as error:
            if is_of_dead_process(turn):  # removing takes no time; the next attempt continues
                turn.unlink(missing_ok=True)
            raise BlockingIOError from error
        try:
            if not is_of_dead_process(self._owner_file):  # replaced since it was read
                raise BlockingIOError
            self._owner_file.unlink()
        finally:
            turn.unlink(missing_ok=True)

    def _held_message(self) -> str:
        try:
            by_name = self._owner_file.exists()
            owner = parse_json(read_file(self._owner_file) if by_name else os.pread(self._descriptor, 4096, 0))
            who = f"process {owner['pid']} on {owner['host']} since {owner['since']}"
        except (OSError, ValueError, KeyError, TypeError):  # the owner has not written its name yet
            who = "another process"
        by_hand = f". If that run has ended, delete {self._owner_file}" if self._owner_file.exists() else ""
        return (
            f"the output folder {self.path.parent} is in use by {who}: wait for that run to end, stop it, or use "
            f"another output_dir{by_hand}"
        )


def _this_process() -> bytes:
    since = datetime.now(UTC).isoformat("T", "seconds")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode()


def _open(path: Path, more_flags: int = 0) -> int:
    """Opens a lock file for reading and writing, without following links or waiting; OSError if it is not regular."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | more_flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def _has_no_locks(error: OSError, descriptor: int) -> bool:
    """Whether the file system has no locks: some then return EACCES, as for a lock that another process has."""
    if error.errno != errno.EACCES or sys.platform != "linux":
        return error.errno in _NO_LOCKS
    import fcntl

    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind: int = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0]
    except OSError:
        return True
    return kind == fcntl.F_UNLCK


def is_of_dead_process(file: Path) -> bool:
    """Whether a process of this host that has ended, or had this one's number, wrote the file or left it empty."""
    try:
        content = read_file(file)
        if not content:  # its owner's name follows at once, unless the owner has died before
            return time.time() - file.stat().st_mtime > EMPTY_SECONDS
        owner = parse_json(content)
        ended = owner["pid"] == os.getpid() or not psutil.pid_exists(owner["pid"])
        return bool(owner["host"] == socket.gethostname()) and ended
    except (OSError, ValueError, KeyError, TypeError):
        return False


def in_use(output_dir: Path) -> str | None:
    """Returns a message about the process that uses an output folder, or None; writes nothing."""
    lock = OutputLock(output_dir)
    if lock._key in held_folders:
        return f"this process already runs in the output folder {output_dir.absolute()}"
    if importlib.util.find_spec("fcntl") is None or not lock.path.exists():
        return None
    import fcntl

    if lock._owner_file.exists() and not is_of_dead_process(lock._owner_file):
        return lock._held_message()
    try:
        lock._descriptor = _open(lock.path)
    except OSError as error:
        return f"cannot open the lock file {lock.path}: {error.strerror}"
    try:
        fcntl.lockf(lock._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # or the file system has no locks, and no run has the other file
        held = isinstance(error, _HELD) and not _has_no_locks(error, lock._descriptor)
        return lock._held_message() if held else None
    finally:
        os.close(lock._descriptor)
    return None


SIGHT_SECONDS = 5.0
"""How long a rank looks for a new file; network file systems show it after a moment."""


def probe(output_dir: Path) -> None:
    """Makes the output folder and tries to write into it; raises CheckpointError if that fails."""
    file = temporary_name(output_dir / "probe")
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"probe")
        file.unlink()
    except OSError as error:
        existing = next(path for path in (output_dir, *output_dir.absolute().parents) if kind_of(path))
        reason = why(error, output_dir) if kind_of(existing) == "folder" else f"{existing} is a file"
        raise CheckpointError(
            f"output_dir: cannot write into {output_dir.absolute()}: {reason}; fix this, or set another output_dir"
        ) from error


def require_shared(accelerator: Accelerator, output_dir: Path) -> None:
    """Raises CheckpointError on every process if one does not see the main process's claimed output folder."""
    token: Path = temporary_name(output_dir / "seen")
    name, place = on_main(accelerator, _leave, token)
    try:
        on_every(accelerator, _look_for, output_dir / name, place)
    finally:
        if accelerator.is_main_process:
            token.unlink()


def _leave(token: Path) -> tuple[str, str]:
    token.touch()
    return token.name, f"{socket.gethostname()}:{token.parent.absolute()}"


def _look_for(token: Path, place: str) -> None:
    end = time.monotonic() + SIGHT_SECONDS
    while not token.exists():
        if time.monotonic() > end:
            raise CheckpointError(
                f"output_dir: rank {os.environ.get('RANK', '0')} on {socket.gethostname()} does not see the folder of "
                f"rank 0 ({place}) as {token.parent.absolute()}; it must be on a file system that all ranks share"
            )
        time.sleep(0.1)


@dataclass(frozen=True)
class Claimed:
    """An output folder that is locked by this run."""

    output_dir: Path  # the folder, writable
    resume: Checkpoint | None  # the checkpoint to resume from, or None


@contextmanager
def claim(
    cfg: Config, accelerator: Accelerator, skip: Mapping[Path, str] = NOTHING, again: bool = False
) -> Iterator[Claimed]:
    """Locks the output folder for this run on the main process and selects the checkpoint to resume from.

    `skip` maps folders of damaged checkpoints to what is wrong with each; `again` says that the run goes back to its
    newest checkpoint. Raises CheckpointError if the folder cannot be written, is in use, or holds another run, or if a
    rank does not see it.
    """
    output_dir = Path(cfg.output_dir)
    held = ExitStack()

    def take() -> Checkpoint | None:
        with suppress(OSError):  # which `probe` explains
            if in_use(output_dir) is None:  # a folder of another run fails before anything is written into it
                decide_resume(output_dir, cfg.checkpoint.resume, skip, again)
        probe(output_dir)
        held.enter_context(OutputLock(output_dir, patience_seconds=STOP_DEADLINE_SECONDS + 5))
        files = RunFolder(output_dir)
        # Each session makes it anew, and the last one moves it into the model.
        held.callback(shutil.rmtree, files.base, ignore_errors=True)
        checkpoint, messages = decide_resume(output_dir, cfg.checkpoint.resume, skip, again)
        for folder in (output_dir, files.model, files.snapshots):
            remove_leftovers(folder)
        with suppress(OSError):  # the first save tries again, with a message
            sweep(files.checkpoints)
        for message in messages:
            say(message)
        if checkpoint is not None:
            bring_metrics(RunFolder(checkpoint.path.parents[1]).metrics, files.metrics)
        return checkpoint

    with held:
        checkpoint = on_main(accelerator, take)
        if accelerator.num_processes > 1:
            require_shared(accelerator, output_dir)
        if checkpoint is not None:
            say(f"resuming from {checkpoint.path}")
        yield Claimed(output_dir, checkpoint)
