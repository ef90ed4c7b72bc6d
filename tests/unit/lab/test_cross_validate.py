"""`toolkit cross-validate`: every row is predicted once, scores have intervals, and only the rest is done again."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from browser import needs_browser, open_page
from runs import ROOT, TINY, predictions
from scipy import stats

from toolkit.commands.cli import main
from toolkit.lab.cross_validate import CrossValidation, interval

pytestmark = pytest.mark.usefixtures("forked_trials")

DATA = ROOT / "recipes/data/reviews"
FILES = (f"data.train_file={DATA / 'train.csv'}", f"data.validation_file={DATA / 'validation.csv'}")
FEW = (*TINY, "train.max_steps=2", *FILES, "data.max_eval_samples=null")


def arguments(folder: Path, *more: str) -> list[str]:
    return ["cross-validate", "reviews", "--config", "smoke", "--folds", "2", "--output", str(folder), *FEW, *more]


def command(folder: Path, *more: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments(folder, *more))
    assert ended.value.code == 0


def found_in(folder: Path) -> dict:
    return json.loads((folder / "cross_validation.json").read_text())


@needs_browser
@pytest.mark.slow
def test_a_killed_cross_validation_does_only_the_rest(tmp_path, capsys):
    folder = tmp_path / "out"
    first = None
    with (tmp_path / "log").open("w") as log:
        started = subprocess.Popen([sys.executable, "-m", "toolkit", *arguments(folder)], stdout=log, stderr=log)
        while first is None:
            assert started.poll() is None, (tmp_path / "log").read_text()
            first = next(folder.glob("folds/fold-1-*/measurement.json"), None)
            time.sleep(0.1)
        started.send_signal(signal.SIGKILL)
        started.wait()
    written = first.stat().st_mtime_ns
    assert not (folder / "cross_validation.json").exists()
    command(folder)
    shown = capsys.readouterr().out
    assert first.stat().st_mtime_ns == written
    assert "fold 1 of 2" in shown
    assert "(done before)" in shown.split("fold 1 of 2")[1].splitlines()[0]
    assert "done before" not in shown.split("fold 2 of 2")[1].splitlines()[0]
    assert f"{DATA / 'validation.csv'} is not read" in " ".join(shown.split())
    table = shown[shown.index("score  ") : shown.index("written to")]
    assert max(map(len, table.splitlines())) <= 80

    found = found_in(folder)
    records = [predictions(folder / fold["folder"]) for fold in found["folds"]]
    rows = (DATA / "train.csv").read_text().count("\n") - 1
    assert sum(map(len, records)) == sum(fold["rows"]["validation"] for fold in found["folds"]) == rows
    scores = [statistics.fmean(each["label"] == each["prediction"] for each in part) for part in records]
    accuracy = found["metrics"]["eval_accuracy"]
    assert accuracy["values"] == pytest.approx(scores)
    assert accuracy["mean"] == pytest.approx(statistics.fmean(scores))
    assert accuracy["low"] <= accuracy["mean"] <= accuracy["high"]
    assert found["metric"] == "eval_accuracy"
    assert not list(folder.glob("folds/*/run/model"))
    assert not list(folder.glob("folds/*/run/checkpoints"))
    for width in (1280, 400):
        document, _ = open_page(folder / "cross_validation.html", width=width)
        assert "95 % interval" in document

    command(folder)  # everything is done
    assert capsys.readouterr().out.count("done before") == 2


def test_the_interval_is_wider_than_that_of_independent_scores():
    values = [0.7, 0.8, 0.75, 0.9]
    found = interval(values)
    half = stats.t.ppf(0.975, 3) * (statistics.variance(values) * (1 / 4 + 1 / 3)) ** 0.5
    assert (found["low"], found["high"]) == pytest.approx((0.7875 - half, 0.7875 + half))
    assert interval([0.5, float("nan")])["mean"] is None
    report = CrossValidation(
        metric="a", metrics={"a": interval([0.5, float("nan")])}, folds=[], seed=1, processes=1, config="", command=""
    )
    assert report.on_terminal()[0].rows == [["a", None, "not finite in every fold", None]]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["data.fold=2"], "data.fold: the command sets it; use --folds instead"),
        (["train.optim=x"], "train.optim: received 'x'"),
        (["--folds", "1"], "must be a whole number of at least 2"),
    ],
)
def test_wrong_arguments_end_the_command(more, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments(tmp_path / "out", *more))
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_fold_that_fails_is_named(tmp_path, capsys):
    rows = "\n".join(f"text number {number},{'ab'[number == 9]}" for number in range(10))
    (tmp_path / "rows.csv").write_text(f"text,label\n{rows}\n")
    with pytest.raises(SystemExit) as ended:
        main(arguments(tmp_path / "out", f"data.train_file={tmp_path / 'rows.csv'}", "task.class_weights=balanced"))
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "of 2: task.class_weights=balanced: no training row has the label b" in said
    assert "rerun the same command" in said
    assert list((tmp_path / "out/folds").iterdir())
