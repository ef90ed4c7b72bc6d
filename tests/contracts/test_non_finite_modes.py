"""`train.non_finite: skip` and `rollback`: bad windows are skipped, and everything else is as if they had not been."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import non_finite_runs
import pytest
from launching import fork
from non_finite_runs import BAD, RUN, STRATEGIES, bad_windows, breaking_updates
from runs import ROOT, assert_same_weights, lines, train, weights
from stopping import StoppedError, stopper

from toolkit.base.errors import RunError

SKIP, ROLLBACK = "train.non_finite=skip", "train.non_finite=rollback"
WINDOW = ("train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=2")


def figures(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())["result"]


@pytest.fixture(scope="module")
def skipped(tmp_path_factory) -> Path:
    """Returns the folder of a run that skipped two windows."""
    run = tmp_path_factory.mktemp("skip") / "run"
    with bad_windows(BAD):
        train("reviews", run, *RUN, *WINDOW, SKIP)
    return run


def test_a_window_left_out_is_as_if_its_rows_were_not_there(tmp_path):
    train("reviews", tmp_path / "base", "train.max_steps=1")
    with (ROOT / "recipes/data/reviews/train.csv").open() as file:
        rows = list(csv.reader(file))[:41]
    for name, left in (("all", rows), ("fewer", rows[:17] + rows[25:])):
        with (tmp_path / f"{name}.csv").open("w") as file:
            csv.writer(file).writerows(left)
    same = (
        *(f"model.name_or_path={tmp_path / 'base' / 'model'}", "model.from_config=null", *WINDOW, SKIP),
        *("train.train_sampling_strategy=sequential", "train.num_train_epochs=1"),
        *("checkpoint.save_steps=null", "eval.eval_steps=null", "data.max_eval_samples=5", "train.warmup_steps=0"),
        *("train.lr_scheduler_type=constant", "train.ema_decay=0.9"),
    )
    with bad_windows([3]):
        train("reviews", tmp_path / "one", *same, f"data.train_file={tmp_path / 'all.csv'}")
    train("reviews", tmp_path / "other", *same, f"data.train_file={tmp_path / 'fewer.csv'}")
    assert_same_weights(tmp_path / "one", tmp_path / "other")
    one, other = (
        [
            {key: value for key, value in line.items() if key not in ("step", "epoch", "non_finite_steps")}
            for line in each
        ]
        for each in (lines(tmp_path / "one", "loss"), lines(tmp_path / "other", "loss"))
    )
    assert one == other


def test_a_skipped_window_changes_no_running_statistics(tmp_path):
    resnet = "{model_type: resnet, embedding_size: 8, hidden_sizes: [8], depths: [1], layer_type: basic}"
    settings = (
        *(f"model.from_config={resnet}", *WINDOW, SKIP, "train.lr_scheduler_type=constant", "train.warmup_steps=0"),
        *("data.max_train_samples=24", "data.max_eval_samples=5", "eval.eval_steps=null", "checkpoint.save_steps=null"),
    )
    with bad_windows([3]):
        train("reviews/smoke_image", tmp_path / "skipped", *settings, "train.max_steps=3", sizes=())
    train("reviews/smoke_image", tmp_path / "whole", *settings, "train.max_steps=2", sizes=())
    assert "resnet.embedder.embedder.normalization.running_mean" in weights(tmp_path / "whole")
    assert_same_weights(tmp_path / "skipped", tmp_path / "whole")


def test_both_engines_and_a_resume_give_the_same_bits(skipped, tmp_path, monkeypatch):
    with bad_windows(BAD):
        train("reviews", tmp_path / "trainer", *RUN, *WINDOW, SKIP, "engine=trainer")
    assert_same_weights(skipped, tmp_path / "trainer")
    assert lines(skipped) == lines(tmp_path / "trainer")
    stop_before = stopper(monkeypatch)
    stop_before(6)
    with bad_windows(BAD), pytest.raises(StoppedError):
        train("reviews", tmp_path / "resumed", *RUN, *WINDOW, SKIP)
    stop_before(None)
    with bad_windows(BAD):
        train("reviews", tmp_path / "resumed", *RUN, *WINDOW, SKIP, "checkpoint.resume=auto")
    assert_same_weights(skipped, tmp_path / "resumed")
    assert lines(skipped) == lines(tmp_path / "resumed")


def test_what_is_left_out_is_counted(skipped, capsys):
    assert [line["non_finite_steps"] for line in lines(skipped, "loss")] == [0, 0, 0, 1, 1, 2, 2, 2]
    assert figures(skipped)["non_finite_steps"] == len(BAD)
    state = json.loads((skipped / "checkpoints/step-10/state.json").read_text())
    assert state["train"]["left_out"] == list(BAD)
    assert "non_finite_steps" in (skipped / "report.md").read_text()


@pytest.mark.fast(1)
@pytest.mark.parametrize("engine", ["loop", "trainer"])
def test_going_back_gives_what_leaving_out_gives(skipped, tmp_path, engine, capsys):
    with bad_windows(BAD):
        train("reviews", tmp_path / "run", *RUN, *WINDOW, ROLLBACK, f"engine={engine}")
    printed = capsys.readouterr().out
    assert "step 4: the gradient's norm is nan; this update is skipped (1 of at most 10)" in printed
    assert printed.count("resuming from") == len(BAD)
    assert_same_weights(skipped, tmp_path / "run")
    assert figures(tmp_path / "run")["non_finite_steps"] == len(BAD)


@pytest.mark.fast(1)
@pytest.mark.parametrize("save", ["2", "null"])
def test_an_update_that_breaks_parameters_is_undone(tmp_path, save):
    """Step 5 breaks parameters that no batch uses, so that only the check before the next checkpoint finds it."""
    settings = (*RUN, *WINDOW, ROLLBACK, f"checkpoint.save_steps={save}")
    with breaking_updates([5]):
        train("reviews", tmp_path / "run", *settings)
    with bad_windows([5]):
        train("reviews", tmp_path / "expected", *settings)
    assert_same_weights(tmp_path / "run", tmp_path / "expected")
    assert figures(tmp_path / "run")["non_finite_steps"] == 1


@pytest.mark.parametrize("mode", [SKIP, ROLLBACK])
def test_the_number_is_limited(tmp_path, mode):
    with bad_windows([2, 4, 6]), pytest.raises(RunError, match=r"step 6: .* 2 .*\(train.max_non_finite_steps\)"):
        train("reviews", tmp_path / "run", *RUN, *WINDOW, mode, "train.max_non_finite_steps=2")


@pytest.mark.slow
@pytest.mark.distributed
def test_every_strategy_leaves_out_the_same(tmp_path):
    fork([Path(non_finite_runs.__file__), tmp_path], 2)
    for name in STRATEGIES:
        one, other = tmp_path / f"{name}-skip", tmp_path / f"{name}-rollback"
        assert_same_weights(one, other)
        assert figures(one)["non_finite_steps"] == figures(other)["non_finite_steps"] == len(BAD)
    assert_same_weights(tmp_path / "local-loop", tmp_path / "local-trainer")
    assert lines(tmp_path / "local-loop") == lines(tmp_path / "local-trainer")
    assert figures(tmp_path / "local-loop")["non_finite_steps"] == len(BAD)
