"""The mesh of the processes that were launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.api.mesh import Mesh

if TYPE_CHECKING:
    from accelerate import Accelerator


def mesh_of(accelerator: Accelerator) -> Mesh:
    """Returns the mesh of a launch: every process is a replica."""
    return Mesh(replicas=accelerator.num_processes, rank=accelerator.process_index)
