"""Heartbeats: small datagrams that each rank sends to all others, beside the collectives.

They need neither the process group, which may hang, nor its store, which ends with the launcher or the first rank.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from toolkit.distributed.collect import objects_of_all
from toolkit.system.activity import machine_id

LARGEST_BYTES = 65_000
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Peer:
    """A rank as the others know it.

    Args:
        rank: its rank.
        host: name of its machine.
        machine: identifier of the machine.
        pid: its process there.
        stacks: descriptor of a file in memory for its stacks, or None.
        address: host and port of its socket.
        token: what its datagrams must hold, so that no other run's are taken for them.
    """

    rank: int
    host: str
    machine: str
    pid: int
    stacks: int | None
    address: tuple[str, int]
    token: str


@dataclass(frozen=True)
class Beat:
    """What a rank tells the others.

    Args:
        rank: its rank.
        idle: seconds for which it has not computed.
        waits: whether it is inside a collective, or waits for another rank's work.
        busy_for_all: whether the others wait for its work, which has no time limit.
        left: whether it needs no collectives any more.
        counts: number of collectives that it entered, by process group.
        stalled: why the run must end, by rank.
        stop: the stop signal that it received, or 0.
    """

    rank: int
    idle: float = 0.0
    waits: bool = False
    busy_for_all: bool = False
    left: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    stalled: dict[int, str] = field(default_factory=dict)
    stop: int = 0


class Beats:
    """The socket of this rank, and the addresses of all. Every rank must make it.

    Args:
        rank: this rank.
        stacks: descriptor of this rank's file in memory for stacks, or None.
    """

    def __init__(self, rank: int, stacks: int | None) -> None:
        self._socket = socket.socket(_family(), socket.SOCK_DGRAM)
        self._socket.bind(("", 0))
        self._socket.setblocking(False)
        address = (_own_address(), self._socket.getsockname()[1])
        own = Peer(rank, socket.gethostname(), machine_id(), os.getpid(), stacks, address, secrets.token_hex(8))
        self.peers = {peer.rank: peer for peer in objects_of_all(own)}
        self._rank, self._token = rank, self.peers[0].token
        alone = len({peer.machine for peer in self.peers.values()}) == 1 and self._socket.family == socket.AF_INET
        self._addresses = {
            peer.rank: (LOOPBACK, peer.address[1]) if alone else peer.address
            for peer in self.peers.values()
            if peer.rank != rank
        }

    def send(self, beat: Beat) -> None:
        """Sends a beat to all other ranks; what cannot be sent is lost."""
        text = json.dumps([self._token, asdict(beat)]).encode()
        for address in self._addresses.values():
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
                beat = self._read(text)
                if beat is not None:
                    self._addresses[beat.rank] = address  # the way back, where a name means another address elsewhere
                    yield beat

    def _read(self, text: bytes) -> Beat | None:
        """Returns the beat in a datagram, or None if another program sent it."""
        try:
            token, values = json.loads(text)
            beat = Beat(**values)
        except (ValueError, TypeError):
            return None
        if token != self._token or beat.rank not in self._addresses:
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
