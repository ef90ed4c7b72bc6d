"""The time limit counts all sessions, works in both engines, and can be raised to continue."""

from __future__ import annotations

import pytest
from runs import assert_same_weights, lines, train

from toolkit.base.errors import ConfigError
from toolkit.engine.callbacks import limits

RUN = ("data.max_train_samples=24", "data.max_eval_samples=8", "train.per_device_train_batch_size=4",
       "train.gradient_accumulation_steps=1", "train.num_train_epochs=2", "checkpoint.save_steps=1",
       "model.config_overrides.hidden_dropout_prob=0.1")  # fmt: skip


class Clock:
    """Replaces `time`: two seconds pass between two calls."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 2.0
        return self.now


@pytest.mark.parametrize("engine", ["loop", pytest.param("trainer", marks=pytest.mark.slow)])
def test_a_run_ends_when_its_time_is_up_and_goes_on_when_it_gets_more(engine, tmp_path, monkeypatch, capsys):
    train("reviews", tmp_path / "whole", *RUN, f"engine={engine}")
    monkeypatch.setattr(limits, "time", Clock())
    limited = (*RUN, f"engine={engine}", "checkpoint.resume=auto")
    first = train("reviews", tmp_path / "parts", *limited, "train.max_time=0:00:00:09")
    assert 0 < first.steps < 12
    assert f"stopping after step {first.steps}: train.max_time is reached" in capsys.readouterr().out
    again = train("reviews", tmp_path / "parts", *limited, "train.max_time=0:00:00:09")
    assert again.steps == first.steps  # its time stays used up
    more = train("reviews", tmp_path / "parts", *limited, "train.max_time=0:00:00:15")
    assert first.steps < more.steps < 12
    none = {"loop": "1:00:00:00", "trainer": "null"}[engine]
    train("reviews", tmp_path / "parts", *limited, f"train.max_time={none}")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole", "eval_loss")[-1] == lines(tmp_path / "parts", "eval_loss")[-1]


def test_the_limit_is_in_days_hours_minutes_and_seconds(tmp_path):
    assert [sum(int(p) * u for p, u in zip(t.split(":"), limits.UNITS, strict=True))
            for t in ("00:00:00:01", "1:02:03:04")] == [1, 93784]  # fmt: skip
    for wrong in ("12:00", "90", "00:00:61:00"):
        with pytest.raises(ConfigError, match=r"train\.max_time: received"):
            train("reviews", tmp_path / "run", f"train.max_time={wrong}")
