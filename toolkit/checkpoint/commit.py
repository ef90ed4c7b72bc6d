"""Writes a complete checkpoint: temporary folder, tensors, other files, manifest, new name, and removal of old ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from toolkit.checkpoint import store
from toolkit.checkpoint.manifest import FileEntry
from toolkit.checkpoint.planning import Plan
from toolkit.checkpoint.writing import write_groups
from toolkit.distributed.peers import Peers


@dataclass(frozen=True)
class NewCheckpoint:
    """What a checkpoint holds, apart from the training that goes on.

    Args:
        root: the run's `checkpoints` folder.
        step: number of completed optimizer steps.
        plans: the tensors.
        files: contents of all other files by their paths in the folder; used on the main process only.
        sharded: whether each process writes its share.
        keep: number of newest checkpoints to keep; None keeps all.
        best: step that is kept in addition, or None.
    """

    root: Path
    step: int
    plans: Sequence[Plan]
    files: Mapping[str, bytes]
    sharded: bool
    keep: int | None
    best: int | None

    @property
    def size(self) -> int:
        """Bytes of all tensors and files."""
        return sum(plan.size for plan in self.plans) + sum(map(len, self.files.values()))


def commit(peers: Peers, new: NewCheckpoint) -> None:
    """Writes a checkpoint, then removes surplus ones. Every process must call it.

    Raises:
        RunError: on every process, if it cannot be written.
    """
    written: dict[str, FileEntry] = {}
    with ExitStack() as transaction:
        opened = store.new_checkpoint(new.root, new.step, written, new.size)
        folder = peers.on_first(transaction.enter_context, opened)
        written |= write_groups(peers, folder, new.plans, new.sharded)
        peers.on_first(_finish, folder, new, transaction)


def _finish(folder: Path, new: NewCheckpoint, transaction: ExitStack) -> None:
    """Writes what the main process alone knows, ends the transaction, and removes surplus checkpoints."""
    with transaction:
        for name, content in new.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    store.prune(new.root, new.keep, () if new.best is None else {new.best})
