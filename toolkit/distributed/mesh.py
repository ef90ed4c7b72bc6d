"""The mesh of the processes that were launched."""

from __future__ import annotations

from math import prod

from toolkit.api.mesh import Mesh
from toolkit.base.errors import ConfigError, problems_of
from toolkit.config.parallel_section import ParallelConfig
from toolkit.config.sections import Config


def mesh_of(parallel: ParallelConfig, processes: int, rank: int = 0) -> Mesh:
    """Returns the mesh of a launch.

    Args:
        parallel: the sizes; those that are not set follow from the number of processes.
        processes: number of processes that were launched.
        rank: rank of this process.

    Raises:
        ConfigError: if the product of the sizes is not the number of processes.
    """
    sizes = {"replicas": parallel.replicas, "fsdp": parallel.fsdp, "tensor": parallel.tensor}
    left = processes // prod(size for size in sizes.values() if size is not None)
    if parallel.zero_stage in (2, 3) and parallel.fsdp == 1:
        sizes["fsdp"], sizes["replicas"] = max(1, left), parallel.replicas or 1
    elif parallel.replicas is None:
        sizes["replicas"] = max(1, left)
    mesh = Mesh(**{name: size or 1 for name, size in sizes.items()})
    if mesh.size != processes:
        given = {name: size for name, size in sizes.items() if size != 1}
        keys = ", ".join(f"parallel.{name} ({size})" for name, size in given.items())
        number = "1 process was" if processes == 1 else f"{processes} processes were"
        raise ConfigError([
            f"{keys}: these sizes need {mesh.size} processes or a multiple of them, and {number} launched; change the "
            f"sizes, or launch with --num_processes {mesh.size}"
        ])  # fmt: skip
    return Mesh(mesh.replicas, mesh.fsdp, mesh.tensor, mesh.pipeline, rank)


def size_problems(cfg: Config, processes: int) -> list[str]:
    """Returns why the sizes in `parallel` do not fit a number of processes."""
    return problems_of(lambda: mesh_of(cfg.parallel, processes))
