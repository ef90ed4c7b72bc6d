"""Checks that every process has read the same rows: files on the nodes' own disks may differ."""

from __future__ import annotations

import hashlib
import json
import socket

from toolkit.api.batch import Prepared
from toolkit.api.task import Task, state_of
from toolkit.base.errors import DataError
from toolkit.config.sections import Config
from toolkit.data.loading import CheckedRows
from toolkit.data.table import Table
from toolkit.distributed.collectives import objects_of_all

STATE = "what the task learned from the training rows"


def require_same_rows(cfg: Config, task: Task, rows: CheckedRows, data: Prepared) -> None:
    """Compares the rows of all processes; every process calls this.

    Processes that train on other rows exchange gradients without an error, and the result is wrong.

    Args:
        cfg: resolved configuration.
        task: the task, with what it learned.
        rows: this process's checked rows.
        data: the preprocessed ones.

    Raises:
        DataError: on every process, naming the ranks and the sets of rows in which they are not as on rank 0.
    """
    own = facts(cfg, task, rows, data)
    (first_host, first), *others = objects_of_all((socket.gethostname(), own))
    found = []
    for rank, (host, facts_there) in enumerate(others, start=1):
        names = [name for name in {**first, **facts_there} if first.get(name) != facts_there.get(name)]
        if names:
            shown = "; ".join(f"{name}: {first.get(name)} on rank 0, {facts_there.get(name)}" for name in names)
            found.append(f"rank {rank} (on {host}): {shown}")
    if found:
        error = DataError(
            f"not all processes have the rows of rank 0 (on {first_host}):\n  "
            + "\n  ".join(found)
            + "\nEvery process must read the same data. Copy the data files again to the nodes where they are old, or "
            "put them on a file system that all nodes share."
        )
        error.shared = True  # every rank compares the same facts
        raise error


def facts(cfg: Config, task: Task, rows: CheckedRows, data: Prepared) -> dict[str, str]:
    """Returns what must be the same on every process, by what it is about: the sets of rows, and the task's state."""
    features = {"train": data.train, **{name: part.features for name, part in data.evals.items()}}
    sets = {f"{name} features": f"{len(part):,}" for name, part in features.items()}
    sources = {f"{name} rows": _of_table(table, cfg) for name, table in rows.tables.items()}
    state = json.dumps(state_of(task), sort_keys=True, default=str)
    return {**sources, **sets, STATE: _short(hashlib.sha256(state.encode()))}


def _of_table(table: Table, cfg: Config) -> str:
    # Times of files (`stat`) and of the cache of a Hub dataset differ between nodes that have the same rows.
    content = cfg.data.train_file is not None and cfg.data.fingerprint == "content"
    digest = hashlib.sha256(table.fingerprint.encode() if content else b"")
    for values in (table.keys.inputs, table.keys.labels, table.keys.groups):
        digest.update(values.tobytes())
    return f"{len(table.rows):,} ({_short(digest)})"


def _short(digest: hashlib._Hash) -> str:
    return f"sha256 {digest.hexdigest()[:12]}"
