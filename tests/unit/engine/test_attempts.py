"""What the next attempt at a run knows after a damaged checkpoint or a rollback, and when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.api.run import FIRST_ATTEMPT, Attempt, Checkpoint
from toolkit.checkpoint.tensors import DamagedCheckpoint
from toolkit.config.train import TrainConfig
from toolkit.engine.non_finite import GoBack, NonFiniteParameters
from toolkit.run import next_attempt

ROLLBACK = TrainConfig(non_finite="rollback", max_non_finite_steps=2)


def damaged(step: int) -> DamagedCheckpoint:
    return DamagedCheckpoint(Checkpoint(Path(f"step-{step}"), step, {}), f"no {step}")


def test_each_damaged_checkpoint_is_passed_over_once() -> None:
    attempt = next_attempt(FIRST_ATTEMPT, damaged(4), ROLLBACK)
    attempt = next_attempt(attempt, damaged(2), ROLLBACK)
    assert attempt == Attempt(damaged={Path("step-4"): "no 4", Path("step-2"): "no 2"})
    again = damaged(4)
    with pytest.raises(DamagedCheckpoint) as caught:
        next_attempt(attempt, again, ROLLBACK)
    assert caught.value is again


def test_a_rollback_skips_the_window_and_keeps_what_was_known() -> None:
    attempt = Attempt(damaged={Path("step-2"): "why"}, skipped=(3,), suspect_step=9, rollbacks=1)
    after = next_attempt(attempt, GoBack("step 7", 7), ROLLBACK)
    assert after == Attempt(attempt.damaged, skipped=(3, 7), suspect_step=0, rollbacks=2)


def test_broken_parameters_are_searched_for_as_often_as_windows_may_be_skipped() -> None:
    error, attempt = NonFiniteParameters("step 5", 5), FIRST_ATTEMPT
    for count in range(1, 5):
        attempt = next_attempt(attempt, error, ROLLBACK)
        assert attempt == Attempt(suspect_step=5, rollbacks=count)
    with pytest.raises(NonFiniteParameters):
        next_attempt(attempt, error, ROLLBACK)


@pytest.mark.parametrize("mode", ["stop", "skip"])
def test_broken_parameters_end_a_run_that_may_not_go_back(mode: str) -> None:
    with pytest.raises(NonFiniteParameters):
        next_attempt(FIRST_ATTEMPT, NonFiniteParameters("step 5", 5), TrainConfig(non_finite=mode))
