"""How processes that train copies of one model stay one model, by the name in the YAML."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from toolkit.base.console import say

if TYPE_CHECKING:
    from toolkit.distributed.strategies.sync import Sync
    from toolkit.engine.session import Session


def _sync() -> type[Sync]:
    from toolkit.distributed.strategies.sync import Sync

    return Sync


def _local_sgd() -> type[Sync]:
    from toolkit.distributed.strategies.local_sgd import LocalSGD

    return LocalSGD


STRATEGIES: dict[str, Callable[[], type[Sync]]] = {"sync": _sync, "local_sgd": _local_sgd}
"""Each is imported when it is asked for."""


def build_strategy(session: Session) -> Sync:
    """Builds the run's strategy; one process has nobody to agree with and trains plainly, whatever the strategy."""
    name = session.run.cfg.train.strategy
    if session.run.accelerator.num_processes == 1 and name != "sync":
        say(f"warning: train.strategy {name} needs several processes; this one trains as with sync.")
        name = "sync"
    return STRATEGIES[name]()(session)
