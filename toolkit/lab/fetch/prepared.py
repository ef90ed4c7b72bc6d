"""Prepares the rows of a run into its fetched folder, as the run itself would."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from toolkit.api.task import Task
from toolkit.base.files import written_folder
from toolkit.base.offline import PREPARED
from toolkit.config.sections import Config
from toolkit.data.row_cache import FOLDER, LOCK_SUFFIX
from toolkit.lab.fetch.folder import Target


def fetch_prepared(target: Target, cfg: Config, make_task: Callable[[Config], Task]) -> None:
    """Reads, checks and tokenises the rows, and keeps the result in the folder.

    Args:
        target: the folder, with a manifest and everything else that the run reads.
        cfg: the settings, with `offline_dir`.
        make_task: creates the recipe's task from settings.

    Raises:
        ToolkitError: if the rows or the model cannot be used.
    """
    from toolkit.checkpoint.output_folder import Claimed
    from toolkit.distributed.launch import build_accelerator
    from toolkit.prepare.inputs import read_inputs

    with written_folder(target.folder / PREPARED) as folder:
        with _cache_in(folder), TemporaryDirectory(prefix="fetch-") as output:
            read_inputs(cfg, make_task(cfg), build_accelerator(cfg), Claimed(Path(output), None))
        made = folder / FOLDER
        for entry in [*made.iterdir()] if made.is_dir() else []:
            if entry.is_dir():
                entry.rename(folder / entry.name)
        for entry in folder.iterdir():
            if entry == made or entry.suffix == LOCK_SUFFIX:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for lock in folder.rglob(f"*{LOCK_SUFFIX}"):
            lock.unlink()
    target.add_folder(PREPARED)


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """Lets rows be cached in a folder."""
    import datasets

    former = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = folder
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = former
