"""Checkpoints written while training goes on are those of a run that waits, and are whole or not there."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from pathlib import Path

import failing_rank
import pytest
import torch
from launching import launch
from non_finite_runs import RUN, bad_windows
from runs import assert_same_weights, lines, train
from safetensors.torch import load_file
from stopping import DROPOUT, command

from toolkit.base.errors import Interrupted, RunError
from toolkit.checkpoint import planning, writing
from toolkit.checkpoint.manifest import verify
from toolkit.distributed.strategies.ddp import DataParallel
from toolkit.engine import checkpointing, training
from toolkit.engine.checkpointing import BackgroundSave
from toolkit.prepare import auto

ASYNC, WAITING = "checkpoint.async_save=true", "checkpoint.async_save=false"
FEW = (*DROPOUT, "train.max_steps=8", "checkpoint.save_total_limit=null")


def slowly(monkeypatch: pytest.MonkeyPatch, place: object, name: str, seconds: float) -> None:
    """Makes a function take longer, during which other threads run."""
    function = getattr(place, name)

    def slow(*arguments, **settings):
        time.sleep(seconds)
        return function(*arguments, **settings)

    monkeypatch.setattr(place, name, slow)


def assert_same_checkpoints(one: Path, other: Path) -> None:
    """Asserts that two runs have valid checkpoints of the same steps with the same tensors and progress."""
    folders = [sorted((run / "checkpoints").iterdir()) for run in (one, other)]
    assert [path.name for path in folders[0]] == [path.name for path in folders[1]]
    for left, right in zip(*folders, strict=True):
        assert verify(left) == verify(right) == []
        for file in left.glob("*.safetensors"):
            tensors, others = load_file(file), load_file(right / file.name)
            assert tensors.keys() == others.keys()
            assert [name for name in tensors if not torch.equal(tensors[name], others[name])] == [], file
        states = [json.loads((path / "state.json").read_text()) for path in (left, right)]
        assert states[0]["train"] == states[1]["train"]
        for state in states:
            state["extensions"].pop("costs")  # times
        assert states[0]["extensions"] == states[1]["extensions"]


@pytest.mark.fast(1)
@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_checkpoints_are_those_of_a_run_that_waits(engine, tmp_path, monkeypatch):
    """A slow copy meets the next update and the next evaluation, and a slow write the next checkpoint."""
    settings = (*FEW, "train.ema_decay=0.5", "eval.eval_steps=3", f"engine={engine}")
    train("reviews", tmp_path / "waiting", *settings, WAITING)
    slowly(monkeypatch, planning.Copy, "run", 0.05)
    slowly(monkeypatch, writing, "write_groups", 0.1)
    train("reviews", tmp_path / "async", *settings, ASYNC)
    assert_same_checkpoints(tmp_path / "waiting", tmp_path / "async")
    assert_same_weights(tmp_path / "waiting", tmp_path / "async")
    assert lines(tmp_path / "waiting") == lines(tmp_path / "async")


def test_the_test_above_has_power(tmp_path, monkeypatch):
    """Without the wait before an update, the checkpoint would hold values of later steps."""
    train("reviews", tmp_path / "waiting", *FEW, WAITING)
    monkeypatch.setattr(checkpointing.Checkpointer, "wait_for_copy", lambda self: None)
    slowly(monkeypatch, planning.Copy, "run", 0.3)
    train("reviews", tmp_path / "async", *FEW, ASYNC)
    with pytest.raises(AssertionError, match=r"(model|optimizer)\.safetensors"):
        assert_same_checkpoints(tmp_path / "waiting", tmp_path / "async")


def test_a_step_that_is_left_out_waits_for_the_copy_too(tmp_path, monkeypatch):
    """Local SGD changes parameters also after a step without an update: when it averages, by its outer optimizer."""
    restore = training.Session.restore

    def left_out(self):
        restore(self)
        self.state.left_out = [3]  # step 2 is saved before it

    def decay(self):
        with torch.no_grad():
            for parameter in self.replica.bare_model.parameters():
                parameter.mul_(0.99)

    monkeypatch.setattr(training.Session, "restore", left_out)
    monkeypatch.setattr(DataParallel, "after_update", decay)
    train("reviews", tmp_path / "waiting", *FEW, "train.non_finite=skip", WAITING)
    slowly(monkeypatch, planning.Copy, "run", 0.3)
    train("reviews", tmp_path / "async", *FEW, "train.non_finite=skip", ASYNC)
    assert_same_checkpoints(tmp_path / "waiting", tmp_path / "async")


@pytest.mark.slow
def test_going_back_uses_the_checkpoint_that_was_still_being_written(tmp_path, monkeypatch, capsys):
    """Step 4 is bad, while the checkpoint of step 2 is written."""
    with bad_windows([4]):
        train("reviews", tmp_path / "waiting", *RUN, "train.non_finite=rollback", WAITING)
        slowly(monkeypatch, writing, "write_groups", 1.0)
        capsys.readouterr()
        train("reviews", tmp_path / "async", *RUN, "train.non_finite=rollback", ASYNC)
    assert "step-2" in next(line for line in capsys.readouterr().out.splitlines() if "resuming from" in line)
    assert_same_weights(tmp_path / "waiting", tmp_path / "async")


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    during: list[int] = []
    begin, written = training.Session.begin_window, threading.Event()

    def noted(self, batches):
        if self.checkpointer.background.state is not checkpointing.Flight.IDLE and not written.is_set():
            during.append(self.state.step)
            if len(during) == 3:
                written.set()
        return begin(self, batches)

    write = writing.write_groups
    monkeypatch.setattr(writing, "write_groups", lambda *given: (written.wait(60), write(*given))[1])
    monkeypatch.setattr(training.Session, "begin_window", noted)
    train("reviews", tmp_path / "run", *FEW, "checkpoint.save_steps=4", ASYNC)
    assert during == [4, 5, 6]
    assert verify(tmp_path / "run/checkpoints/step-4") == []


def full_disk(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the checkpoint of a step fail, before the next step begins."""
    write, begin, failed = writing.write_groups, training.Session.begin_window, threading.Event()

    def waits(self, batches):
        if self.state.step >= step:
            failed.wait(60)
        return begin(self, batches)

    monkeypatch.setattr(training.Session, "begin_window", waits)

    def fails(peers, folder, *given):
        if folder.name.endswith(f"step-{step}"):
            failed.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return write(peers, folder, *given)

    monkeypatch.setattr(writing, "write_groups", fails)


