"""Files written after training: the model first, and the others even if one fails."""

from __future__ import annotations

import json
import re

import pytest
from runs import ROOT, TINY, predictions, train

from toolkit.base.console import format_value
from toolkit.base.errors import RunError
from toolkit.lab.baseline import measure
from toolkit.report import results
from toolkit.tasks.baselines import of_head

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


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("config", "answer", "metric"),
    [
        ("reviews", "TF-IDF with a linear model", "accuracy"),
        ("token_classification", "the most frequent tag of each word", "f1"),
        ("reviews/smoke_image", None, "accuracy"),  # the majority is beside the score
    ],
)
def test_answers_without_a_network_are_beside_the_scores_of_a_training_that_takes_longer(
    tmp_path, monkeypatch, capsys, config, answer, metric
):
    monkeypatch.setattr(results, "BRIEF", 0.0)
    monkeypatch.setattr(results, "SHARE", 1e9)
    train(config, tmp_path / "run", *FEW)
    said = " ".join(capsys.readouterr().out.split())
    report = (tmp_path / "run" / "report.md").read_text()
    if answer is None:
        assert "toolkit baseline" not in said + report
        return
    job = {"recipe": str(ROOT / f"recipes/{config}.py"), "config": str(ROOT / f"recipes/configs/{config}/smoke.yaml")}
    *_, scored = measure(job | {"overrides": [*TINY, *FEW], "model": False})["baselines"]
    sentence = re.search(rf"On the validation rows, {answer} gets [^(]*", said)[0]
    assert (scored["name"], sentence in report) == (answer, True)
    assert f"{metric} {format_value(scored['scores'][f'eval_{metric}'])}" in sentence


@pytest.mark.slow
def test_a_short_training_only_names_the_command_and_none_depends_on_other_answers(tmp_path, monkeypatch, capsys):
    def broken(*arguments):
        asked.append(arguments)
        raise ValueError("one class")

    asked = []
    monkeypatch.setattr("toolkit.tasks.baselines.of_head", broken)
    train("reviews", tmp_path / "short", *FEW)
    assert asked == []
    monkeypatch.setattr(results, "BRIEF", 0.0)
    train("reviews", tmp_path / "broken", *FEW)
    assert len(asked) == 1
    assert capsys.readouterr().out.count("`toolkit baseline` scores answers without a neural network") == 2
    assert "toolkit baseline" not in (tmp_path / "short" / "model" / "README.md").read_text()


def test_answers_that_would_take_over_a_tenth_of_the_time_are_not_computed(tmp_path, monkeypatch, capsys):
    whole = []
    original = of_head

    def counting(head, column, rows, sets):
        whole.append(len(rows))
        return original(head, column, rows, sets)

    monkeypatch.setattr(results, "BRIEF", 0.0)
    monkeypatch.setattr(results, "SHARE", 0.0)
    monkeypatch.setattr(results, "SAMPLE", 16)
    monkeypatch.setattr("toolkit.tasks.baselines.of_head", counting)
    train("reviews", tmp_path / "run", *FEW, "data.max_train_samples=64")
    assert whole == [16, 16]  # of 64 rows, twice
    assert "`toolkit baseline` scores answers without a neural network" in capsys.readouterr().out


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
