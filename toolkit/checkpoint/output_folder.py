"""Opens an output folder for a run: locks it, tries to write, looks for it on all ranks, finds what to resume."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.api.run import Checkpoint
from toolkit.base.console import say
from toolkit.base.errors import CheckpointError
from toolkit.base.files import kind_of, remove_leftovers, temporary_name, why
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.lock import OutputLock, in_use
from toolkit.checkpoint.resume import decide_resume
from toolkit.checkpoint.store import NOTHING, sweep
from toolkit.config.sections import Config
from toolkit.distributed.collectives import on_every, on_main
from toolkit.distributed.stop import STOP_DEADLINE_SECONDS
from toolkit.tracking.jsonl import bring_metrics

if TYPE_CHECKING:
    from accelerate import Accelerator


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
        with suppress(OSError):  # the first save tries again, with a message
            sweep(files.checkpoints)
        # Each session makes it anew, and the last one moves it into the model.
        held.callback(shutil.rmtree, files.base, ignore_errors=True)
        checkpoint, messages = decide_resume(output_dir, cfg.checkpoint.resume, skip, again)
        for folder in (output_dir, files.model, files.snapshots):
            remove_leftovers(folder)
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
