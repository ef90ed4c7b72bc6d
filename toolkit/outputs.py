"""The output folder of a run: can it be written, is anybody else in it, and does a run go on from what it holds."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toolkit.checkpoint import Checkpoint, latest, open_checkpoint, steps
from toolkit.errors import CheckpointError, RunError

CHECKPOINTS = "checkpoints"
LOCK = ".lock"
BEGUN = frozenset({"config.yaml", "run.json", "processor", "base", "bad_rows.jsonl"})
"""What a run writes before it trains."""

FREE = (
    "output_dir",
    "engine",
    "trainer.callbacks",
    "train.max_steps",
    "train.num_train_epochs",
    "train.max_time",
    "train.dataloader_*",
    "train.ddp_timeout",
    "eval.*",
    "checkpoint.*",
    "tracking.*",
    # Paths may change as long as the content, which the training fingerprint stands for, is the same.
    "data.train_file",
    "data.validation_file",
    "data.test_file",
    "data.fingerprint.validation",
    "data.fingerprint.test",
    "data.preprocessing_num_workers",
    "data.max_eval_samples",
    "versions.*",
)
"""Settings (`*` stands for anything) that may change when a run goes on; a change of any other makes another run."""

_held: set[str] = set()
_NUM_SHOWN = 8


class OutputLock:
    """Context manager that keeps every other run out of an existing output folder.

    A POSIX record lock on `<output_dir>/.lock`: forked data loader workers do not inherit it, and the kernel releases
    it when the process ends in whatever way, so a dead run leaves no stale lock. Two things it does not do: refuse a
    second lock of the same process (hence `_held`), and survive that this process closes any other descriptor of the
    file (so nothing else here may open it). The file stays: removing it would let two runs lock two files.

    Args:
        output_dir: the folder.
        patience_seconds: how long to wait for another run that has it: one whose launcher was just killed needs a
            moment to save and end.

    Raises:
        CheckpointError: on entering, when another run has the folder, or it cannot be locked.
    """

    def __init__(self, output_dir: Path, patience_seconds: float = 0.0) -> None:
        self._patience = patience_seconds
        self.path = output_dir.absolute() / LOCK
        self._key = os.path.realpath(output_dir)
        self._descriptor = -1

    def __enter__(self) -> Self:
        if importlib.util.find_spec("fcntl") is None:
            raise CheckpointError("output folders are locked the POSIX way: use Linux, macOS or WSL")
        if self._key in _held:
            raise CheckpointError(f"this process already runs in the output folder {self.path.parent}")
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise CheckpointError(f"cannot open the lock file {self.path}: {error.strerror}") from error
        try:
            self._lock(time.monotonic() + self._patience)
        except OSError as error:
            held = isinstance(error, BlockingIOError | PermissionError)  # EAGAIN or EACCES, as POSIX leaves open
            message = self._held_message() if held else f"cannot lock {self.path}: {error.strerror}"
            os.close(self._descriptor)
            raise CheckpointError(message) from None
        _held.add(self._key)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat("T", "seconds")}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(owner).encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _held.discard(self._key)
        os.close(self._descriptor)

    def _lock(self, deadline: float) -> None:
        """Takes the lock, waiting for it until the deadline."""
        import fcntl

        waiting = False
        while True:
            try:
                return fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= deadline:
                    raise
                if not waiting:
                    print(f"waiting up to {self._patience:.0f} s: {self._held_message()}", flush=True)
                waiting = True
                time.sleep(0.2)

    def _held_message(self) -> str:
        try:
            owner = json.loads(os.pread(self._descriptor, 4096, 0))
            who = f"process {owner['pid']} on {owner['host']} since {owner['since']}"
        except (ValueError, KeyError, TypeError):  # it has the lock, but has not written yet
            who = "another process"
        return (
            f"the output folder {self.path.parent} is in use by {who}: wait until that run has ended, stop it, or give "
            "another output_dir"
        )


def probe(output_dir: Path) -> None:
    """Makes the output folder where it does not exist, and writes and removes a file in it.

    Raises:
        CheckpointError: when that is not possible, with the absolute path and the reason.
    """
    file = output_dir / f".probe-{os.getpid()}"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"probe")
        file.unlink()
    except OSError as error:
        existing = next(path for path in (output_dir, *output_dir.absolute().parents) if path.exists())
        reason = error.strerror if existing.is_dir() else f"{existing} is a file"
        raise CheckpointError(
            f"output_dir: cannot write into {output_dir.absolute()}: {reason}; give another one, or mend this one"
        ) from error


def decide_resume(output_dir: Path, resume: str) -> tuple[Checkpoint | None, list[str]]:
    """Decides what a run starts from; `resume` is the setting `checkpoint.resume`.

    Returns:
        The checkpoint to go on from, or None to start anew, and messages for the user.

    Raises:
        CheckpointError: when the folder holds a former run that would be mixed with this one, or the checkpoint asked
            for cannot be used.
    """
    if resume not in ("none", "auto"):
        return _from_path(output_dir, Path(resume))
    if resume == "none":
        _refuse_former_run(output_dir)
        return None, []
    if (output_dir / "model").exists() and not steps(output_dir / CHECKPOINTS):
        raise CheckpointError(
            f"checkpoint.resume=auto: {output_dir.absolute()} holds a finished run without checkpoints, which would be "
            "overwritten. Give another output_dir, or delete the folder"
        )
    checkpoint, messages = latest(output_dir / CHECKPOINTS)
    if checkpoint is None and (names := _contents(output_dir)):
        messages.append(
            f"checkpoint.resume=auto: {output_dir.absolute()} holds {_listed(names)}, but no valid checkpoint; nothing "
            "could be used, starting anew"
        )
    return checkpoint, messages


def changed_settings(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Compares the settings a run was started with to those it should go on with.

    Args:
        saved: values by dotted key, as read from JSON: the resolved configuration, `num_processes`,
            `data.fingerprint.<split>`, `versions.<package>`.
        current: the same of now.

    Returns:
        One message for each that differs and is not `FREE`, sorted by key.
    """
    now = json.loads(json.dumps(dict(current)))  # tuples become lists, as they did in what was saved
    return [
        f"{key}: the run was started {_with(saved, key)}, now {_shown(now, key)}"
        for key in sorted({*saved, *now})
        if not any(fnmatchcase(key, pattern) for pattern in FREE)
        and (key in saved, saved.get(key)) != (key in now, now.get(key))
    ]


