"""Files written after training: the model first, and the others even if one fails."""

from __future__ import annotations

import json

import pytest
from runs import predictions, train

from toolkit.base.errors import RunError
from toolkit.report import results

FEW = ("train.max_steps=1", "data.max_train_samples=8", "data.max_eval_samples=4")


def test_a_report_that_fails_loses_nothing_else(tmp_path, monkeypatch):
    pushed = []

    def broken(*arguments):
        raise KeyError("curves")

    monkeypatch.setattr(results, "write_report", broken)
    monkeypatch.setattr(results, "push", lambda cfg, folder: pushed.append(folder))
    with pytest.raises(RunError) as failed:
        train("reviews", tmp_path / "run", *FEW)
    first, second = str(failed.value).split("\n")
    assert first.startswith("cannot write the report: KeyError: 'curves' (test_results.py, line ")
    assert second == f"  The model in {tmp_path / 'run' / 'model'} is complete."
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert len(predictions(tmp_path / "run")) == 4
    assert json.loads((tmp_path / "run" / "run.json").read_text())["result"]["steps"] == 1
    assert pushed == [tmp_path / "run" / "model"]


def test_predictions_of_a_former_model_are_not_taken_for_those_of_the_new_one(tmp_path, monkeypatch):
    run, longer = tmp_path / "run", ("data.max_train_samples=8", "data.max_eval_samples=4", "checkpoint.resume=auto")

    def broken(*arguments):
        raise KeyError("records")

    train("reviews", run, *longer, "train.max_steps=1", "checkpoint.save_steps=1")
    assert len(predictions(run)) == 4
    monkeypatch.setattr(results, "write_all_predictions", broken)
    with pytest.raises(RunError, match="cannot write the predictions: KeyError"):
        train("reviews", run, *longer, "train.max_steps=2", "checkpoint.save_steps=1")
    facts = json.loads((run / "run.json").read_text())
    assert facts["result"]["steps"] == 2
    assert not (run / "predictions.jsonl").exists()
    assert "predictions.jsonl" not in facts["files"]
    assert "report.html" in facts["files"]


def test_a_model_that_cannot_be_written_ends_the_run_with_a_sentence(tmp_path, monkeypatch):
    def full(run, replacing):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results, "save_model", full)
    with pytest.raises(
        RunError, match=r"write the model: .*No space left.* are needed, \d.* are free (.|\n)*checkpoint.resume=auto"
    ):
        train("reviews", tmp_path / "run", *FEW)
    assert not (tmp_path / "run" / "report.md").exists()
