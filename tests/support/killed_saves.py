"""Kills runs in a save: `python killed_saves.py OUTPUT_DIR KILLS SEED PROCESSES [section.key=value ...]`.

Ranks are forked from this process, which has imported everything and started no thread, and the writing of those that
will be killed is slowed.
Prints as JSON how many were killed, and how many of these with a checkpoint in flight.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import transformers.models.bert.modeling_bert  # noqa: F401
from runs import train
from stopping import DROPOUT
from torch import Tensor

import toolkit.engine.loop
import toolkit.engine.trainer  # noqa: F401
from toolkit.checkpoint import writing
from toolkit.checkpoint.manifest import verify
from toolkit.checkpoint.store import steps
from toolkit.system.launcher import rank_environments, reserved_port

SETTINGS = (*DROPOUT, "checkpoint.save_total_limit=2", "checkpoint.async_save=true", "checkpoint.resume=auto")
SECONDS_PER_TENSOR = 0.003
LONGEST_SECONDS = 1.0
"""Time between the beginning of a save and the kill, at most; a save takes about half of it."""


def write_slowly() -> None:
    """Makes writing a tensor take some time, during which other threads run."""
    write_file = writing.write_file

    def slow(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        for tensor in tensors:
            time.sleep(SECONDS_PER_TENSOR)
            yield tensor

    writing.write_file = lambda path, entries, tensors, metadata: write_file(path, entries, slow(tensors), metadata)


def fork_ranks(output: Path, processes: int, settings: Sequence[str], slow: bool) -> list[int]:
    """Starts a run on some processes, whose writing is slowed or not; returns their ids."""
    ranks = []
    with reserved_port() as held:
        for environ in rank_environments(processes, held.getsockname()[1], -1) if processes > 1 else [{}]:
            child = os.fork()
            if child == 0:
                held.close()
                os.environ.update(environ)
                code = 1
                try:
                    if slow:
                        write_slowly()
                    train("reviews", output, *SETTINGS, *settings)
                    code = 0
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            ranks.append(child)
    return ranks


def ended(ranks: Sequence[int], wait: bool = False) -> bool:
    """Returns whether all ranks have ended by themselves.

    Raises:
        AssertionError: if one has failed.
    """
    for rank in list(ranks):
        pid, status = os.waitpid(rank, 0 if wait else os.WNOHANG)
        if pid == 0:
            return False
        assert status == 0, f"a rank ended with status {status}"
        wait = True  # the others end, too
    return True


def kill_in_flight(ranks: Sequence[int], checkpoints: Path, seconds: float) -> bool | None:
    """Kills ranks some time after a save has begun; returns whether it was under way, None if the run ended before."""
    begun = time.time()
    while not any(_made(path) > begun for path in checkpoints.glob(".tmp-step-*")):
        if ended(ranks):
            return None
        time.sleep(0.002)
    time.sleep(seconds)
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    for rank in ranks:
        os.waitpid(rank, 0)
    return bool([*checkpoints.glob(".tmp-step-*")])


def _made(path: Path) -> float:
    try:
        return path.stat().st_ctime
    except FileNotFoundError:
        return 0.0


def main(output: Path, kills: int, seed: int, processes: int, settings: Sequence[str]) -> None:
    """Kills a run some times, then lets it end; a checkpoint must be valid after each kill."""
    chance, killed, in_flight = random.Random(seed), 0, 0
    checkpoints = output / "checkpoints"
    for number in range(kills):
        engine = ("loop", "trainer")[number % 2]
        ranks = fork_ranks(output, processes, [*settings, f"engine={engine}"], slow=True)
        found = kill_in_flight(ranks, checkpoints, chance.uniform(0, LONGEST_SECONDS))
        if found is None:
            break
        killed += 1
        in_flight += found
        problems = {path.name: verify(path) for _, path in steps(checkpoints)}
        assert not any(problems.values()), problems
    assert ended(fork_ranks(output, processes, settings, slow=False), wait=True)
    print(json.dumps({"killed": killed, "in_flight": in_flight}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5:])
