"""Seeds the global random numbers."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(*key: int) -> None:
    """Seeds the global random numbers of torch, NumPy and Python from one or several integers."""
    words = np.random.SeedSequence(key).generate_state(3)
    torch.manual_seed(int(words[0]))
    np.random.seed(int(words[1]))
    random.seed(int(words[2]))
