"""Complete copies of tensors that are split over processes, for which no process needs the memory."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from toolkit.base.errors import RunError
from toolkit.base.files import disk_problem, temporary_name
from toolkit.checkpoint.contents import model_group
from toolkit.checkpoint.planning import Plan, planned
from toolkit.checkpoint.writing import write_complete
from toolkit.distributed.peers import Peers, peers_of_run


def collected(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns complete tensors on the main process; every process must call it.

    They are written into a file, one after another, which the main process maps into memory and removes. So the
    operating system can free their memory and read them again, and the disk space is freed with the tensors.

    Args:
        folder: folder of the main process with space for the tensors.
        tensors: this process's tensors by name, split or not.

    Returns:
        On the main process the tensors of all processes, on the CPU; of those that share memory (tied weights), one.
        On others an empty dictionary.

    Raises:
        RunError: on every process, if the file cannot be written.
    """
    peers = peers_of_run()
    plan = planned(peers, model_group(tensors), spread=False)
    temporary = peers.on_first(_temporary, folder, plan)
    try:
        return peers.on_every(_collected, peers, temporary, plan)
    finally:
        if peers.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)


def _temporary(folder: Path, plan: Plan) -> Path:
    temporary = temporary_name(folder / "complete-model")
    try:
        temporary.mkdir()
    except OSError as error:
        raise _not_written(folder, error, plan) from error
    return temporary


def _collected(peers: Peers, folder: Path, plan: Plan) -> dict[str, Tensor]:
    file = folder / "model.safetensors"
    try:
        write_complete(peers, file, plan)
        if peers.rank:
            return {}
        with safe_open(file, framework="pt") as mapped:
            return {name: mapped.get_tensor(name) for name in plan.saved}
    except OSError as error:
        raise _not_written(folder.parent, error, plan) from error


def _not_written(folder: Path, error: Exception, plan: Plan) -> RunError:
    reason = disk_problem(error, folder.absolute(), plan.size) or error
    return RunError(
        f"cannot write a complete copy of the model into {folder.absolute()}: {reason}. Checkpoints are intact: free "
        "some space, then resume with checkpoint.resume=auto"
    )
