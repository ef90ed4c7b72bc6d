"""Runs long work on the main process alone, for instance reports and uploads."""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import RunError, ToolkitError
from toolkit.base.exits import ENDED_ELSEWHERE

if TYPE_CHECKING:
    from accelerate import Accelerator

POLL_SECONDS = 0.1
LIMIT_SECONDS = 24 * 60 * 60
"""How long the other processes wait; a main process that dies ends them sooner, through the launcher."""

_calls = itertools.count()


def main_alone(accelerator: Accelerator, function: Callable[..., object], *args: Any) -> None:
    """Runs a function on the main process while the others wait without a collective.

    `toolkit.distributed.collectives.on_main` is for short work: the other processes wait in a collective, which fails
    after `train.ddp_timeout`. Here they poll a key in the store of the process group.

    Args:
        accelerator: the run's Accelerator; every process calls this the same number of times.
        function: what to run.
        *args: its arguments.

    Raises:
        ToolkitError: the error of the main process, on every process.
        RunError: on the other processes, if the main process fails in another way or does not finish within a day.
    """
    if accelerator.num_processes == 1:
        function(*args)
        return
    from torch.distributed.distributed_c10d import _get_default_store

    store, key = _get_default_store(), f"toolkit/main_alone/{next(_calls)}"
    if accelerator.is_main_process:
        error: ToolkitError | None = RunError(ENDED_ELSEWHERE)
        try:
            function(*args)
            error = None
        except ToolkitError as own:
            error = own
            raise
        finally:
            store.set(key, pickle.dumps(error).hex())
        return
    deadline = time.monotonic() + LIMIT_SECONDS
    while not store.check([key]):
        if time.monotonic() > deadline:
            raise RunError(f"the main process did not finish its work within {LIMIT_SECONDS // 3600} hours")
        time.sleep(POLL_SECONDS)
    if (failure := pickle.loads(bytes.fromhex(store.get(key).decode()))) is not None:
        failure.shared = True
        raise failure
