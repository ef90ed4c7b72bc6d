"""Checks folders: that they can be written and locked, and have the space and the inodes that a run needs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolkit.api.task import Task
from toolkit.base.console import format_bytes
from toolkit.base.errors import problems_of
from toolkit.base.files import why
from toolkit.config.sections import Config
from toolkit.data.media.cache import limit_of
from toolkit.data.staging import stage_problem
from toolkit.lab.preflight.found import Found, Needs, existing

LEAST_ROOM = 64 * 2**20
"""Bytes that must be free in each folder, whatever is known of the run."""
SHARED = Path("/dev/shm")
LEAST_FILES = 100


def folders(cfg: Config, needs: Needs) -> Iterator[Found]:
    """Yields the findings on the output folder, the cache, the temporary folder and shared memory.

    That a run may start in its output folder is checked by `toolkit.checks.run`.
    """
    room = max(LEAST_ROOM, needs.disk)
    yield _folder("output_dir", Path(cfg.output_dir), room, needs.files, "output_dir", tried=False)
    advice = "HF_HOME or HF_DATASETS_CACHE"
    yield _folder("cache", _cache(), max(LEAST_ROOM, needs.cache), LEAST_FILES, advice, locked=True)
    temporary, asked = Path(tempfile.gettempdir()), cfg.data.media_cache
    kept = 0 if asked in ("0", "auto") else limit_of(asked, temporary)
    yield _folder("temporary folder", temporary, LEAST_ROOM + kept, LEAST_FILES, "TMPDIR")
    yield _shared_memory(needs)


def stage(cfg: Config, task: Task) -> Iterator[Found]:
    """Yields the finding on the folder to which the data files are copied, if there is one."""
    if cfg.data.stage_to is not None:
        found: list[str | None] = []
        refusals = problems_of(lambda: found.append(stage_problem(cfg.data, task)))
        yield Found("data.stage_to", cfg.data.stage_to, (*refusals, *filter(None, found)))


def _cache() -> Path:
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE)


def _folder(
    what: str, folder: Path, needed: int, files: int, setting: str, tried: bool = True, locked: bool = False
) -> Found:
    """Checks one folder.

    Args:
        what: its name in the table.
        folder: the folder, or where it will be made.
        needed: bytes that are written there.
        files: number of files that are written there.
        setting: what moves it to another disk.
        tried: whether to check that files can be written.
        locked: whether to check that files can be locked.
    """
    place, problems = existing(folder), []
    use = f"set {setting} to a folder on another disk"
    if tried and (reason := _refusal(place, locked)):
        return Found(what, "", (f"{what}: {reason}; {use}",))
    free, inodes = shutil.disk_usage(place).free, _inodes(place)
    if free < needed:
        problems.append(
            f"{what}: {format_bytes(free)} are free in {place}, and about {format_bytes(needed)} are needed; free some "
            f"space, or {use}"
        )
    if inodes is not None and inodes < files:
        problems.append(
            f"{what}: the file system of {place} has room for {inodes:,} more files (inodes), and about {files:,} are "
            f"needed; remove files, or {use}"
        )
    room = "" if inodes is None else f", {inodes:,} inodes"
    about = f" of about {format_bytes(needed)} needed"
    return Found(what, f"{folder.absolute()}: {format_bytes(free)} free{about}{room}", tuple(problems))


def _inodes(folder: Path) -> int | None:
    """Returns how many more files fit; None for file systems without a fixed number."""
    space = os.statvfs(folder)
    return space.f_favail if space.f_files else None


def _refusal(folder: Path, locked: bool) -> str:
    """Returns why files in a folder cannot be written, or locked; empty if they can."""
    from filelock import FileLock, Timeout

    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".preflight-", delete=False) as file:
            name = Path(file.name)
        try:
            if locked:
                with FileLock(name, timeout=5):
                    pass
        finally:
            name.unlink(missing_ok=True)
    except Timeout:
        return f"a file in {folder} cannot be locked within 5 s"
    except NotImplementedError:
        return f"the file system of {folder} has no locks"
    except OSError as error:
        return f"{folder} cannot be written: {why(error, folder)}"
    return ""


def _shared_memory(needs: Needs) -> Found:
    if not SHARED.is_dir():
        return Found("shared memory", "")
    free, problems = shutil.disk_usage(SHARED).free, []
    if free < needs.shared:
        held = f"data loader workers hold about {format_bytes(needs.shared)} of batches there"
        advice = "lower train.dataloader_num_workers or train.dataloader_prefetch_factor, or make it larger"
        problems.append(f"{SHARED}: {format_bytes(free)} are free, and {held}; {advice}")
    about = f" of about {format_bytes(needs.shared)} needed" if needs.shared else ""
    return Found("shared memory", f"{SHARED}: {format_bytes(free)} free{about}", tuple(problems))
