"""The summarization recipe from end to end; what it shares with translation is tested there."""

from __future__ import annotations

import json
import re

import pytest
from commands import run_command
from runs import ROOT, SGD, assert_splits_agree, lines, predictions, train

from toolkit.base.errors import DataError
from toolkit.metrics.generation import rouge_scores

TASK = "summarization"
FEW = ("train.max_steps=2", "data.max_train_samples=12", "data.max_eval_samples=5", "task.max_target_length=16")
ROWS = [json.loads(line) for line in (ROOT / f"recipes/data/{TASK}/validation.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("summaries") / "run"
    train(TASK, folder, *FEW)
    return folder


def test_scores_are_rouge_of_the_predictions(finished):
    records = predictions(finished)
    assert [(r["document"], r["reference"]) for r in records] == [(row["document"], row["summary"]) for row in ROWS[:5]]
    texts, references = [record["prediction"] for record in records], [record["reference"] for record in records]
    evaluation = lines(finished, "eval_loss")[-1]
    expected = rouge_scores(texts, references, "english")
    assert {name: evaluation[f"eval_{name}"] for name in expected} == pytest.approx(expected)
    report = (finished / "report.md").read_text()
    assert re.search(r"targets truncated to task\.max_target_length=\d+ \| 12 of 12 ", report)


def test_predict_repeats_the_runs_own_summaries(finished, tmp_path):
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({"document": row["document"]}) + "\n" for row in ROWS[:5]))
    assert run_command("predict", finished, "--data", tmp_path / "new.jsonl", "--output", tmp_path / "out.jsonl") == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["prediction"] for record in records] == [record["prediction"] for record in predictions(finished)]


@pytest.mark.slow
def test_every_split_of_a_window_gives_the_same_training(tmp_path):
    assert_splits_agree(TASK, tmp_path, *SGD, "data.max_train_samples=13", "train.max_steps=4", "eval.eval_steps=null",
                        "checkpoint.save_steps=null")  # fmt: skip


def test_rows_without_a_summary_are_named(tmp_path):
    rows = [*ROWS[:3], {"document": "Rain.", "summary": 3}, {"document": " ", "summary": "Rain."}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError) as refused:
        train(TASK, tmp_path / "run", f"data.train_file={tmp_path / 'rows.jsonl'}", "data.validation_file=null")
    assert "row 4: column 'summary' holds 3, not text" in str(refused.value)
    assert "row 5: column 'document' is empty" in str(refused.value)
