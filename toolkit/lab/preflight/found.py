"""What a check of the machine finds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Found:
    """The result of one check.

    Args:
        what: what was checked, as the first column of a table.
        shown: what is there, for the second one; empty if it is not worth a line.
        problems: one complete message for each problem.
    """

    what: str
    shown: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Needs:
    """What a run needs of each machine, as far as it can be predicted.

    Args:
        processes: processes on the machine.
        memory: bytes of each process on its GPU, or in memory without GPUs; None if it is not known.
        disk: bytes that the run writes into its folder.
        files: number of files that it writes there.
        cache: bytes of prepared rows.
        shared: bytes of batches that data loader workers hold in shared memory.
    """

    processes: int
    memory: int | None = None
    disk: int = 0
    files: int = 100
    cache: int = 0
    shared: int = 0


def existing(path: Path) -> Path:
    """Returns the nearest folder around a path that exists, or the path itself."""
    return next(each for each in (path, *path.absolute().parents) if each.is_dir())
