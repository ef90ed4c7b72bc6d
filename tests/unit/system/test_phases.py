"""The clock of a training: every moment counts once, in the phase that is innermost."""

from __future__ import annotations

from threading import Thread

import pytest

from toolkit.system import phases
from toolkit.system.phases import OTHER, PHASES, active_clock, in_phase, named_seconds, phase, timed_phases


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Time:
    monkeypatch.setattr(phases, "time", made := Time())
    return made


def nonzero(seconds: dict[str, float]) -> dict[str, float]:
    assert list(seconds) == [*PHASES, OTHER]
    return {name: value for name, value in seconds.items() if value}


def test_a_phase_interrupts_the_one_around_it(clock):
    with timed_phases() as made:
        clock.now += 1
        with phase("update"):
            clock.now += 2
            with phase("exchange"):
                clock.now += 4
            clock.now += 8
        clock.now += 16
        assert nonzero(made.seconds()) == {"update": 10, "exchange": 4, OTHER: 17}


def test_everything_inside_an_evaluation_is_its_own_but_a_checkpoint(clock):
    with timed_phases() as made, phase("evaluate"):
        with phase("forward"):
            clock.now += 1
        with phase("save"):
            clock.now += 2
            with phase("exchange"):
                clock.now += 4
        clock.now += 8
        assert nonzero(made.seconds()) == {"evaluate": 9, "save": 6}


def test_an_error_ends_its_phase(clock):
    @in_phase("forward")
    def fail() -> None:
        clock.now += 1
        raise ValueError("no")

    with timed_phases() as made:
        with pytest.raises(ValueError, match="no"):
            fail()
        assert made.phase == OTHER
        assert nonzero(made.seconds()) == {"forward": 1}


def test_seconds_since_the_last_line_and_since_the_start(clock):
    with timed_phases() as made:
        clock.now += 5
        made.start()
        with phase("fetch"):
            clock.now += 1
            assert nonzero(made.since_last()) == {"fetch": 1}  # also of the phase under way
            clock.now += 2
        assert nonzero(made.since_last()) == {"fetch": 2}
        assert nonzero(made.since_last()) == {}
        assert nonzero(made.seconds()) == {"fetch": 3}
    assert named_seconds({"fetch": 1.23456789}) == {"seconds_fetch": 1.234568}


def test_only_the_thread_of_a_training_has_a_clock(clock):
    def work() -> None:
        with phase("save"):
            clock.now += 1

    with timed_phases() as made:
        assert active_clock() is made
        thread = Thread(target=work)
        thread.start()
        thread.join()
        assert nonzero(made.seconds()) == {OTHER: 1}
    assert active_clock() is None
    work()


def test_a_watcher_sees_every_change_and_its_own_time_counts_as_the_phase_that_ends(clock):
    seen = []

    def watch(before: str, after: str) -> None:
        seen.append((before, after))
        clock.now += 1

    with timed_phases() as made:
        made.watcher = watch
        with phase("update"), phase("update"):
            clock.now += 2
        assert seen == [(OTHER, "update"), ("update", OTHER)]
        assert nonzero(made.seconds()) == {"update": 3, OTHER: 1}