def refuse_changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raises CheckpointError, naming them all, when `changed_settings` finds any."""
    changes = changed_settings(saved, current)
    if changes:
        title = "the run cannot go on with other settings, its numbers would not be those of one run:"
        advice = "Give these their former values, or start a new run in another output_dir."
        raise CheckpointError("\n".join([title, *(f"  - {change}" for change in changes), advice]))


def bring_metrics(former: Path, output_dir: Path) -> None:
    """Copies `metrics.jsonl` of a run that goes on in another folder."""
    source, target = former / "metrics.jsonl", output_dir / "metrics.jsonl"
    if source.exists() and not target.exists():
        shutil.copyfile(source, target)


def truncate_metrics(path: Path, step: int) -> None:
    """Cuts `metrics.jsonl` back to a step, atomically; a missing file is fine.

    Keeps the whole lines whose `step` is at most this, and so drops a last line that was torn when the run died.

    Raises:
        RunError: when the file cannot be rewritten.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if not path.exists():
            return
        kept = [line + b"\n" for line in path.read_bytes().split(b"\n") if _step(line) <= step]
        with temporary.open("wb") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot cut {path.absolute()} back to step {step}: {error.strerror}") from error


def _from_path(output_dir: Path, path: Path) -> tuple[Checkpoint, list[str]]:
    """Opens the checkpoint at `path`, or the newest valid one where `path` is a run or its checkpoints folder."""
    messages: list[str] = []
    root = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    if steps(root):
        checkpoint, messages = latest(root)
        if checkpoint is None:
            raise CheckpointError("\n".join([f"checkpoint.resume: nothing in {root.absolute()} is usable:", *messages]))
        messages.append(f"checkpoint.resume: using the newest valid checkpoint in {path}, {checkpoint.path.name}")
    else:
        checkpoint = open_checkpoint(path)
    own = (output_dir / CHECKPOINTS).resolve()
    if checkpoint.path.resolve().parent != own:
        _refuse_former_run(output_dir)
    elif later := [folder.name for step, folder in steps(own) if step > checkpoint.step]:
        messages.append(f"going back to step {checkpoint.step}: the next save will remove {', '.join(later)}")
    return checkpoint, messages


def _refuse_former_run(output_dir: Path) -> None:
    names = _contents(output_dir)
    if names:
        raise CheckpointError(
            f"the output folder {output_dir.absolute()} is not empty, it holds {_listed(names)}. Give another "
            "output_dir, go on with the run that is there (checkpoint.resume=auto), or delete the folder"
        )


def _contents(output_dir: Path) -> list[str]:
    names = {path.name for path in output_dir.glob("*")} - {LOCK}
    return [] if names <= BEGUN else sorted(names)  # a run that failed before its first step left nothing to lose


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more


def _with(settings: Mapping[str, Any], key: str) -> str:
    return f"with {_shown(settings, key)}" if key in settings else "without it"


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(settings[key], ensure_ascii=False) if key in settings else "it is not there"


def _step(line: bytes) -> float:
    """Returns the step of a metrics line, infinity for what is no such line."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
