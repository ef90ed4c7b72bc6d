"""Detects ranks that died, are stopped, or do not come to a collective although they do not compute, and ends the run.

A thread in each rank regularly broadcasts its idle time, and the stop signal that it has received, so that all ranks
can abort an evaluation, where they share no collective. A rank that computes, reads or writes is never ended, however
long it takes; nor is one that works for all others, which may wait for a network.

Beats are datagrams and not keys in the process group's store: the first rank hosts that, as a rule, so its stop would
silence all others.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import psutil
import torch.distributed as dist

from toolkit.base.cli_errors import EXPIRED
from toolkit.base.console import report_error, warn
from toolkit.base.processes import EXIT_STALLED, Thread
from toolkit.base.run_folder import RunFolder
from toolkit.distributed.collectives import objects_of_all
from toolkit.distributed.stop import active_stop
from toolkit.system.activity import (
    SHORTAGE,
    Activity,
    Neighbour,
    end_children,
    has_task_for_all,
    heartbeat_has_begun,
    machine_id,
    waits_for_others,
)

if TYPE_CHECKING:
    from accelerate import Accelerator


LARGEST_BYTES = 65_000
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Peer:
    """A rank as the others know it."""

    rank: int
    host: str  # name of its machine
    machine: str  # identifier of the machine
    pid: int  # of its process there
    stacks: int | None  # descriptor of a file in memory for its stacks, or None
    address: tuple[str, int]  # host and port of its socket
    token: str  # secret in its run's datagrams, which tells them from those of other runs


@dataclass(frozen=True)
class Beat:
    """The state that a rank broadcasts."""

    rank: int
    idle: float = 0.0  # seconds for which it has not computed
    waits: bool = False  # whether it is inside a collective, or waits for another rank's work
    busy_for_all: bool = False  # whether the others wait for its work, which has no time limit
    left: bool = False  # whether it needs no collectives any more
    counts: dict[str, int] = field(default_factory=dict)  # number of collectives that it entered, by process group
    stalled: dict[int, str] = field(default_factory=dict)  # why the run must end, by rank
    stop: int = 0  # the stop signal that it received, or 0


class Beats:
    """Sends and receives beats of a rank by UDP, after a meeting in which all ranks exchange their addresses."""

    def __init__(self, rank: int, stacks: int | None) -> None:
        self._socket = socket.socket(_family(), socket.SOCK_DGRAM)
        self._socket.bind(("", 0))
        self._socket.setblocking(False)
        address = (_own_address(), self._socket.getsockname()[1])
        own = Peer(rank, socket.gethostname(), machine_id(), os.getpid(), stacks, address, secrets.token_hex(8))
        self.peers = {peer.rank: peer for peer in objects_of_all(own)}
        self._rank, self.token = rank, self.peers[0].token
        alone = len({peer.machine for peer in self.peers.values()}) == 1 and self._socket.family == socket.AF_INET
        self.addresses = {
            peer.rank: (LOOPBACK, peer.address[1]) if alone else peer.address
            for peer in self.peers.values()
            if peer.rank != rank
        }

    def send(self, beat: Beat) -> None:
        """Sends a beat to all other ranks; what cannot be sent is lost."""
        text = json.dumps([self.token, asdict(beat)]).encode()
        for address in self.addresses.values():
            with suppress(OSError):
                self._socket.sendto(text, address)

    def received(self, seconds: float) -> Iterator[Beat]:
        """Yields the beats of other ranks that arrive within some seconds, or before `wake`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not select.select([self._socket], [], [], left)[0]:
                return
            with suppress(OSError):
                text, address = self._socket.recvfrom(LARGEST_BYTES)
                if not text:
                    return
                if (beat := self._read(text)) is not None:
                    self.addresses[beat.rank] = address  # the way back, where a name means another address elsewhere
                    yield beat

    def _read(self, text: bytes) -> Beat | None:
        """Returns the beat in a datagram, or None if another program sent it."""
        try:
            token, values = json.loads(text)
            beat = Beat(**values)
        except (ValueError, TypeError):
            return None
        if token != self.token or beat.rank not in self.addresses:
            return None
        return Beat(**{**values, "stalled": {int(rank): why for rank, why in beat.stalled.items()}})

    def wake(self) -> None:
        """Ends the waiting of `received`, from another thread."""
        with suppress(OSError):
            self._socket.sendto(b"", (LOOPBACK, self._socket.getsockname()[1]))

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def collectives_entered() -> dict[str, int]:
    """Returns how many collectives this rank has entered, by process group."""
    from torch.distributed.distributed_c10d import _world

    counts: dict[str, int] = {}
    with suppress(RuntimeError):  # a group that is being made or destroyed
        for group in list(_world.pg_map):
            counts[group.group_name] = group._get_sequence_number_for_group()  # type: ignore[attr-defined]
    return counts