@pytest.mark.fast(1)
@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_a_full_disk_ends_the_run_and_leaves_the_checkpoint_before(engine, tmp_path, monkeypatch):
    best = ("checkpoint.load_best_model_at_end=true", "eval.eval_steps=2", "eval.metric_for_best_model=loss")
    with monkeypatch.context() as patch:
        full_disk(4, patch)
        with pytest.raises(RunError, match=r"step-4: .*No space left"):
            train("reviews", tmp_path / "run", *FEW, *best, ASYNC, f"engine={engine}", "tracking.logging_steps=1")
    assert lines(tmp_path / "run", "loss")[-1]["step"] < 6  # it is told between checkpoints, which are 2 steps apart
    (left,) = (tmp_path / "run/checkpoints").iterdir()
    assert (left.name, verify(left)) == ("step-2", [])
    assert json.loads((left / "state.json").read_text())["train"]["best_step"] in (None, 2)
    train("reviews", tmp_path / "run", *FEW, *best, ASYNC, "checkpoint.resume=auto")
    train("reviews", tmp_path / "whole", *FEW, *best, WAITING)
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_an_error_of_the_last_checkpoint_ends_the_run(tmp_path, monkeypatch):
    full_disk(8, monkeypatch)
    with pytest.raises(RunError, match="cannot write the checkpoint"):
        train("reviews", tmp_path / "run", *FEW, ASYNC)
    assert not (tmp_path / "run/model").exists()


def test_an_error_of_training_lets_the_checkpoint_in_flight_end(tmp_path, monkeypatch):
    slowly(monkeypatch, writing, "write_groups", 0.5)
    with pytest.raises(RunError, match="step 2: the gradient's norm is nan"):
        train("reviews", tmp_path / "run", *DROPOUT, "train.max_steps=4", "checkpoint.save_steps=1", ASYNC,
              "train.optim=sgd", "train.warmup_steps=0", "train.learning_rate=1.0e+30", "eval.eval_steps=null",
              "train.max_grad_norm=0")  # fmt: skip
    assert [(path.name, verify(path)) for path in (tmp_path / "run/checkpoints").iterdir()] == [("step-1", [])]


def test_the_best_checkpoint_is_loaded_when_it_is_written(tmp_path, monkeypatch):
    best = ("checkpoint.load_best_model_at_end=true", "checkpoint.save_total_limit=1", "eval.eval_steps=1",
            "eval.metric_for_best_model=loss", "train.learning_rate=0.02", "checkpoint.save_steps=4")  # fmt: skip
    waiting = train("reviews", tmp_path / "waiting", *FEW, *best, WAITING)
    slowly(monkeypatch, writing, "write_groups", 0.2)
    result = train("reviews", tmp_path / "async", *FEW, *best, ASYNC)
    assert result.best_step == waiting.best_step
    assert result.best_step not in (None, result.steps)
    assert_same_checkpoints(tmp_path / "waiting", tmp_path / "async")
    assert_same_weights(tmp_path / "waiting", tmp_path / "async")


