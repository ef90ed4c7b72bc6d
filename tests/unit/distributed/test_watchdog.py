"""Which ranks are given up, from what is known of them; also those of other machines."""

from __future__ import annotations

import errno
import json
import socket
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from toolkit.config.train import TrainConfig
from toolkit.distributed.collectives import collective_seconds
from toolkit.distributed.stop import StopSignal
from toolkit.distributed.watchdog import LATE, SLOW, Beat, Beats, Peer, Seen, Watch
from toolkit.system.activity import Neighbour

TIMEOUT = 10.0


class Process(Neighbour):
    """A process in a given state."""

    def __init__(self, state: str) -> None:
        self.state = state

    def tick(self, elapsed: float) -> str:
        return self.state


def watch(*machines: str) -> Watch:
    """Returns the watch of rank 0, with one rank on each machine; none has been idle or silent so far."""
    made = Watch(0, TIMEOUT, Path("unused"))
    made.warned = False
    made.beats = Beats.__new__(Beats)
    made.beats.peers = {
        rank: Peer(rank, machine, machine, rank, None, ("", 0), "") for rank, machine in enumerate(machines)
    }
    made.ranks = {rank: Seen(None, Beat(rank, counts={"0": 5}), heard=True) for rank in range(len(machines))}
    return made


def judged(made: Watch, seconds: float = 1.5 * TIMEOUT, beats: tuple[int, ...] = ()) -> dict[int, str]:
    """Returns the verdict after some seconds, during which some ranks send beats."""
    found: dict[int, str] = {}
    for _ in range(int(seconds)):
        for rank in beats:
            made.ranks[rank].silent = 0.0
        found = found or made.judge(1.0)
    return found


def say(made: Watch, rank: int, **what: object) -> None:
    made.ranks[rank].beat = replace(made.ranks[rank].beat, **what)


def test_a_rank_that_is_late_and_idle_is_given_up() -> None:
    made = watch("a", "b")
    say(made, 0, counts={"0": 6}, waits=True, idle=99.0)
    say(made, 1, idle=99.0)
    assert judged(made, beats=(1,)) == {1: LATE}
    assert judged(made, TIMEOUT / 2, beats=(1,)) == {1: LATE}  # and stays so


@pytest.mark.parametrize("excuse", [{"idle": 1.0}, {"busy_for_all": True}, {"waits": True}, {"left": True}])
def test_a_rank_with_an_excuse_is_not(excuse) -> None:
    made = watch("a", "b", "c")
    say(made, 0, counts={"0": 6}, waits=True, idle=99.0)
    say(made, 2, counts={"0": 6}, waits=True)  # computes
    say(made, 1, **{"idle": 99.0, **excuse})
    assert judged(made, beats=(1, 2)) == {}


def test_if_all_wait_those_that_wait_for_nobody_are_blamed() -> None:
    made = watch("a", "b", "c")
    for rank in range(3):
        say(made, rank, idle=99.0, waits=rank != 2)
    assert list(judged(made, beats=(1, 2))) == [2]
    say(made, 2, waits=True)
    assert list(judged(made, beats=(1, 2))) == [0, 1, 2]
    say(made, 0, busy_for_all=True)
    assert judged(made, beats=(1, 2)) == {}


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("stopped", "is stopped (SIGSTOP)"),
        ("ended", "has ended without a word"),
        ("idle", "does not answer and does not compute"),
        ("computes", None),
    ],
)
def test_of_a_silent_rank_here_the_system_knows_why(state, verdict) -> None:
    made = watch("a", "a")
    made.ranks[1].neighbour = Process(state)
    assert judged(made, TIMEOUT - 1) == {}
    assert judged(made) == ({} if verdict is None else {1: verdict})


def test_a_silent_rank_elsewhere_is_judged_by_its_neighbours_if_it_has_any() -> None:
    made = watch("a", "b", "b")
    assert judged(made, beats=(2,)) == {}
    assert judged(made) == {1: "does not answer", 2: "does not answer"}