def _master() -> tuple[Any, ...]:
    host, port = os.environ.get("MASTER_ADDR", LOOPBACK), int(os.environ.get("MASTER_PORT", "1"))
    return socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]


def _family() -> int:
    family: int = _master()[0]
    return family


def _own_address() -> str:
    """Returns the address of this machine on the way to the first rank's."""
    with socket.socket(_family(), socket.SOCK_DGRAM) as probe:
        probe.connect(_master()[4])  # of a datagram socket: sends nothing
        address: str = probe.getsockname()[0]
        return address


POLL_SECONDS = 0.05
WAIT_SECONDS = 2.5
"""How long a rank may take to write its stacks after it was asked to."""

MAX_BYTES = 2**20


class StackFile:
    """A file in memory into which the main thread writes its stack at a signal, without Python's help (Linux).

    A stopped rank cannot write into the run's folder. Another rank sends it the signal, continues it, and reads the
    file of the process. Other threads are omitted: reading the frames of a running thread can crash the process.
    """

    def __init__(self) -> None:
        self.descriptor: int | None = None
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("stacks")
            faulthandler.register(_signal(), self.descriptor, all_threads=False)

    def close(self) -> None:
        """Restores what the signal does."""
        if self.descriptor is not None:
            faulthandler.unregister(_signal())
            os.close(self.descriptor)


def write_own(folder: Path, rank: int) -> None:
    """Writes the stacks of all threads of this process into a folder."""
    with suppress(OSError):
        file = _stacks_file(folder, rank)
        incomplete = file.with_suffix(".tmp")  # the process may be killed at any time
        with incomplete.open("w") as opened:
            faulthandler.dump_traceback(opened, all_threads=True)
        incomplete.replace(file)


def fetch(folder: Path, peer: Peer) -> None:
    """Makes a process of this machine, also a stopped one, write its main thread's stack, and copies it.

    Nothing is copied if the process has written the stacks of all its threads by itself.
    """
    if peer.stacks is None:
        return
    with suppress(OSError), Path(f"/proc/{peer.pid}/fd/{peer.stacks}").open("rb") as opened:  # outlives the process
        _signal_main_thread(peer.pid)
        os.kill(peer.pid, signal.SIGCONT)
        if text := _written(opened):
            with _stacks_file(folder, peer.rank).open("xb") as file:
                file.write(text)


def _signal_main_thread(pid: int) -> None:
    """Sends the signal to the main thread; one for a process that is stopped may be handled by any of its threads."""
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)
    if tgkill is None:  # a C library that lacks it
        os.kill(pid, _signal())
    else:
        tgkill(pid, pid, _signal())


def _written(file: BinaryIO) -> bytes:
    """Returns the content of a file once it has stopped growing."""
    text, until = b"", time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        before, text = text, os.pread(file.fileno(), MAX_BYTES, 0)
        if text and text == before:
            break
    return text


