"""Where a study is kept: a file that several machines can share, or a database."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.errors import InputError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

JOURNAL = "study.journal"
"""The file."""
ENVIRON = "TOOLKIT_SEARCH_STORAGE"
"""Environment variable with the URL of the database for processes of trials; it may have a password in it."""


def require_optuna() -> None:
    """Refuses a search without its library.

    Raises:
        InputError: if Optuna is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise InputError("toolkit search needs optuna, which is not installed; pip install 'finetune-toolkit[search]'")


def storage_of(folder: Path, url: str | None) -> BaseStorage:
    """Opens the storage of a study.

    Raises:
        InputError: if it cannot be opened.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        if url is not None:
            return optuna.storages.get_storage(url)
        return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL)))
    except Exception as error:  # of any database
        place = "--storage" if url is not None else str(folder / JOURNAL)
        raise InputError(f"{place}: cannot be opened: {type(error).__name__}: {error}") from error


def load_study(folder: Path, name: str, url: str | None) -> Study:
    """Opens a study that exists.

    Raises:
        InputError: if it does not.
    """
    require_optuna()
    storage = storage_of(folder, url)
    import optuna

    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError as error:
        raise InputError(f"{folder}: has no trials yet, or they are in a database; set --storage URL") from error


def mend(journal: Path) -> None:
    """Removes an incomplete last line, which a machine that lost its power can leave; Optuna could not read on."""
    from optuna.storages.journal import JournalFileSymlinkLock

    if not journal.exists():
        return
    lock = JournalFileSymlinkLock(str(journal))
    lock.acquire()
    try:
        content = journal.read_bytes()
        if content and not content.endswith(b"\n"):
            with journal.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)
    finally:
        lock.release()
