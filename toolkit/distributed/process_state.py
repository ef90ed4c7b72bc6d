"""Process-wide state, which each run gets for itself and which is restored afterwards."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from toolkit.system.limits import freed_memory_kept, threads_per_process


@contextmanager
def own_process_state() -> Iterator[None]:
    """Isolates a run's process-wide state: accelerate's state, the launcher's variables, precision, threads, memory."""
    launcher = {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE_")}
    try:
        with (
            own_accelerate_state(),
            float32_precision(None),
            fitting_threads(),
            flushed_denormals(),
            freed_memory_kept(),
        ):
            yield
    finally:
        for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
            del os.environ[name]
        os.environ.update(launcher)


@contextmanager
def own_accelerate_state() -> Iterator[None]:
    """Gives a run its own accelerate state, and restores the caller's afterwards.

    accelerate stores precision, plugins and accumulation once per process, in a dictionary that all instances of a
    state class share: a second run could not use another precision, and would change a caller's Accelerator. Here the
    classes get a new dictionary for the duration of the run; existing instances keep theirs. The process group is not
    included: under a launcher it can be created only once.
    """
    from accelerate.state import AcceleratorState, GradientState

    classes = (AcceleratorState, GradientState)
    shared = [each._shared_state for each in classes]  # accelerate can clear them, but not put them back
    for each in classes:
        each._shared_state = {}
    try:
        yield
    finally:
        for each, before in zip(classes, shared, strict=True):
            each._shared_state = before


@contextmanager
def float32_precision(tf32: bool | None) -> Iterator[None]:
    """Sets the precision of float32 products, and restores it on exit.

    Args:
        tf32: whether products may use TensorFloat32 inside the block; None does not change it.
    """
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        if tf32 is not None:
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = tf32
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution


@contextmanager
def fitting_threads() -> Iterator[None]:
    """Lowers the number of torch's threads to what the process may use, unless `OMP_NUM_THREADS` says how many."""
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(before, threads_per_process(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Rounds results below the smallest normal number (1e-38 in float32) to 0 on the CPU.

    Adam's moments of rows that get no gradient any more, such as embeddings of rare tokens, shrink in every step until
    they reach such numbers, some 700 steps later, and stay there. CPUs compute with them many times more slowly.
    """
    denormal = torch.tensor([torch.finfo(torch.float32).tiny])
    before = float(denormal / 2) == 0.0
    torch.set_flush_denormal(True)  # of this thread, and of those that it starts
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restores the global random state of torch (all devices), NumPy and Python on exit."""
    python, array, tensor = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(array)
        torch.set_rng_state(tensor)
        if devices:
            torch.cuda.set_rng_state_all(devices)
