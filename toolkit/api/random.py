"""Random numbers of one example."""

from __future__ import annotations

import numpy as np
import torch


class RowRandom:
    """Random numbers of single examples: f(seed, epoch, row id), whatever the worker, the rank or a resume.

    Args:
        seed: the run's seed.
        epoch: the training epoch, or -1 in evaluation, where nothing is augmented but, for instance, masks are drawn.
    """

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed, self._epoch = seed, torch.tensor(epoch)

    @property
    def epoch(self) -> int:
        """The epoch; setting it reaches workers that were started before only after `share`."""
        return int(self._epoch)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def share(self) -> None:
        """Lets workers that live longer than an epoch see it change."""
        self._epoch.share_memory_()

    @property
    def training(self) -> bool:
        """Whether these are for training rows."""
        return self.epoch >= 0

    def generator(self, row_id: int) -> np.random.Generator:
        """Returns a fresh generator for one row; every call for the same row gives the same numbers."""
        return np.random.default_rng([self.seed, self.epoch + 1, row_id])
