"""What is said about rows before training: labels, duplicates, contradictions, groups, and rows of other splits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from runs import ROOT

from toolkit.base.errors import DataError
from toolkit.data.keys import misspelt, near_equal
from toolkit.data.loading import CheckedRows, check_rows
from toolkit.recipe import load_settings, load_task_type

REVIEWS = load_task_type(ROOT / "recipes/reviews.py")
QA = load_task_type(ROOT / "recipes/qa.py")


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Writes CSV files with a header, and returns the checked rows of a run on them."""
    monkeypatch.chdir(tmp_path)
    settings = ["data.train_file=train.csv", "data.validation_file=null", "data.validation_split=0.25"]

    def check(*overrides: str, header: str = "text,label,who", **files: list[str]) -> CheckedRows:
        for name, lines in files.items():
            Path(f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
        path = ROOT / "recipes/configs/reviews/smoke.yaml"
        cfg = load_settings(REVIEWS, path, [*settings, *overrides]).config
        return check_rows(cfg, REVIEWS(cfg))

    return check


def distinct(count: int, labels: str = "ab") -> list[str]:
    return [f"text {row},{labels[row % len(labels)]},{row // 4}" for row in range(count)]


def test_equal_numbers_are_one_class_in_their_shortest_form(check):
    ratings = ["5", "5.0", " 5", "1", "1.0", "+1", "3.50", "007"]
    rows = check(train=[f"text {row},{ratings[row % 8]}," for row in range(160)])
    counts = {name: sum(part[name] for part in rows.findings.labels.values()) for name in rows.findings.labels["train"]}
    assert counts == {"1": 60, "3.5": 20, "5": 60, "007": 20}
    assert rows.findings.warnings() == []
    assert "regression" not in " ".join(rows.findings.notes())


def test_labels_are_counted_before_training_and_whole_numbers_are_said_to_be_classes(check):
    rows = check(train=[f"text {row},{1 + row % 5}," for row in range(100)])
    assert rows.findings.notes() == [
        "5 labels in 75 training rows: 1 (15), 2 (15), 3 (15), 4 (15), 5 (15).",
        "Labels that are whole numbers are classes; task.problem_type=regression predicts numbers.",
    ]
    assert list(map(str, rows.findings.omissions)) == ["train.csv: 1 of 3 columns not used (33.3%): who"]


def test_similar_spellings_and_rare_labels_are_named(check):
    labels = ["good", "Good", "go-od", "5", "five", "-5", "bad"]
    found = check(train=[f"text {row},{labels[row % 7]}," for row in range(70)] + ["x,odd,", "y,odd,"]).findings
    spelling, rare = found.warnings()
    assert spelling == (
        "Labels that differ only in spelling: '5' (7), 'five' (8); 'Good' (7), 'go-od' (7), 'good' (7). "
        "Merge them with task.label_map."
    )
    assert rare.startswith("Labels with fewer than 5 training rows: odd (")
    assert near_equal(["Ça va", "ca  va", "-1", "1", "+", "-", "C", "C++"]) == [["Ça va", "ca  va"], ["C", "C++"]]


def test_labels_one_letter_off_a_frequent_one_are_named(check):
    labels = ["Shipping"] * 30 + ["Billing"] * 30 + ["Shiping", "Bililng", "Refund"]
    lines = [f"text {row},{label}," for row, label in enumerate(labels)]
    whole = ("data.validation_split=0", "eval.eval_steps=null", "checkpoint.load_best_model_at_end=false")
    warning = check(*whole, train=lines).findings.warnings()[0]
    assert warning.startswith("Labels that look misspelt: 'Bililng' (1) for 'Billing', 'Shiping' (1) for 'Shipping'.")
    assert misspelt({"airplane": 64, "automobile": 0, "airplan": 0}) == {}  # without rows, nothing is misspelt
    assert misspelt({"left": 50, "lift": 40, "A1": 90, "A2": 1, "cat": 50, "car": 1}) == {}


def test_a_label_map_merges_labels_and_names_what_no_row_has(check):
    labels = ["1", "2.0", "3", "4", "five"]
    rows = check("task.label_map={1: bad, 2: bad, '4.0': good, five: good, 9: never}",
                 train=[f"text {row},{labels[row % 5]}," for row in range(100)])  # fmt: skip
    assert rows.findings.labels["train"] == {"3": 15, "bad": 30, "good": 30}
    assert rows.findings.label_notes == ["task.label_map: no training row has 'never'."]


def test_rows_with_a_label_that_is_mapped_to_null_are_skipped_and_counted(check):
    labels = ["1", "2", "3.0", "4", "odd"]
    lines = [f"text {row},{labels[row % 5]}," for row in range(100)]
    rows = check("task.label_map={1: bad, 2: bad, 3: null, 4: good}", "task.label_map.odd=null", train=lines)
    assert rows.findings.labels["train"] == {"bad": 30, "good": 15}
    assert list(map(str, rows.findings.omissions)) == [
        "train.csv: 20 of 100 rows excluded (20.0%): task.label_map maps '3' to null",
        "train.csv: 20 of 100 rows excluded (20.0%): task.label_map maps 'odd' to null",
        "train.csv: 1 of 3 columns not used (33.3%): who",
    ]
    assert rows.findings.warnings() == []
    assert not any(rows.bad_rows.values())
    everything = dict.fromkeys(["1", "2", "3", "4", "odd"])
    with pytest.raises(DataError, match=r"none of its 100 rows can be used:\n  train.csv: 20 of 100 rows excluded"):
        check(f"task.label_map={json.dumps(everything)}", train=lines)


def test_duplicates_and_contradictions_are_counted_with_their_rows(check):
    found = check(train=[*distinct(40), "text 0,a,", "text 0,a,", "text 3,a,", "text 5,b,"]).findings
    assert found.warnings() == [
        "train.csv: 3 exact duplicates of earlier rows (rows 2 and 42, 2 and 43, 7 and 45).",
        "train.csv: 1 row with the inputs of an earlier row, but another label (rows 5 and 44).",
    ]


def test_equal_inputs_are_never_on_both_sides_and_a_test_split_leaves_the_validation_rows(check):
    lines = distinct(60) + [f"text {row},b," for row in range(30)]
    for seed in range(4):
        one = check(f"seed={seed}", train=lines)
        two = check(f"seed={seed}", "data.test_split=0.2", train=lines)
        assert one.findings.shared == two.findings.shared == {}
        texts = [set(part["text"]) for part in two.splits.values()]
        assert sum(map(len, texts)) == 60 == len(set.union(*texts))
        assert two.splits["validation"]["text"][:] == one.splits["validation"]["text"][:]
        assert list(two.splits) == ["train", "validation", "test"]
        assert 15 <= len(two.splits["test"]) <= 21


def test_groups_stay_on_one_side_and_are_counted(check):
    found = check("data.group_column=who", "data.test_split=0.25", train=distinct(80)).findings
    assert found.groups == {"train": 10, "validation": 5, "test": 5}
    assert found.shared_groups == {}
    assert found.notes()[1] == (
        "Groups by 'who': 10 in train (40 rows), 5 in validation (20 rows), 5 in test (20 rows)."
    )
    with pytest.raises(DataError, match="the 40 rows form 1 set of rows that stay together"):
        check("data.group_column=who", train=[f"{line[:-1]}9" for line in distinct(40)])
    with pytest.raises(DataError, match=r"no column 'speaker'.*Its columns are text, label, who"):
        check("data.group_column=speaker", train=distinct(40))


def test_rows_of_own_files_are_counted_and_never_moved(check):
    own = ["data.validation_file=validation.csv", "data.validation_split=null", "data.group_column=who"]
    rows = check(*own, train=distinct(40), validation=["text 1,b,0", "new,a,77", "text 8,a,78"])
    assert len(rows.splits["validation"]) == 3
    assert rows.findings.warnings() == [
        "2 of 3 validation rows also in the train rows (rows 3 and 2, 10 and 4 of their files); "
        "scores on them are optimistic.",
        "1 of 3 groups of the validation rows are also in train.",
    ]


def test_skipped_rows_are_counted_with_reasons(check):
    rows = check("data.bad_rows=skip", train=[*distinct(40), ",a,", "x,,"])
    assert str(rows.findings.omissions[0]) == (
        "train.csv: 2 of 42 rows cannot be used (4.8%): column 'text' is empty (1, first in row 42); "
        "column 'label' is empty (1, first in row 43)"
    )
    with pytest.raises(DataError, match=r"data\.max_bad_rows=0\.01 allows 1%.*data\.max_bad_rows to at least 0\.048"):
        check("data.bad_rows=skip", "data.max_bad_rows=0.01")


def test_questions_are_grouped_by_their_context_unless_another_column_is_named():
    def sides(*overrides: str) -> list[set[str]]:
        path = ROOT / "recipes/configs/qa/smoke.yaml"
        split = ["data.validation_file=null", "data.validation_split=0.25"]
        cfg = load_settings(QA, path, [f"data.train_file={ROOT / 'recipes/data/qa/train.json'}", *split, *overrides])
        cfg = replace(cfg.config, data=replace(cfg.config.data, max_train_samples=None, max_eval_samples=None))
        return [set(part["context"]) for part in check_rows(cfg, QA(cfg)).splits.values()]

    train, validation = sides()
    assert train
    assert validation
    assert not train & validation
    train, validation = sides("data.group_column=id")
    assert train & validation
