"""Checks that the output folder can be written and that every rank sees it, before anything else is done."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.errors import CheckpointError
from toolkit.base.files import kind_of, temporary_name, why
from toolkit.distributed.collectives import on_every, on_main

if TYPE_CHECKING:
    from accelerate import Accelerator

SIGHT_SECONDS = 5.0
"""How long a rank looks for a new file; network file systems show it after a moment."""


def probe(output_dir: Path) -> None:
    """Creates the output folder if needed, and writes and removes a file in it.

    Raises:
        CheckpointError: if the folder cannot be written, with its absolute path and the reason.
    """
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
    """Checks that every process sees the output folder of the main process, which has claimed it.

    Raises:
        CheckpointError: on every process, naming one that does not see it.
    """
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
