"""The arrangement of a run's processes: which rows each trains on, which part of the model it holds, its groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from toolkit.base.errors import ConfigError
from toolkit.config.train import ParallelConfig

SIZES = ("replicas", "fsdp", "context", "tensor", "pipeline")
"""The dimensions, by their names in the settings."""


@dataclass(frozen=True)
class Mesh:
    """Sizes of the dimensions, and the position of this process in them.

    Rows are distributed over *data ranks*: replicas of the model, or shards of one (`fsdp`). Processes that differ only
    in their context, tensor or pipeline rank hold parts of the same replica or of its inputs, and read the same rows.
    Code that distributes rows, counts items, averages gradients or reports uses `data_rank` and `data_size`, never the
    rank; code that seeds dropout uses `random_key`.

    Args:
        replicas: number of copies of the model.
        fsdp: number of processes that share the parameters of each copy.
        context: number of processes that share the positions of each sequence.
        tensor: number of processes that share each layer.
        pipeline: number of stages that share the layers.
        expert: number of neighbouring data ranks that share the experts of each layer; no factor of the processes.
        rank: rank of this process among all; tensor, then context ranks are adjacent, pipeline stages furthest apart.
    """

    replicas: int = 1
    fsdp: int = 1
    context: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size, f"rank {self.rank} of {self.size}"

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.data_size * self.context * self.tensor * self.pipeline

    @property
    def is_split(self) -> bool:
        """Whether several processes share a copy of the model, or its inputs."""
        return self.fsdp * self.context * self.tensor * self.pipeline * self.expert > 1

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension, by its name in the settings."""
        return {name: getattr(self, name) for name in (*SIZES, "expert")}

    @property
    def data_size(self) -> int:
        """Number of data ranks."""
        return self.replicas * self.fsdp

    @property
    def data_rank(self) -> int:
        """The data rank whose rows this process reads."""
        return self.rank // (self.tensor * self.context) % self.data_size

    @property
    def context_rank(self) -> int:
        """The part of each sequence's positions that this process computes."""
        return self.rank // self.tensor % self.context

    @property
    def random_key(self) -> tuple[int, ...]:
        """What the random numbers of dropout depend on, besides seed and step."""
        return (self.data_rank, self.context_rank) if self.context_rank else (self.data_rank,)

    @property
    def tensor_rank(self) -> int:
        """The part of each layer that this process holds."""
        return self.rank % self.tensor

    @property
    def pipeline_rank(self) -> int:
        """The stage that this process holds."""
        return self.rank // (self.tensor * self.context * self.data_size)

    @property
    def counts(self) -> bool:
        """Whether this process's items, losses and predictions count: one process of the last stage per data rank."""
        return self.tensor_rank == self.context_rank == 0 and self.pipeline_rank == self.pipeline - 1

    def averaging_scale(self, items: float) -> float:
        """Returns the factor of summed losses for gradients averaged over data ranks: number of data ranks / items."""
        return self.data_size / items if items else 0.0

    @staticmethod
    def of(parallel: ParallelConfig, processes: int, rank: int = 0) -> Mesh:
        """Returns the mesh of a launch.

        Args:
            parallel: the sizes; those that are not set follow from the number of processes.
            processes: number of processes that were launched.
            rank: rank of this process.

        Raises:
            ConfigError: if the sizes do not fit the number of processes.
        """
        sizes: dict[str, int | None] = {name: getattr(parallel, name) for name in SIZES}
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
                f"{keys}: these sizes need {mesh.size} processes or a multiple of them, and {number} launched; change "
                f"the sizes, or launch with --num_processes {mesh.size}"
            ])  # fmt: skip
        if mesh.data_size % parallel.expert:
            raise ConfigError([
                f"parallel.expert: received {parallel.expert}, which does not divide the number of data ranks, "
                f"{mesh.data_size} (parallel.replicas x parallel.fsdp); set one that does, or launch more processes"
            ])  # fmt: skip
        return replace(mesh, rank=rank, expert=parallel.expert)
