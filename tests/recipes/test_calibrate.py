"""`toolkit calibrate`: what it stores, who uses it, and which promises it does not make."""

from __future__ import annotations

import csv
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import run_command
from exports import assert_equal_answers, exported, toolkit_answers, write_rows
from fastapi.testclient import TestClient
from runs import ROOT, TINY, train
from tolerances import float32_tolerance

import toolkit
from toolkit.deploy.demo import shown
from toolkit.deploy.serving.app import build
from toolkit.deploy.serving.requests import Limits

FAST = (*TINY, "train.learning_rate=0.01", "train.max_steps=40", "train.warmup_steps=0", "eval.eval_steps=null",
        "data.max_train_samples=null", "data.max_eval_samples=null", "checkpoint.save_steps=20")  # fmt: skip


def rows(kind: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Returns texts whose words tell the label, of which a tenth is wrong for classes."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        words = draw.choices(["good", "bad", "cheap", "old"], k=6)
        good, cheap = words.count("good"), words.count("cheap")
        label: Any = "positive" if (good > words.count("bad")) != (draw.random() < 0.1) else "negative"
        if kind == "multi_label_classification":
            label = ",".join(name for name, has in (("g", good > 1), ("c", cheap > 1)) if has) or ","
        elif kind == "regression":
            label = good + draw.gauss(0, 0.3)
        found.append({"text": " ".join(words), "label": label})
    return found


def trained(folder: Path, kind: str) -> Path:
    files = {name: write_rows(folder / f"{name}.csv", rows(kind, count, seed))
             for seed, (name, count) in enumerate({"train": 200, "validation": 200, "test": 120}.items())}  # fmt: skip
    sources = [f"data.{name}_file={file}" for name, file in files.items()]
    train("reviews", folder / "run", *FAST, *sources, f"task.problem_type={kind}")
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("single"), "single_label_classification")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("several"), "multi_label_classification")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("numbers"), "regression")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run, tmp_path / "run")


def decision(run: Path) -> dict[str, Any]:
    return json.loads((run / "decision.json").read_text())


def assert_scripts_agree(run: Path, tmp_path: Path) -> None:
    """Compares the answers of the zip and of ONNX with those of `toolkit predict`."""
    file = write_rows(tmp_path / "new.csv", [{"text": row["text"]} for row in rows("none", 30, 9)])
    assert run_command("export", run, "--format", "onnx", "--output", tmp_path / "onnx", "--parity-rows", "8") == 0
    for folder in (exported(run, tmp_path), tmp_path / "onnx"):
        assert json.loads((folder / "decision.json").read_text()) == decision(run)
        assert_equal_answers(run, folder, file, 1e-4)