@pytest.mark.fast(1)
@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_a_stop_signal_waits_for_the_checkpoint_in_flight_and_saves(engine, tmp_path, monkeypatch):
    begin = training.Session.begin_window

    def stopped(self, batches):
        if self.state.step == 3:
            assert self.checkpointer.background.state is not checkpointing.Flight.IDLE
            os.kill(os.getpid(), signal.SIGTERM)
        return begin(self, batches)

    with monkeypatch.context() as patch:
        slowly(patch, writing, "write_groups", 0.5)
        patch.setattr(training.Session, "begin_window", stopped)
        with pytest.raises(Interrupted, match="SIGTERM at step 3"):
            train("reviews", tmp_path / "run", *FEW, ASYNC, f"engine={engine}")
    found = sorted((tmp_path / "run/checkpoints").iterdir())
    assert [(path.name, verify(path)) for path in found] == [("step-2", []), ("step-3", [])]
    train("reviews", tmp_path / "run", *FEW, ASYNC, "checkpoint.resume=auto")
    train("reviews", tmp_path / "whole", *FEW, WAITING)
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_the_old_checkpoint_is_removed_after_the_new_one_is_complete(tmp_path, monkeypatch):
    seen: list[list[str]] = []
    finish = writing.finish_checkpoint

    def noted(folder, *given):
        seen.append(sorted(path.name for path in folder.parent.iterdir()))
        finish(folder, *given)

    monkeypatch.setattr(writing, "finish_checkpoint", noted)
    train("reviews", tmp_path / "run", *FEW, "checkpoint.save_total_limit=1", ASYNC)
    assert seen == [[".tmp-step-2"], *([f".tmp-step-{n}", f"step-{n - 2}"] for n in (4, 6, 8))]
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-8"]


@pytest.mark.parametrize(("free", "chosen"), [(0, False), (2**40, True)])
def test_auto_follows_the_free_memory(free, chosen, tmp_path, monkeypatch, capsys):
    started: list[bool] = []
    start = BackgroundSave.start
    monkeypatch.setattr(BackgroundSave, "start", lambda *given: (started.append(True), start(*given)))
    monkeypatch.setattr(auto, "available_memory", lambda: free)
    train("reviews", tmp_path / "run", *FEW, "train.max_steps=2")
    assert bool(started) is chosen
    assert json.loads((tmp_path / "run/run.json").read_text())["resolved"]["checkpoint.async_save"] is chosen
    assert ("Training waits while a checkpoint is written" in capsys.readouterr().out) is not chosen
    other = train("reviews", tmp_path / "run", *FEW, "train.max_steps=4", "checkpoint.resume=auto", WAITING)
    assert other.steps == 4


def test_a_copy_has_the_size_that_was_estimated(tmp_path, monkeypatch):
    estimates: list[int] = []
    sizes: list[int] = []
    estimate, begin = auto.own_bytes, planning.Snapshot.begin
    monkeypatch.setattr(auto, "own_bytes", lambda run: (estimates.append(estimate(run)[0]), estimate(run))[1])

    def measured(self, plans):
        found = begin(self, plans)
        sizes.append(self.size)
        return found

    monkeypatch.setattr(planning.Snapshot, "begin", measured)
    result = train("reviews", tmp_path / "run", *FEW, "train.max_steps=4", "train.optim=adamw_torch")
    assert result.memory.checkpoint_copy == sizes[0]
    assert sizes[0] == sizes[1] == pytest.approx(estimates[0], rel=0.01)


def test_callbacks_of_a_user_are_told_of_written_checkpoints_only(tmp_path):
    callback = "trainer.callbacks=[callbacks_for_tests.Recorder]"
    train("reviews", tmp_path / "run", *FEW, "train.max_steps=2", "engine=trainer", callback)
    assert json.loads((tmp_path / "run/run.json").read_text())["resolved"]["checkpoint.async_save"] is False


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("form", ["full", "sharded"])
def test_an_error_of_one_ranks_thread_ends_all_with_its_message(form, tmp_path):
    given = command(tmp_path / "run", *FEW, ASYNC, f"checkpoint.format={form}")[2:]
    rank = "1" if form == "sharded" else "0"
    done = launch([Path(failing_rank.__file__), "full_disk", rank, *given], 2, check=False, timeout=120)
    assert done.returncode == 1
    step = failing_rank.FAULT_STEP + 1
    assert (done.stdout + done.stderr).count(f"/step-{step}: ") == 1
    assert " are needed, " in done.stdout + done.stderr
    (left,) = (tmp_path / "run/checkpoints").iterdir()
    assert (left.name, verify(left)) == ("step-2", [])


class _Copied:
    def run(self) -> None:
        """Does nothing."""


@pytest.mark.parametrize("everywhere", [True, False], ids=["an error of all ranks", "an error of this rank"])
def test_a_checkpoint_in_flight_is_waited_for_while_others_write_it_too(everywhere, monkeypatch, capsys):
    monkeypatch.setattr(checkpointing, "PATIENCE_SECONDS", 0.05)
    written = threading.Event()
    error = RunError("the loss is not finite")
    error.shared = everywhere
    save = BackgroundSave(num_processes=2)
    save.start(_Copied(), lambda: (time.sleep(0.5), written.set()))
    save.__exit__(RunError, error, None)
    assert written.is_set() == everywhere
    assert ("checkpoint in flight is not complete" in capsys.readouterr().out) is not everywhere
    assert written.wait(10)
