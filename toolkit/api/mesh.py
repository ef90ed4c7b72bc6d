"""The arrangement of a run's processes: which rows each trains on, and which part of the model it holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mesh:
    """Sizes of the dimensions, and the position of this process in them.

    Rows are distributed over *data ranks*: replicas of the model, or shards of one (`fsdp`). Processes that differ only
    in their tensor or pipeline rank hold parts of the same replica and read the same rows. Code that distributes rows,
    counts items, seeds dropout, averages gradients or reports uses `data_rank` and `data_size`, never the rank.

    Args:
        replicas: number of copies of the model.
        fsdp: number of processes that share the parameters of each copy.
        tensor: number of processes that share each layer.
        pipeline: number of stages that share the layers.
        rank: rank of this process among all; tensor ranks are adjacent, pipeline stages are furthest apart.
    """

    replicas: int = 1
    fsdp: int = 1
    tensor: int = 1
    pipeline: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size, f"rank {self.rank} of {self.size}"

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.data_size * self.tensor * self.pipeline

    @property
    def is_split(self) -> bool:
        """Whether each copy of the model is split over several processes."""
        return self.fsdp * self.tensor * self.pipeline > 1

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension, by its name in the settings."""
        return {"replicas": self.replicas, "fsdp": self.fsdp, "tensor": self.tensor, "pipeline": self.pipeline}

    @property
    def data_size(self) -> int:
        """Number of data ranks."""
        return self.replicas * self.fsdp

    @property
    def data_rank(self) -> int:
        """The data rank whose rows this process reads."""
        return self.rank // self.tensor % self.data_size

    @property
    def tensor_rank(self) -> int:
        """The part of each layer that this process holds."""
        return self.rank % self.tensor

    @property
    def pipeline_rank(self) -> int:
        """The stage that this process holds."""
        return self.rank // (self.tensor * self.data_size)

    @property
    def counts(self) -> bool:
        """Whether this process's items, losses and predictions count: one process of the last stage per data rank."""
        return self.tensor_rank == 0 and self.pipeline_rank == self.pipeline - 1
