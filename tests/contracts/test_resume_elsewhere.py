"""A run may go on from the checkpoint of another one, in a folder of its own."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from runs import assert_same_weights, lines, train
from stopping import StoppedError, known_losses, stopper

from toolkit.base.errors import Interrupted
from toolkit.distributed.stop import active_stop
from toolkit.engine.training import Session

RUN = ("data.max_train_samples=24", "data.max_eval_samples=8", "train.per_device_train_batch_size=4",
       "train.gradient_accumulation_steps=1", "train.max_steps=6", "model.config_overrides.hidden_dropout_prob=0.1",
       "checkpoint.save_steps=1")  # fmt: skip


def stopped(folder: Path, step: int, monkeypatch: pytest.MonkeyPatch, *settings: str) -> str:
    """Trains until a step begins, and returns the setting that resumes from there."""
    stop_before = stopper(monkeypatch)
    stop_before(step)
    with pytest.raises(StoppedError):
        train("reviews", folder, *RUN, *settings)
    stop_before(None)
    return f"checkpoint.resume={folder}"


def test_a_stop_before_the_first_step_leaves_a_checkpoint(tmp_path, monkeypatch):
    train("reviews", tmp_path / "whole", *RUN)
    resume = stopped(tmp_path / "old", 4, monkeypatch)
    begin = Session.begin_window

    def signalled(self, batches):
        active_stop().receive(signal.SIGTERM)
        return begin(self, batches)

    monkeypatch.setattr(Session, "begin_window", signalled)
    with pytest.raises(Interrupted):
        train("reviews", tmp_path / "new", *RUN, resume)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "new/checkpoints").iterdir()] == ["step-3"]
    train("reviews", tmp_path / "new", *RUN, "checkpoint.resume=auto")
    assert lines(tmp_path / "new") == lines(tmp_path / "whole")
    assert_same_weights(tmp_path / "whole", tmp_path / "new")


@pytest.mark.fast(1)
@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_the_best_step_may_be_the_one_it_goes_on_from(engine, tmp_path, monkeypatch):
    best = ("checkpoint.load_best_model_at_end=true", "eval.metric_for_best_model=loss", "eval.eval_steps=1",
            f"engine={engine}")  # fmt: skip
    with known_losses(0.8, 0.9, 0.7, 0.75, 0.78, 0.79):
        whole = train("reviews", tmp_path / "whole", *RUN, *best)
        resume = stopped(tmp_path / "old", 4, monkeypatch, *best)
        went_on = train("reviews", tmp_path / "new", *RUN, *best, resume)
    assert (went_on.best_step, went_on.steps) == (whole.best_step, whole.steps) == (3, 6)
    assert_same_weights(tmp_path / "whole", tmp_path / "new")
