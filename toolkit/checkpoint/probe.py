"""Checks that the output folder can be written, before anything else is done."""

from __future__ import annotations

from pathlib import Path

from toolkit.base.errors import CheckpointError
from toolkit.base.files import temporary_name


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
        existing = next(path for path in (output_dir, *output_dir.absolute().parents) if path.exists())
        reason = error.strerror if existing.is_dir() else f"{existing} is a file"
        raise CheckpointError(
            f"output_dir: cannot write into {output_dir.absolute()}: {reason}; fix this, or set another output_dir"
        ) from error
