"""The first rows are checked against the labels of a training file that they contain completely."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from runs import ROOT

from toolkit.checks.first_rows import NUM_ROWS, first_row_problems
from toolkit.recipe import load_settings, load_task_type

RECIPE = load_task_type(ROOT / "recipes" / "reviews.py")


@pytest.fixture
def problems(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, labels in (("validation", ("good", "neutral")), ("test", ("odd", "bad"))):
        Path(f"{name}.csv").write_text("text,label\n" + "".join(f"nice,{label}\n" for label in labels))
    cfg = load_settings(RECIPE, ROOT / "recipes/configs/reviews/smoke.yaml", [], check_files=False).config
    files = {f"{name}_file": f"{name}.csv" for name in ("train", "validation", "test")}

    def found(train: str, num_rows: int = 6, task: dict | None = None, **changes) -> list[str]:
        Path("train.csv").write_text("text,label\n" + train * (num_rows // train.count("\n")))
        changed = replace(cfg, data=replace(cfg.data, **(files | changes)), task=replace(cfg.task, **(task or {})))
        return first_row_problems(changed.data, RECIPE(changed))

    return found


def test_labels_unknown_to_a_short_training_file_are_named(problems):
    found = problems("a,good\nb,bad\n", NUM_ROWS)
    assert [problem.split(" cannot be used: ")[0] for problem in found] == [
        "data.validation_file: 1 of the first 2 rows of validation.csv",
        "data.test_file: 1 of the first 2 rows of test.csv",
    ]
    assert "row 3: label 'neutral' is not one of bad, good" in found[0]
    assert "row 2: label 'odd' is not one of bad, good" in found[1]
    assert problems("a,good\nb,bad\n", bad_rows="skip") == []


def test_names_of_columns_that_no_file_uses_are_named(problems, tmp_path):
    for label in ("a", "b"):
        (tmp_path / "set" / label).mkdir(parents=True)
        (tmp_path / "set" / label / "1.png").touch()
    fixed = "the columns of folders, archives and .txt files have fixed names"
    unused = f"data.columns: has no effect, because {fixed}; remove it"
    files = {f"{name}_file": "set" for name in ("train", "validation", "test")}
    assert unused in problems("a,good\nb,bad\n", columns={"text": "image"}, **files)
    files["test_file"] = "test.csv"
    assert unused not in problems("a,good\nb,bad\n", columns={"text": "text"}, **files)


def test_each_file_of_a_list_is_checked_and_labels_are_those_of_all(problems):
    Path("new.csv").write_text("text,label\nc,neutral\nd,odd\n")
    both = {"train_file": ["train.csv", "new.csv"]}
    assert problems("a,good\nb,bad\n", **both) == []
    Path("new.csv").write_text("body,label\nc,neutral\n")
    (problem,) = problems("a,good\nb,bad\n", **both)  # what the labels are is not known
    assert problem.startswith("data.train_file: new.csv has no column 'text'")
    Path("new.csv").write_text("text,label\nc,neutral\n,odd\n")
    (problem,) = problems("a,good\nb,bad\n", **both)
    assert "1 of the first 2 rows of new.csv cannot be used: row 3" in problem


def test_the_settings_of_reading_apply(problems):
    found = problems("a,good\nb,bad\n", header=False)
    assert found[0].startswith("data.train_file: train.csv has no column 'text': ")
    assert found[0].endswith("Its columns are 1, 2. Set data.columns.text.")
    assert found[1].endswith("Its columns are 1, 2. Set data.columns.label.")
    assert found[2].startswith("data.validation_file: ")


def test_a_longer_training_file_may_have_further_labels(problems):
    assert problems("a,good\nb,bad\n", NUM_ROWS + 2) == []


def test_what_cannot_be_learned_from_the_training_rows_is_named(problems):
    assert problems("a,good\n", bad_rows="skip") == [
        "data.train_file: all training rows have the label 'good'; classification needs at least two labels."
    ]
    balanced = {"labels": ["bad", "good", "neutral", "odd"], "class_weights": "balanced"}
    assert problems("a,good\nb,bad\n", task=balanced) == [
        "data.train_file: task.class_weights=balanced: no training row has the label neutral, odd."
    ]


def test_the_labels_of_a_task_without_classes_are_not_learned(problems):
    numbers = problems("a,1.5\nb,2\n", task={"problem_type": "regression"})
    assert [problem.split(" of the")[0] for problem in numbers] == ["data.validation_file: 2", "data.test_file: 2"]


def test_a_column_may_first_occur_after_the_first_rows_of_json(problems):
    row = '{"text": "a", "label": "good"}\n'
    Path("rows.jsonl").write_text(row * NUM_ROWS + '{"text": "b", "label": "bad", "uid": "7"}\n')
    assert problems("a,good\nb,bad\n", train_file="rows.jsonl", group_column="uid", validation_file=None) == [
        "data.test_file: data.group_column: test.csv has no column 'uid'. Its columns are text, label."
    ]
