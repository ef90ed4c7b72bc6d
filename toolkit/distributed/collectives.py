"""Sums over ranks, and functions that run on the main process or on every process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from toolkit.api.mesh import Mesh
from toolkit.base.errors import ToolkitError
from toolkit.system.activity import task_for_all
from toolkit.system.phases import phase
from toolkit.system.rank_order import wait_for_main

if TYPE_CHECKING:
    from accelerate import Accelerator

    from toolkit.config.train import TrainConfig


T = TypeVar("T")


def on_main(accelerator: Accelerator, function: Callable[..., T], *args: Any) -> T:
    """Runs a function on the main process and returns its result, or raises its error, on every process.

    Args:
        accelerator: the run's Accelerator.
        function: what to run; its result must be picklable.
        *args: its arguments.

    Raises:
        ToolkitError: the error of the main process, on every process, so that none waits.
    """
    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            with task_for_all():
                outcome = [function(*args), None]
        except ToolkitError as failure:
            outcome = [None, failure]
    if accelerator.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        wait_for_main(accelerator)  # its work may take longer than a collective
        broadcast_object_list(outcome)
    result, error = outcome
    if error is not None:
        error.shared = True
        raise error
    return result


def on_every(accelerator: Accelerator, function: Callable[..., T], *args: Any) -> T:
    """Runs a function on every process; an error on one of them is raised on all, so that none waits.

    Args:
        accelerator: the run's Accelerator.
        function: what to run; it must not need the other processes.
        *args: its arguments.

    Raises:
        ToolkitError: the error of the first process that had one.
    """
    result: Any = None
    errors: list[ToolkitError | None] = [None]
    try:
        with task_for_all():
            result = function(*args)
    except ToolkitError as failure:
        errors = [failure]
    if accelerator.num_processes > 1:
        from accelerate.utils import gather_object

        errors = gather_object(errors)
    for error in errors:
        if error is not None:
            error.shared = accelerator.num_processes > 1
            raise error
    return result


def collective_seconds(train: TrainConfig) -> float:
    """Returns how long a rank may wait in a collective: so long that the heartbeat names those that stall before."""
    return max(train.ddp_timeout, 1.25 * train.heartbeat_timeout + 1)


def sum_dtype(device: torch.device) -> torch.dtype:
    """Returns the widest floating-point type of a device, for sums."""
    return torch.float32 if device.type == "mps" else torch.float64


def all_sum(accelerator: Accelerator, *values: float) -> list[float]:
    """Sums each value over all processes; returns the same sums on each."""
    if accelerator.num_processes == 1:
        return list(values)
    with phase("exchange"):
        tensor = torch.tensor(values, dtype=sum_dtype(accelerator.device), device=accelerator.device)
        return accelerator.reduce(tensor, reduction="sum").tolist()


def data_sum(accelerator: Accelerator, mesh: Mesh, *values: float) -> list[float]:
    """Sums each value over data ranks; returns the same sums on every process.

    Each data rank counts once: of the processes that hold parts of a replica, one contributes its values.
    """
    return all_sum(accelerator, *(values if mesh.counts else [0.0] * len(values)))
