"""`train.refit`: the chosen number of steps again on all rows, as a run on one file of them would train."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from runs import ROOT, TINY, weights

import toolkit
from toolkit.base.errors import ConfigError

ROWS = [f"the {'soil' if row % 3 else 'rain'} was {row},{'good' if row % 3 else 'bad'}" for row in range(60)]
EACH = ("eval.eval_steps=2", "checkpoint.save_steps=2", "checkpoint.load_best_model_at_end=true", "train.max_steps=6")


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    for name, rows in {"train": ROWS[:40], "held": ROWS[40:], "all": ROWS, "test": ROWS[:9]}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return tmp_path


def settings(files, name, train="train", held="held"):
    held = ["data.validation_split=0"] if held is None else [f"data.validation_file={files / held}.csv"]
    own = [f"data.train_file={files / train}.csv", f"data.test_file={files / 'test'}.csv", f"output_dir={files / name}"]
    sizes = [each for each in TINY if "max_eval_samples" not in each]
    return [*sizes, *own, "data.validation_file=null", *held]


def is_equal(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_all_rows_are_trained_as_in_one_file_and_test_rows_stay_test_rows(files, caplog):
    result = toolkit.train("reviews", "smoke", [*settings(files, "run"), *EACH, "train.refit=true"])
    assert f"Model and report are in {files / 'run/refit'}/ (report.html, report.md, model/)" in caplog.text
    facts = json.loads((files / "run/refit/run.json").read_text())
    assert facts["num_rows"] == {"train": 60, "test": 9}
    assert facts["total_steps"] == result.best_step
    assert json.loads((files / "run/run.json").read_text())["num_rows"] == {"train": 40, "validation": 20, "test": 9}
    alone = [*settings(files, "alone", "all", None), "eval.eval_steps=null", "checkpoint.load_best_model_at_end=false"]
    toolkit.train("reviews", "smoke", [*alone, f"train.max_steps={result.best_step}"])
    expected, again = weights(files / "alone"), [*settings(files, "run"), *EACH, "train.refit=true"]
    assert is_equal(weights(files / "run/refit"), expected)
    shutil.rmtree(files / "run/refit")  # as if the run had been killed before it
    toolkit.train("reviews", "smoke", [*again, "checkpoint.resume=auto"])
    assert is_equal(weights(files / "run/refit"), expected)


@pytest.mark.parametrize(
    "wrong",
    [
        ["data.validation_file=null", "data.validation_split=0", "eval.eval_steps=null"],
        ["train.lr_scheduler_type=reduce_lr_on_plateau", "eval.eval_steps=2"],
    ],
)
def test_what_cannot_be_trained_again_is_rejected_before_the_first_training(files, wrong):
    with pytest.raises(ConfigError, match=r"train\.refit"):
        toolkit.train("reviews", "smoke", [*settings(files, "run"), "train.refit=true", *wrong])
