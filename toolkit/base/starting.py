"""Ranks that are stopped before their heartbeat begins, which finds them later: our own launcher looks for them."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from toolkit.base.vitals import Neighbour

FIRST_BEAT = "TOOLKIT_FIRST_BEAT"
"""Names the descriptor through which the ranks of our own launcher tell it that their heartbeat begins."""
LIMIT_SECONDS = 120.0
"""How long a rank may be stopped while others are not: the default of `train.heartbeat_timeout`, which is not known."""
LOOK_SECONDS = 1.0


def heartbeat_has_begun() -> None:
    """Tells our own launcher, if it has started this process, that it need not look for stopped ranks any more."""
    number = os.environ.pop(FIRST_BEAT, None)
    if number is not None:
        with suppress(OSError, ValueError):
            descriptor = int(number)
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, b".")
                os.close(descriptor)


class StartWatch:
    """What the launcher knows about the start of its ranks; a context manager."""

    def __init__(self) -> None:
        self._told, self.descriptor = os.pipe()
        os.set_blocking(self._told, False)
        self._ranks: list[Neighbour] = []
        self._stopped: list[float] = []
        self._since_look = 0.0

    def __enter__(self) -> StartWatch:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._told)
        os.close(self.descriptor)

    def begin(self, pids: Sequence[int]) -> None:
        """Looks at these processes from now on, in the order of their ranks."""
        self._ranks, self._stopped = [Neighbour(pid) for pid in pids], [0.0] * len(pids)

    def problem(self, elapsed: float) -> str:
        """Returns a message about ranks that were stopped for too long while others were not, or nothing.

        Args:
            elapsed: seconds since the last call, in which this process was not stopped itself.
        """
        self._since_look += elapsed
        if self._since_look < LOOK_SECONDS:
            return ""
        with suppress(BlockingIOError):
            if os.read(self._told, 1):
                self._ranks = []
        states = [rank.tick(self._since_look) for rank in self._ranks]
        all_are = set(states) == {"stopped"}  # and wait to be continued
        for rank, state in enumerate(states):
            self._stopped[rank] = self._stopped[rank] + self._since_look if state == "stopped" and not all_are else 0.0
        self._since_look = 0.0
        found = [rank for rank in range(len(states)) if self._stopped[rank] >= LIMIT_SECONDS]
        if not found:
            return ""
        names = " and ".join(f"rank {rank} (process {self._ranks[rank].pid})" for rank in found)
        return (
            f"{names} stopped (SIGSTOP) for {LIMIT_SECONDS:g} s before all ranks had met, while others waited: the run "
            "ends on all ranks. Find out what stopped it, and start the run again."
        )
