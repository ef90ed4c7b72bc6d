"""Trials of a search that are really trained: how they end, go on, and are copied."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from launching import begin, run
from runs import ROOT, TINY

from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.store import latest
from toolkit.config.keys import written
from toolkit.lab.search import worker
from toolkit.lab.search.study import own_settings
from toolkit.lab.search.trials import replace_run
from toolkit.recipe import load_settings, load_task_type

RECIPE, CONFIG = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"
FEW = (*TINY, "model.from_config.num_hidden_layers=1", "data.max_train_samples=32", "train.num_train_epochs=3",
       "task.max_length=16", "data.test_split=0.2", "eval.per_device_eval_batch_size=64")  # fmt: skip


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def job(run: Path, *overrides: str, **more) -> dict:
    cfg = load_settings(load_task_type(RECIPE), CONFIG, FEW).config
    settings = [*FEW, *written(own_settings(cfg)), *overrides, f"output_dir={run}"]
    return {"recipe": str(RECIPE), "config": str(CONFIG), "overrides": settings, "metric": "eval_accuracy", **more}


def train(run: Path, *overrides: str, **more) -> dict:
    return worker.train(job(run, *overrides, **more))


def checkpoint(run: Path) -> dict[str, bytes]:
    """Returns the files of the newest checkpoint."""
    found, _ = latest(RunFolder(run).checkpoints)
    return {file.relative_to(found.path).as_posix(): file.read_bytes() for file in found.path.rglob("*")
            if file.is_file()}  # fmt: skip


def rates(run: Path) -> list[float]:
    lines = [json.loads(line) for line in RunFolder(run).metrics.read_text().splitlines()]
    return [line["learning_rate"] for line in lines if "learning_rate" in line]


TENSORS = ("model.safetensors", "optimizer.safetensors")


@pytest.mark.slow
def test_a_trial_sees_no_test_rows_and_its_winner_is_scored_on_them(tmp_path):
    found = train(tmp_path / "run")
    assert (found["state"], found["steps"]) == ("finished", 6)
    assert [step for step, _ in found["evaluations"]] == [2, 4, 6]
    assert found["value"] == found["evaluations"][-1][1] == found["metrics"]["eval_accuracy"]
    assert not [name for name in found["metrics"] if name.startswith("test_")]
    assert not RunFolder(tmp_path / "run").model.exists()
    scores = worker.score(job(tmp_path / "run", keep_model=True, draws=60))
    assert scores["validation"]["value"] == found["value"]
    assert scores["test"]["rows"] > 0
    assert len(scores["test"]["draws"]) == 60
    assert (RunFolder(tmp_path / "run").model / "model.safetensors").exists()
    assert RunFolder(tmp_path / "run").predictions("test").exists()


@pytest.mark.slow
def test_a_trial_that_was_stopped_goes_on_to_the_same_end(tmp_path):
    whole = train(tmp_path / "whole")
    stopped = train(tmp_path / "parts", deadline=time.time() - 1)
    assert stopped["state"] == "stopped"
    assert len(checkpoint(tmp_path / "parts")) > 2
    ended = train(tmp_path / "parts", deadline=time.time() + 3600)
    assert {**ended["metrics"], "train_seconds": 0}["eval_loss"] == whole["metrics"]["eval_loss"]
    assert ended["value"] == whole["value"]
    one, other = checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "parts")
    assert all(one[name] == other[name] for name in TENSORS)


def test_a_divergent_rate_and_an_impossible_setting_are_named(tmp_path):
    lost = train(tmp_path / "lost", "train.learning_rate=1e30", "train.max_grad_norm=0", "train.optim=sgd")
    assert lost["state"] == "diverged"
    assert "step " in lost["reason"]
    assert lost["value"] is None
    high = train(tmp_path / "high", "train.learning_rate=3", "train.warmup_steps=0")
    assert high["state"] == "diverged"
    assert high["reason"].startswith("the training loss rose from 0.")
    wrong = train(tmp_path / "wrong", "model.freeze=[no.such.parameter]")
    assert wrong["state"] == "infeasible"
    assert "no.such.parameter" in wrong["reason"]
    alone = train(tmp_path / "alone", "data.validation_file=null", "data.validation_split=0")
    assert alone["state"] == "infeasible"
    assert "validation rows" in alone["reason"]


@pytest.mark.slow
def test_a_child_is_its_parent_to_the_bit_and_then_explores(tmp_path):
    parent, child, twin = (tmp_path / name for name in ("parent", "child", "twin"))
    first = train(parent, segment=1)
    assert (first["state"], first["steps"], first["evaluations"]) == ("segment", 2, [[2, first["value"]]])
    before = checkpoint(parent)
    again = train(parent, segment=1)  # a search that was killed before it had noted the result
    assert (again["state"], again["value"]) == ("segment", first["value"])
    assert checkpoint(parent) == before

    settings = {"train.learning_rate": 1e-3, "train.weight_decay": 0.0, "train.max_grad_norm": 1.0}
    train(child, segment=1)  # is replaced
    assert replace_run(twin, parent, settings, settings) == 2
    new = {"train.learning_rate": 5e-4, "train.weight_decay": 0.5, "train.max_grad_norm": 0.25}
    assert replace_run(child, parent, settings, new) == 2
    inside = checkpoint(child)
    assert before.keys() == inside.keys()
    assert {name for name in before if before[name] != inside[name]} == {"state.json", "manifest.json"}
    old, changed = json.loads(before["state.json"]), json.loads(inside["state.json"])
    assert {key: changed["identity"][key] for key in new} == new
    assert {**changed, "identity": 0} == {**old, "identity": 0}

    train(parent, segment=2)
    train(twin, segment=2)
    assert all(checkpoint(parent)[name] == checkpoint(twin)[name] for name in TENSORS)
    overrides = [f"{key}={value}" for key, value in new.items()]
    went_on = train(child, *overrides, segment=2)
    assert (went_on["state"], went_on["steps"]) == ("segment", 4)
    assert rates(child)[:2] == rates(parent)[:2]
    assert rates(child)[2:] == pytest.approx([rate / 2 for rate in rates(parent)[2:]])
    header = checkpoint(child)["optimizer.safetensors"][:4000].decode("latin-1")
    assert '\\"weight_decay\\": 0.5' in header or '\\\\"weight_decay\\\\": 0.5' in header
    last = train(child, *overrides, segment=3)
    assert (last["state"], last["steps"]) == ("finished", 6)


# A search in processes


@pytest.mark.slow
def test_a_search_that_is_killed_and_started_again_does_only_the_rest(tmp_path, tmp_path_factory):
    space, out = tmp_path / "space.yaml", tmp_path / "out"
    space.write_text("train.learning_rate: [0.001, 0.01]\n")
    command = [sys.executable, "-m", "toolkit", "search", str(RECIPE), "--config", str(CONFIG), "--space", str(space),
               "--method", "grid", "--output", str(out), *FEW]  # fmt: skip
    log = tmp_path_factory.mktemp("log") / "log"
    began = begin(command, log)
    second = RunFolder(out / "trials/0001/run")
    end = time.monotonic() + 600
    while not list(second.checkpoints.glob("step-*")) and began.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(began.pid, signal.SIGKILL)
    began.wait()
    assert (out / "trials/0000/result.json").exists()
    kept = (out / "trials/0000/result.json").read_bytes()
    run(command)
    assert (out / "trials/0000/result.json").read_bytes() == kept
    found = json.loads((out / "search.json").read_text())
    assert [row["state"] for row in found["trials"]] == ["finished", "finished"]
    assert set(found["winner"]["sets"]) == {"validation", "test"}
    assert "resuming from" in (out / "trials/0001/search.log").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"space.yaml", "out"}
