"""Random numbers of one example."""

from __future__ import annotations

import numpy as np
import torch


class RowRandom:
    """Random numbers of single examples, which depend on seed, epoch and row id, not on worker, rank or resume.

    Args:
        seed: the run's seed.
        epoch: the training epoch; -1 in evaluation, which has no augmentation but may, for instance, draw masks.
    """

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed, self._epoch = seed, torch.tensor(epoch)

    @property
    def epoch(self) -> int:
        """The epoch; workers that are already running see changes only after `share`."""
        return int(self._epoch)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def share(self) -> None:
        """Makes changes of the epoch visible to workers that run for several epochs."""
        self._epoch.share_memory_()

    @property
    def training(self) -> bool:
        """Whether these are for training rows."""
        return self.epoch >= 0

    def partner(self, row_id: int, num_rows: int) -> int:
        """Returns the row, of all training rows, that a row is mixed with in this epoch."""
        return int(self.mixing(row_id).spawn(1)[0].integers(num_rows))

    def mixing(self, row_id: int) -> np.random.Generator:
        """Returns a new generator for how a row is mixed, independent of that for its own changes."""
        return np.random.default_rng([self.seed, self.epoch + 1, row_id, 1])

    def generator(self, row_id: int) -> np.random.Generator:
        """Returns a new generator for a row; each call for the same row and epoch gives the same numbers."""
        return np.random.default_rng([self.seed, self.epoch + 1, row_id])