@pytest.mark.slow
def test_classes_are_calibrated_stored_and_decided_alike_everywhere(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    assert run_command("calibrate", copy, "--precision", "0.7", "--sets", "0.9") == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "all figures are of test (120 rows)" in printed
    found = decision(copy)
    assert (found["fitted_on"], found["promise"]["value"]) == ("200 rows of validation", 0.7)
    assert {"calibration.html", "calibration.md", "calibration.svg"} <= {file.name for file in copy.iterdir()}
    assert {"decision.json", "calibration.html"} <= json.loads((copy / "run.json").read_text())["files"].keys()
    assert run_command("verify", copy) == 0
    assert_scripts_agree(copy, tmp_path)

    capsys.readouterr()
    file = write_rows(tmp_path / "more.csv", rows("single", 100, 7))
    assert run_command("evaluate", copy, "--data", file, "--output", tmp_path / "scores.json") == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["eval_accuracy_decided"] >= 0.7
    assert 0 < scores["eval_share_decided"] <= 1
    answers = toolkit_answers(copy, file)
    unsure = sum(row["unsure"] == "true" for row in answers)
    assert 1 - unsure / 100 == pytest.approx(scores["eval_share_decided"])
    assert run_command("predict", copy, "--input", file, "--output", tmp_path / "all.csv", "--threshold", "1") == 0
    with (tmp_path / "all.csv").open() as opened:
        assert {row["unsure"] for row in csv.DictReader(opened)} == {"true"}


@pytest.mark.slow
def test_labels_have_thresholds_of_their_own_in_scripts_too(several, tmp_path, capsys):
    copy = shutil.copytree(several, tmp_path / "run")
    for promise in (("--recall", "0.6"), ("--best-f1",), ("--precision", "0.6")):
        assert run_command("calibrate", copy, *promise) == 0, capsys.readouterr().err
        assert decision(copy)["thresholds"].keys() == {"c", "g"}
        assert run_command("verify", copy) == 0  # calibrated again
    assert_scripts_agree(copy, tmp_path)
    assert run_command("predict", copy, "--input-text", "old old", "--threshold", "0") == 0
    assert "prediction: c,g" in capsys.readouterr().out.replace(", ", ",")


@pytest.mark.slow
def test_numbers_have_intervals(numbers, tmp_path, capsys):
    copy = shutil.copytree(numbers, tmp_path / "run")
    assert run_command("calibrate", copy, "--sets", "0.8") == 0, capsys.readouterr().err
    assert_scripts_agree(copy, tmp_path)
    answers = toolkit_answers(copy, write_rows(tmp_path / "rows.csv", labelled := rows("regression", 200, 5)))
    pairs = zip(answers, labelled, strict=True)
    covered = sum(float(row["low"]) <= own["label"] <= float(row["high"]) for row, own in pairs)
    assert 140 <= covered <= 180  # 0.8 of 200, with the error of both sets
    assert run_command("calibrate", copy, "--precision", "0.9") == 2
    assert "--precision: not for this problem type, which has --sets" in capsys.readouterr().err


@pytest.mark.slow
def test_a_promise_that_cannot_be_kept_leaves_the_former_decision(copy, capsys):
    assert run_command("calibrate", copy) == 0, capsys.readouterr().err
    before = (copy / "decision.json").read_bytes()
    assert decision(copy)["thresholds"][""] == 0
    capsys.readouterr()
    assert run_command("calibrate", copy, "--precision", "0.999") == 1
    error = capsys.readouterr().err
    assert (
        "no threshold keeps the promise on 200 rows. Promise: precision 0.999 with confidence 0.95; the best" in error
    )
    assert (copy / "decision.json").read_bytes() == before
    assert run_command("verify", copy) == 0
    best = float(error.split("kept is ")[1].split(". ")[0]) - 1e-3
    assert run_command("calibrate", copy, "--precision", f"{best}") == 0


def test_a_changed_decision_is_found_and_may_be_replaced(copy, capsys):
    assert run_command("calibrate", copy) == 0
    (copy / "decision.json").write_text(
        (copy / "decision.json").read_text().replace('"temperature": ', '"temperature": 1')
    )
    assert run_command("verify", copy) == 1
    assert "decision.json is not as it was written" in capsys.readouterr().err
    assert run_command("predict", copy, "--input-text", "good") == 2
    assert "decision.json: not as `toolkit calibrate` wrote it; calibrate the run again" in capsys.readouterr().err
    assert run_command("calibrate", copy) == 0
    assert run_command("verify", copy) == 0
    (copy / "decision.json").unlink()
    assert run_command("predict", copy, "--input-text", "good") == 2


def test_a_server_and_the_page_answer_as_predict_does(copy, tmp_path):
    assert run_command("calibrate", copy, "--precision", "0.7", "--sets", "0.9") == 0
    texts = [{"text": row["text"]} for row in rows("none", 8, 9)]
    written = tmp_path / "answers.jsonl"
    assert run_command("predict", copy, "--input", write_rows(tmp_path / "new.csv", texts), "--output", written) == 0
    expected = [json.loads(line) for line in written.read_text().splitlines()]
    opened = toolkit.load(copy)
    with TestClient(build(opened, "run", Limits())) as client:
        found = client.post("/predict", json={"rows": texts}).json()["predictions"]
        answers = client.get("/openapi.json").text
    for ours, theirs in zip(expected, found, strict=True):
        assert {name: theirs[name] for name in ("prediction", "unsure", "prediction_set")}.items() <= ours.items()
        prediction, scores, others = shown(theirs, opened.task.answer_columns)
        assert (prediction, scores) == (theirs["prediction"], theirs["scores"])
        assert others.startswith(
            f"unsure: {str(theirs['unsure']).lower()}\nprediction_set: {theirs['prediction_set'][0]}"
        )
    assert "whether a person should decide" in answers


def test_rows_of_one_file_are_checked_in_folds(copy, tmp_path, capsys):
    file = write_rows(tmp_path / "labelled.csv", rows("single", 100, 3))
    assert run_command("calibrate", copy, "--data", file) == 0, capsys.readouterr().err
    assert decision(copy)["fitted_on"] == "100 rows of labelled.csv"
    assert decision(copy)["checked_on"].startswith("5 folds of these")
    assert str(tmp_path) not in json.dumps(decision(copy))


def test_a_model_that_is_trained_on_has_no_decision(run, copy):
    assert run_command("calibrate", copy) == 0
    sources = [f"data.{name}_file={run.parent / name}.csv" for name in ("train", "validation", "test")]
    train("reviews", copy, *FAST, *sources, "train.max_steps=41", "checkpoint.resume=auto")
    assert not [*copy.glob("decision.json"), *copy.glob("calibration.*")]
    assert run_command("verify", copy) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--recall", "0.9"), "--recall: not for this problem type, which has --precision, --sets"),
        (("--best-f1",), "--best-f1: not for this problem type"),
        (("--precision", "1"), "--precision: received 1, must be between 0 and 1"),
        (("--data", "TRAIN"), "the run was trained on"),
        (("--data", "FEW"), "few.csv: 5 labelled rows, but calibration needs at least 20"),
    ],
)
def test_wrong_uses_are_rejected(run, tmp_path, capsys, options, message):
    few = write_rows(tmp_path / "few.csv", rows("single", 5, 3))
    names = {"TRAIN": str(run.parent / "train.csv"), "FEW": str(few)}
    assert run_command("calibrate", run, *(names.get(each, each) for each in options)) == 2
    assert message in capsys.readouterr().err
    assert not (run / "decision.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["image", "audio"])
def test_exports_of_images_and_recordings_decide_as_predict_does(kind, tmp_path):
    run = tmp_path / "run"
    train(f"reviews/smoke_{kind}", run, "train.max_steps=3", "data.validation_file=null", "data.validation_split=0.5",
          "data.max_eval_samples=null")  # fmt: skip
    assert run_command("calibrate", run, "--sets", 0.8) == 0
    folder = ROOT / "recipes" / "data" / {"image": "images", "audio": "audio"}[kind] / "train"
    files = sorted(path for path in folder.rglob("*") if path.is_file())[::7]
    file = write_rows(tmp_path / "new.csv", [{kind: str(path)} for path in files])
    (tmp_path / "zip").mkdir()
    assert_equal_answers(run, exported(run, tmp_path / "zip"), file, float32_tolerance(3))
    for format, tolerance in {"onnx": 1e-4, "torch_export": 1e-4}.items():
        assert run_command("export", run, "--format", format, "--output", tmp_path / format) == 0
        assert_equal_answers(run, tmp_path / format, file, tolerance)