def _stacks_file(folder: Path, rank: int) -> Path:
    """Returns the file of a rank's stacks, whose folder exists then."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"rank{rank}.txt"


def _signal() -> int:
    """Returns the signal that asks for the stacks: one that no library uses."""
    return signal.SIGRTMIN + 5


BEATS_PER_TIMEOUT = 20
LONGEST_PAUSE = 1.0
"""Seconds between two beats, at most."""


@contextmanager
def watched_workers(timeout: float) -> Iterator[None]:
    """Watches the loader workers of a single process."""
    ended, activity = threading.Event(), Activity()

    def watch() -> None:
        pause, last = pause_between(timeout), time.monotonic()
        while not ended.wait(pause):
            now = time.monotonic()
            with suppress(*SHORTAGE):  # the process continues, or will end with a message of its own
                activity.tick(min(now - last, 2 * pause))
                end_stopped_workers(activity, timeout)
            last = now

    thread = Thread(watch, "heartbeat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def pause_between(timeout: float) -> float:
    """Returns the seconds between two beats."""
    return min(timeout / BEATS_PER_TIMEOUT, LONGEST_PAUSE)


def end_stopped_workers(activity: Activity, timeout: float) -> None:
    """Kills workers that are stopped while this process waits, so that it gets an error instead of waiting for ever."""
    for worker, seconds in activity.stopped.items():
        if seconds >= timeout:
            warn(f"process {worker.pid}, a worker of this run, is stopped (SIGSTOP) for {timeout:g} s; it is killed.")
            with suppress(psutil.Error):
                worker.kill()


END_SECONDS = 4.0
"""How long writing stacks and messages may take before the process ends without them."""
LATE = "has not come to a collective in which others wait, and does not compute"
SLOW = "has not come to a collective in which others waited until that timed out (train.ddp_timeout)"
TIMES_SENT = 3
"""Datagrams can be lost: what ends the run is sent this often."""


def _end_late() -> NoReturn:
    time.sleep(END_SECONDS)
    os._exit(EXIT_STALLED)


@contextmanager
def heartbeat(accelerator: Accelerator, timeout: float, output_dir: Path) -> Iterator[None]:
    """Watches the ranks of a run, and their loader workers, until the block ends; every rank must enter it.

    A rank may be idle for `timeout` seconds while others wait for it. Stacks are written into `output_dir`.
    """
    if accelerator.num_processes == 1:
        with watched_workers(timeout):
            yield
        return
    watch = Watch(accelerator.process_index, timeout, RunFolder(output_dir).stacks)
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
class Seen:
    """What this rank knows of a rank."""

    neighbour: Neighbour | None  # its process, if it runs on this machine
    beat: Beat  # the last one
    heard: bool = False  # whether there was one
    silent: float = 0.0  # seconds without one
    behind: float = 0.0  # seconds for which others have been in a collective that it has not entered
    condition: str = ""  # the system's answer about a silent process of this machine
    unmoved: float = 0.0  # seconds of the answers `idle`, `stopped` or `ended`


@dataclass
class Watch:
    """The thread of a rank that sends beats, receives those of others, and judges all ranks in the same way."""

    rank: int
    timeout: float
    folder: Path
    ranks: dict[int, Seen] = field(default_factory=dict)

    def start(self) -> None:
        """Meets the other ranks and starts the thread."""
        self._stack_file = StackFile()
        self.beats = Beats(self.rank, self._stack_file.descriptor)
        machine = self.beats.peers[self.rank].machine
        for peer in self.beats.peers.values():
            local = peer.machine == machine and peer.rank != self.rank
            self.ranks[peer.rank] = Seen(Neighbour(peer.pid) if local else None, Beat(peer.rank))
        self._main, self.warned = threading.get_ident(), False
        self._activity, self.ended = Activity(), threading.Event()
        self._thread = Thread(self.run, "heartbeat")
        self._thread.start()
        heartbeat_has_begun()

    def expire(self) -> None:
        """Ends the run after a collective of this rank has timed out, if it is known who kept it waiting."""
        present = self._present()
        heard = [seen.beat for seen in present.values() if seen.heard]
        slow = [beat for beat in heard if _is_behind(beat, present)] or [beat for beat in heard if not beat.waits]
        if slow:
            self.end({beat.rank: SLOW for beat in slow})

    def close(self, left: bool) -> None:
        """Ends the thread; `left` says whether this rank has done its work, so that its silence is no failure."""
        self.ended.set()
        self.beats.wake()
        self._thread.join()
        if left:
            self._leave()
        self.beats.close()
        self._stack_file.close()

    def _leave(self) -> None:
        for _ in range(TIMES_SENT):
            self.beats.send(Beat(self.rank, left=True))

    def run(self) -> None:
        """Sends and receives beats until the thread is told to end."""
        pause, last = pause_between(self.timeout), time.monotonic()
        while not self.ended.is_set():
            with suppress(*SHORTAGE):  # the rank continues, or will end with a message of its own
                for beat in self.beats.received(pause):
                    self.hear(beat)
                now = time.monotonic()
                # Time counts only while this process runs: if all are stopped and continued, none was silent.
                elapsed, last = min(now - last, 2 * pause), now
                if not dist.is_initialized():  # the ranks have left the group in agreement
                    self._leave()
                    return
                self.beat(elapsed)

    def beat(self, elapsed: float) -> None:
        """Broadcasts the state of this rank, and judges all."""
        waits, stop = waits_for_others(self._main), active_stop()
        received, idle = stop.received if stop else 0, self._activity.tick(elapsed)
        own = Beat(self.rank, idle, waits, has_task_for_all(), counts=collectives_entered(), stop=received)
        self.beats.send(own)
        end_stopped_workers(self._activity, 0.75 * self.timeout)  # before the other ranks give this one up
        self.ranks[self.rank].beat = own
        if stalled := self.judge(elapsed):
            self.end({rank: f"{why}, for {self.timeout:g} s" for rank, why in stalled.items()})

    def hear(self, beat: Beat) -> None:
        """Notes the state of a rank, and does what its beat asks for: stop, or end the run."""
        seen = self.ranks[beat.rank]
        if not seen.beat.left:
            seen.beat, seen.heard, seen.silent = beat, True, 0.0
        if beat.stop and (stop := active_stop()):
            stop.receive(beat.stop)
        if beat.stalled:
            self.end(beat.stalled)

    def judge(self, elapsed: float) -> dict[int, str]:
        """Returns the ranks because of which the run must end, and why."""
        present = self._present()
        for rank, seen in present.items():
            seen.silent += elapsed if rank != self.rank else 0.0
            self._look_at(seen, elapsed)
            late = not seen.beat.waits and _is_behind(seen.beat, present)
            seen.behind = seen.behind + elapsed if late else 0.0
        found = {rank: why for rank, seen in present.items() if (why := self._reason(seen, present))}
        return found or self._common_wait(present)

    def _present(self) -> dict[int, Seen]:
        return {rank: seen for rank, seen in self.ranks.items() if not seen.beat.left}

    def _look_at(self, seen: Seen, elapsed: float) -> None:
        """Asks the system about a process of this machine that is silent."""
        if seen.neighbour is None or seen.silent < min(1.0, self.timeout / 4):
            seen.condition, seen.unmoved = "", 0.0
            return
        seen.condition = seen.neighbour.tick(elapsed)
        seen.unmoved = 0.0 if seen.condition == "computes" else seen.unmoved + elapsed

    def _reason(self, seen: Seen, present: Mapping[int, Seen]) -> str | None:
        """Returns why a rank must be given up, or None."""
        limit, beat = self.timeout, seen.beat
        if seen.silent >= limit:
            if seen.neighbour is not None:
                # A rank whose threads are blocked can't report; use its last state.
                spared = seen.condition == "idle" and (beat.busy_for_all or beat.waits)
                return None if seen.unmoved < limit / 2 or spared else _CONDITIONS[seen.condition]
            if not seen.heard:
                self._warn_of_silence(beat.rank)
                return None
            return None if self._has_living_neighbour(beat.rank, present) else "does not answer"
        if min(beat.idle, seen.behind) >= limit and not beat.busy_for_all:
            return LATE
        return None

    def _common_wait(self, present: Mapping[int, Seen]) -> dict[int, str]:
        """Returns the ranks to blame if all have been idle for too long: those that wait for no other, or all."""
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

    def _has_living_neighbour(self, rank: int, present: Mapping[int, Seen]) -> bool:
        """Whether another rank on the machine of a silent one still answers, which then judges it better."""
        machine = self.beats.peers[rank].machine
        return any(
            seen.silent < self.timeout and self.beats.peers[other].machine == machine
            for other, seen in present.items()
            if other != rank
        )

    def _warn_of_silence(self, rank: int) -> None:
        if not self.warned:
            self.warned = True
            warn(
                f"no heartbeat of rank {rank} arrives here (UDP between the machines is blocked?): "
                "train.heartbeat_timeout cannot find ranks that stall there, only train.ddp_timeout can."
            )

    def end(self, stalled: Mapping[int, str]) -> NoReturn:
        """Tells the others, writes stacks and the message, kills stalled ranks of this machine, ends this process."""
        with suppress(RuntimeError, MemoryError):  # the system gives no more threads
            Thread(_end_late, "guard").start()
        with suppress(Exception):
            for _ in range(TIMES_SENT):
                self.beats.send(Beat(self.rank, stalled=dict(stalled)))
            write_own(self.folder, self.rank)
            for peer in self._own_charges(stalled):
                fetch(self.folder, peer)
                Neighbour(peer.pid).end()
            report_error(f"[rank {self.rank}] {self._message(stalled)}")
            end_children()
        os._exit(EXIT_STALLED)

    def _own_charges(self, stalled: Mapping[int, str]) -> list[Peer]:
        """Returns the stalled ranks of this machine if this rank is the first other one there."""
        peers = self.beats.peers
        here = [rank for rank, peer in peers.items() if peer.machine == peers[self.rank].machine]
        able = [rank for rank in here if rank not in stalled]
        return [peers[rank] for rank in here if rank in stalled] if able[:1] == [self.rank] else []

    def _message(self, stalled: Mapping[int, str]) -> str:
        lines = []
        for rank, why in sorted(stalled.items()):
            peer = self.beats.peers[rank]
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


def _is_behind(beat: Beat, present: Mapping[int, Seen]) -> bool:
    """Whether another rank has entered a collective of a group which this rank has not entered."""
    return any(
        seen.beat.counts.get(group, 0) > count for seen in present.values() for group, count in beat.counts.items()
    )
