"""How the processes of a run are arranged: which train on the same rows, and which parts of one model they hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mesh:
    """Sizes of the dimensions, and this process's place in them.

    Rows are dealt to *data ranks*: replicas of the model, or shards of one (`fsdp`). Processes that differ only in
    their tensor or pipeline rank hold parts of the same replica and read the same rows. Whatever deals rows, counts
    items, seeds dropout, averages gradients or reports, uses `data_rank` and `data_size`, never the process's rank.

    Args:
        replicas: copies of the model.
        fsdp: processes among which each copy's parameters are sharded.
        tensor: processes among which each layer is split.
        pipeline: stages among which the layers are split.
        rank: this process's rank among all of them; tensor ranks are neighbours, pipeline stages are furthest apart.
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
    def data_size(self) -> int:
        """Number of data ranks."""
        return self.replicas * self.fsdp

    @property
    def data_rank(self) -> int:
        """Which of the data ranks' rows this process reads."""
        return self.rank // self.tensor % self.data_size

    @property
    def tensor_rank(self) -> int:
        """Which part of each layer this process holds."""
        return self.rank % self.tensor

    @property
    def pipeline_rank(self) -> int:
        """Which stage this process holds."""
        return self.rank // (self.tensor * self.data_size)

    @property
    def counts(self) -> bool:
        """Whether this process's items, losses and predictions count: one process per data rank, of the last stage."""
        return self.tensor_rank == 0 and self.pipeline_rank == self.pipeline - 1
