"""Waiting for another process without a collective, whose time `train.ddp_timeout` limits.

Preparing rows, saving and reporting can take longer than that. The waiting processes look for a key in the store of the
process group instead.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from toolkit.base.errors import RunError
from toolkit.system.activity import task_for_all

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")
FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 0.001, 0.1
LIMIT_SECONDS = 24 * 60 * 60
"""How long processes wait; if the awaited one dies, the launcher ends them sooner."""


def wait_for_main(accelerator: Accelerator) -> None:
    """Waits until the main process has called this, too, or raises RunError after a day.

    Every process calls this the same number of times; the main process does not wait. A collective must follow: it
    waits if the store is lost, for instance when a launcher that hosts it was killed.
    """
    if accelerator.num_processes > 1:
        from torch.distributed import DistError

        with suppress(DistError):
            _meet(accelerator.is_main_process, "main")


@contextmanager
def local_main_first(accelerator: Accelerator) -> Iterator[None]:
    """Lets the first process of each node run the block before the other processes of the node begin it.

    Every process enters the block the same number of times. RunError is raised after a day.
    """
    if accelerator.num_processes == 1:
        yield
        return
    place = f"node of {accelerator.process_index - accelerator.local_process_index}"
    if not accelerator.is_local_main_process:
        _meet(False, place)
        yield
        return
    with task_for_all():
        yield
    _meet(True, place)


def from_local_main(accelerator: Accelerator, make: Callable[[], T], place: str) -> T | str:
    """Returns the result of `make` on the first process of each node, and its text on the others, which wait.

    Every process calls this the same number of times; `place` names the call.
    """
    if accelerator.num_processes == 1:
        return make()
    from torch.distributed.distributed_c10d import _get_default_store

    store, node = _get_default_store(), accelerator.process_index - accelerator.local_process_index
    turns = _turns(store)
    turns[place] += 1
    key = f"toolkit/{place}/{turns[place]}/{node}"  # of this call: the next one may come before all have read it
    with local_main_first(accelerator):
        if not accelerator.is_local_main_process:
            return store.get(key).decode()
        made = make()
        store.set(key, str(made))
        return made


def _meet(has_come: bool, place: str) -> None:
    """Notes that this process has come to a place, or waits for the one that does; each comes as often as it waits."""
    from torch.distributed.distributed_c10d import _get_default_store

    store, key = _get_default_store(), f"toolkit/turns/{place}"
    if has_come:
        store.add(key, 1)
        return
    turns = _turns(store)
    turns[key] += 1
    deadline, pause = time.monotonic() + LIMIT_SECONDS, FIRST_POLL_SECONDS
    while store.add(key, 0) < turns[key]:
        if time.monotonic() > deadline:
            raise RunError(f"the first process did not finish its work within {LIMIT_SECONDS // 3600} hours")
        time.sleep(pause)
        pause = min(2 * pause, LAST_POLL_SECONDS)


@cache
def _turns(store: Any) -> Counter[str]:
    """Returns how often this process has come to each place where it waits, or received a value."""
    return Counter()
