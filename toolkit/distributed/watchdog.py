"""Finds ranks that have died, are stopped, or do not come to a collective without computing, and ends the run.

A thread in each rank tells the others every moment for how long this rank has been idle, and which stop signal it has
received, so that all can abandon an evaluation in which they do not meet. A rank that computes, reads or
writes is never ended, however long it takes; nor is one that works for all others, which may wait for a network.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch.distributed as dist

from toolkit.base.cli_errors import EXPIRED
from toolkit.base.console import report_error, warn
from toolkit.base.processes import EXIT_STALLED
from toolkit.base.run_folder import RunFolder
from toolkit.distributed import stacks
from toolkit.distributed.beats import Beat, Beats, Peer, collectives_entered
from toolkit.distributed.stop import active_stop
from toolkit.distributed.workers import end_stopped_workers, pause_between, watched_workers
from toolkit.system.activity import (
    SHORTAGE,
    Activity,
    Neighbour,
    end_children,
    has_task_for_all,
    heartbeat_has_begun,
    waits_for_others,
)

if TYPE_CHECKING:
    from accelerate import Accelerator

END_SECONDS = 4.0
"""How long writing stacks and messages may take before the process ends without them."""
LATE = "has not come to a collective in which others wait, and does not compute"
SLOW = "has not come to a collective in which others waited until that timed out (train.ddp_timeout)"
TIMES_SENT = 3
"""Datagrams can be lost: what ends the run is sent this often."""


@contextmanager
def heartbeat(accelerator: Accelerator, timeout: float, output_dir: Path) -> Iterator[None]:
    """Watches the ranks of a run, and their loader workers, until the block ends; every rank must enter it.

    Args:
        accelerator: the run's Accelerator.
        timeout: seconds for which a rank may be idle while others wait for it.
        output_dir: the run's folder, for stacks.
    """
    if accelerator.num_processes == 1:
        with watched_workers(timeout):
            yield
        return
    watch = _Watch(accelerator.process_index, timeout, RunFolder(output_dir).stacks)
    watch.start()
    left = False
    try:
        yield
        left = True
    except RuntimeError as error:
        if EXPIRED in str(error):
            watch.expire()
        raise
    finally:
        watch.close(left)


@dataclass
class _Seen:
    """What this rank knows of a rank.

    Args:
        neighbour: its process, if it runs on this machine.
        beat: the last beat.
        heard: whether there was one.
        silent: seconds without one.
        behind: seconds for which others have been in a collective that it has not entered.
        condition: what the system says about a silent process of this machine.
        unmoved: seconds for which it said `idle`, `stopped` or `ended`.
    """

    neighbour: Neighbour | None
    beat: Beat
    heard: bool = False
    silent: float = 0.0
    behind: float = 0.0
    condition: str = ""
    unmoved: float = 0.0


@dataclass
class _Watch:
    """The thread of a rank that sends beats, receives those of others, and judges all ranks in the same way."""

    rank: int
    timeout: float
    folder: Path
    ranks: dict[int, _Seen] = field(default_factory=dict)

    def start(self) -> None:
        """Meets the other ranks and starts the thread."""
        self._stack_file = stacks.StackFile()
        self._beats = Beats(self.rank, self._stack_file.descriptor)
        machine = self._beats.peers[self.rank].machine
        for peer in self._beats.peers.values():
            local = peer.machine == machine and peer.rank != self.rank
            self.ranks[peer.rank] = _Seen(Neighbour(peer.pid) if local else None, Beat(peer.rank))
        self._main, self._warned = threading.get_ident(), False
        self._activity, self._ended = Activity(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()
        heartbeat_has_begun()

    def expire(self) -> None:
        """Ends the run after a collective of this rank has timed out, if it is known who kept it waiting."""
        present = self._present()
        heard = [seen.beat for seen in present.values() if seen.heard]
        slow = [beat for beat in heard if _is_behind(beat, present)] or [beat for beat in heard if not beat.waits]
        if slow:
            self._end({beat.rank: SLOW for beat in slow})

    def close(self, left: bool) -> None:
        """Ends the thread; `left` says whether this rank has done its work, so that nobody misses it."""
        self._ended.set()
        self._beats.wake()
        self._thread.join()
        if left:
            self._leave()
        self._beats.close()
        self._stack_file.close()

    def _leave(self) -> None:
        for _ in range(TIMES_SENT):
            self._beats.send(Beat(self.rank, left=True))

    def _run(self) -> None:
        pause, last = pause_between(self.timeout), time.monotonic()
        while not self._ended.is_set():
            with suppress(*SHORTAGE):  # the rank goes on, or will end with a message of its own
                for beat in self._beats.received(pause):
                    self._hear(beat)
                now = time.monotonic()
                # Time counts only while this process runs: if all are stopped and continued, nobody was missed.
                elapsed, last = min(now - last, 2 * pause), now
                if not dist.is_initialized():  # the ranks have left the group in agreement
                    self._leave()
                    return
                self._beat(elapsed)

    def _beat(self, elapsed: float) -> None:
        """Tells the others how this rank is, and judges all."""
        waits, stop = waits_for_others(self._main), active_stop()
        received, idle = stop.received if stop else 0, self._activity.tick(elapsed)
        own = Beat(self.rank, idle, waits, has_task_for_all(), counts=collectives_entered(), stop=received)
        self._beats.send(own)
        end_stopped_workers(self._activity, 0.75 * self.timeout)  # before the other ranks give this one up
        self.ranks[self.rank].beat = own
        if stalled := self._judge(elapsed):
            self._end({rank: f"{why}, for {self.timeout:g} s" for rank, why in stalled.items()})

    def _hear(self, beat: Beat) -> None:
        seen = self.ranks[beat.rank]
        if not seen.beat.left:
            seen.beat, seen.heard, seen.silent = beat, True, 0.0
        if beat.stop and (stop := active_stop()):
            stop.receive(beat.stop)
        if beat.stalled:
            self._end(beat.stalled)

    def _judge(self, elapsed: float) -> dict[int, str]:
        """Returns the ranks because of which the run must end, and why."""
        present = self._present()
        for rank, seen in present.items():
            seen.silent += elapsed if rank != self.rank else 0.0
            self._look_at(seen, elapsed)
            late = not seen.beat.waits and _is_behind(seen.beat, present)
            seen.behind = seen.behind + elapsed if late else 0.0
        found = {rank: why for rank, seen in present.items() if (why := self._reason(seen, present))}
        return found or self._common_wait(present)

    def _present(self) -> dict[int, _Seen]:
        return {rank: seen for rank, seen in self.ranks.items() if not seen.beat.left}

    def _look_at(self, seen: _Seen, elapsed: float) -> None:
        """Asks the system about a process of this machine that is silent."""
        if seen.neighbour is None or seen.silent < min(1.0, self.timeout / 4):
            seen.condition, seen.unmoved = "", 0.0
            return
        seen.condition = seen.neighbour.tick(elapsed)
        seen.unmoved = 0.0 if seen.condition == "computes" else seen.unmoved + elapsed

    def _reason(self, seen: _Seen, present: Mapping[int, _Seen]) -> str | None:
        """Returns why a rank must be given up, or None."""
        limit, beat = self.timeout, seen.beat
        if seen.silent >= limit:
            if seen.neighbour is not None:
                # Its last word counts for one whose threads cannot run, though it is neither stopped nor computes.
                spared = seen.condition == "idle" and (beat.busy_for_all or beat.waits)
                return None if seen.unmoved < limit / 2 or spared else _CONDITIONS[seen.condition]
            if not seen.heard:
                self._warn_of_silence(beat.rank)
                return None
            return None if self._has_living_neighbour(beat.rank, present) else "does not answer"
        if min(beat.idle, seen.behind) >= limit and not beat.busy_for_all:
            return LATE
        return None

    def _common_wait(self, present: Mapping[int, _Seen]) -> dict[int, str]:
        """Returns the ranks to blame if all have been idle for too long: those that wait for nobody, or all."""
        beats = [seen.beat for seen in present.values()]
        if any(beat.busy_for_all or beat.idle < self.timeout for beat in beats):
            return {}
        blamed = [beat for beat in beats if not beat.waits] or beats
        return {
            beat.rank: LATE
            if not beat.waits and _is_behind(beat, present)
            else "waits or sleeps while no rank computes"
            for beat in blamed
        }

    def _has_living_neighbour(self, rank: int, present: Mapping[int, _Seen]) -> bool:
        """Whether another rank on the machine of a silent one still answers, which then judges it better."""
        machine = self._beats.peers[rank].machine
        return any(
            seen.silent < self.timeout and self._beats.peers[other].machine == machine
            for other, seen in present.items()
            if other != rank
        )

    def _warn_of_silence(self, rank: int) -> None:
        if not self._warned:
            self._warned = True
            warn(
                f"no heartbeat of rank {rank} arrives here (UDP between the machines is blocked?): "
                "train.heartbeat_timeout cannot find ranks that stall there, only train.ddp_timeout can."
            )

    def _end(self, stalled: Mapping[int, str]) -> NoReturn:
        """Tells the others, writes stacks and the message, kills stalled ranks of this machine, ends this process."""
        guard = threading.Timer(END_SECONDS, os._exit, [EXIT_STALLED])
        guard.daemon = True
        with suppress(RuntimeError):  # the system gives no more threads
            guard.start()
        with suppress(Exception):
            for _ in range(TIMES_SENT):
                self._beats.send(Beat(self.rank, stalled=dict(stalled)))
            stacks.write_own(self.folder, self.rank)
            for peer in self._own_charges(stalled):
                stacks.fetch(self.folder, peer)
                Neighbour(peer.pid).end()
            report_error(f"[rank {self.rank}] {self._message(stalled)}")
            end_children()
        os._exit(EXIT_STALLED)

    def _own_charges(self, stalled: Mapping[int, str]) -> list[Peer]:
        """Returns the stalled ranks of this machine if this rank is the first other one there."""
        peers = self._beats.peers
        here = [rank for rank, peer in peers.items() if peer.machine == peers[self.rank].machine]
        able = [rank for rank in here if rank not in stalled]
        return [peers[rank] for rank in here if rank in stalled] if able[:1] == [self.rank] else []

    def _message(self, stalled: Mapping[int, str]) -> str:
        lines = []
        for rank, why in sorted(stalled.items()):
            peer = self._beats.peers[rank]
            lines.append(f"rank {rank} (process {peer.pid} on {peer.host}) {why}:")
        return "\n".join(
            [
                *lines,
                "  the run ends on all ranks. Its checkpoints are kept: continue with checkpoint.resume=auto.",
                f"  The stacks of all ranks are in {self.folder}",
                "  A rank that may wait longer without computing needs a larger train.heartbeat_timeout, one that may",
                "  compute for longer than others wait for it, a larger train.ddp_timeout.",
            ]
        )


_CONDITIONS = {
    "stopped": "is stopped (SIGSTOP)",
    "ended": "has ended without a word",
    "idle": "does not answer and does not compute",
}


def _is_behind(beat: Beat, present: Mapping[int, _Seen]) -> bool:
    """Whether another rank has entered a collective of a group which this rank has not entered."""
    return any(
        seen.beat.counts.get(group, 0) > count for seen in present.values() for group, count in beat.counts.items()
    )