def test_a_rank_that_was_never_heard_is_not_given_up_but_said(caplog) -> None:
    made = watch("a", "b")
    made.ranks[1].heard = False
    assert judged(made, 3 * TIMEOUT) == {}
    assert caplog.text.count("no heartbeat of rank 1 arrives here") == 1


@pytest.mark.parametrize(
    ("beats", "blamed"),
    [
        ({1: {"counts": {"0": 6}, "waits": True}, 2: {"waits": False}}, [2]),  # 2 is behind
        ({1: {"counts": {"0": 6}, "waits": True}, 2: {"counts": {"0": 6}}}, [2]),  # a message, which is not counted
        ({1: {"waits": True}, 2: {"waits": True}}, [1, 2]),
        ({1: {"counts": {"0": 6}, "waits": True}, 2: {"counts": {"0": 6}, "waits": True}}, []),
        ({1: {"counts": {"0": 6}, "waits": True}, 2: {"left": True}}, []),
    ],
)
def test_after_a_collective_has_timed_out_those_that_did_not_come_are_named(beats, blamed, monkeypatch) -> None:
    made, ended = watch("a", "a", "b"), list[dict[int, str]]()
    monkeypatch.setattr(made, "end", ended.append)
    say(made, 0, counts={"0": 6}, waits=True)
    for rank, what in beats.items():
        say(made, rank, **what)
    made.expire()
    assert ended == ([dict.fromkeys(blamed, SLOW)] if blamed else [])


def test_a_rank_that_was_never_heard_is_not_blamed_for_a_collective(monkeypatch) -> None:
    made = watch("a", "b")
    monkeypatch.setattr(made, "end", pytest.fail)
    say(made, 0, waits=True)
    made.ranks[1] = Seen(None, Beat(1))
    made.expire()


def test_collectives_wait_for_longer_than_the_heartbeat() -> None:
    assert collective_seconds(TrainConfig(ddp_timeout=10)) > TrainConfig().heartbeat_timeout
    assert collective_seconds(TrainConfig(ddp_timeout=1800)) == 1800


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EMFILE, "Too many open files"), psutil.AccessDenied(1)])
def test_a_shortage_of_the_system_does_not_end_the_heartbeat(error, monkeypatch) -> None:
    made, rounds = watch("a", "a"), list[float]()
    made.ended = threading.Event()
    monkeypatch.setattr(made.beats, "received", lambda pause: iter(()), raising=False)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)

    def beat(elapsed: float) -> None:
        rounds.append(elapsed)
        if len(rounds) == 3:
            made.ended.set()
        raise error

    monkeypatch.setattr(made, "beat", beat)
    made.run()
    assert len(rounds) == 3


def test_a_stop_signal_of_another_rank_arrives() -> None:
    made = watch("a", "b")
    with StopSignal(2) as stop:
        made.hear(Beat(1, stop=15))
        assert stop.received == 15
    made.hear(Beat(1, stop=15))  # no training any more


def test_datagrams_of_others_are_ignored() -> None:
    beats = Beats(0, None)
    beats.addresses[1] = ("127.0.0.1", 9)
    port = beats._socket.getsockname()[1]
    good = {"rank": 1, "stalled": {"0": "why"}}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        for content in (b"\xff", b"[1]", b"{}", b'["x", {"rank": 1}]', json.dumps([beats.token, {"rank": 7}]).encode(),
                        json.dumps([beats.token, {"other": 1}]).encode(),
                        json.dumps([beats.token, good]).encode()):  # fmt: skip
            other.sendto(content, ("127.0.0.1", port))
        assert [(beat.rank, beat.stalled) for beat in beats.received(0.5)] == [(1, {0: "why"})]
        assert beats.addresses[1] == other.getsockname() or other.getsockname()[0] == "0.0.0.0"
    beats.close()
