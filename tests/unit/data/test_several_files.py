"""Several training files: one table, whose rows keep their file and number, and shares of an epoch (`data.mix`)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from commands import run_command
from runs import ROOT, TINY, shipped, train

from toolkit.base.errors import ConfigError, DataError
from toolkit.data.loading import CheckedRows, check_rows
from toolkit.data.table import write_bad_rows
from toolkit.recipe import load_settings

REVIEWS = shipped(ROOT / "recipes/reviews.py")
SMOKE = ROOT / "recipes/configs/reviews/smoke.yaml"
BOTH = ("data.train_file=[old.csv, new.csv]", "data.validation_file=null", "eval.eval_steps=null")


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Writes CSV files, and returns the checked rows of a run on them."""
    monkeypatch.chdir(tmp_path)

    def check(*overrides: str, **files: list[str]) -> CheckedRows:
        for name, lines in files.items():
            Path(f"{name}.csv").write_text("\n".join([*lines, ""]))
        cfg = load_settings(REVIEWS, SMOKE, [*BOTH, *overrides]).config
        return check_rows(cfg, REVIEWS(cfg))

    return check


def table(name: str, count: int, header: str = "text,label") -> list[str]:
    return [header, *(f"{name} {row},{'good' if row % 2 else 'bad'}" for row in range(count))]


def by_file(rows) -> Counter:
    return Counter(text.split()[0] for text in rows["text"][:])


def test_all_rows_of_all_files_are_one_table(check):
    rows = check("data.validation_split=0.25", old=table("old", 30), new=table("new", 10))
    assert by_file(rows.splits["train"]) + by_file(rows.splits["validation"]) == {"old": 30, "new": 10}
    assert set(by_file(rows.splits["validation"])) == {"old", "new"}
    assert check("data.validation_split=0.25").fingerprints == rows.fingerprints
    assert check("data.validation_split=0.25", "data.train_file=[new.csv, old.csv]").fingerprints != rows.fingerprints


def test_bad_rows_are_those_of_their_files(check, tmp_path):
    wrong = {"old": [*table("old", 30), ",good"], "new": [*table("new", 10), "new 1,", ",bad"]}
    with pytest.raises(DataError) as caught:
        check(**wrong)
    assert str(caught.value).splitlines()[:3] == [
        "3 of 43 rows cannot be used:",
        "  old.csv, row 32: column 'text' is empty",
        "  new.csv, row 12: column 'label' is empty",
    ]
    with pytest.raises(DataError, match=r"^new\.csv: 2 of 12 rows cannot be used"):  # of all, 3 of 43 are
        check("data.bad_rows=skip", **wrong)
    rows = check("data.bad_rows=skip", "data.max_bad_rows=0.2")
    assert rows.bad_rows == {"train": 3}
    write_bad_rows(rows.tables, tmp_path / "bad.jsonl")
    found = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(line["file"], line["row"]) for line in found] == [("old.csv", 32), ("new.csv", 12), ("new.csv", 13)]


def test_a_missing_column_names_its_file(check):
    with pytest.raises(DataError, match=r"^new\.csv has no column 'text'"):
        check(old=table("old", 30), new=table("new", 10, "body,label"))


def test_equal_rows_are_found_across_files_and_stay_together(check):
    rows = check("data.validation_split=0.3", old=table("same", 30), new=table("same", 30))
    (found,) = [text for text in rows.findings.warnings() if "duplicate" in text]
    assert found.startswith("old.csv and new.csv: 30 exact duplicates of earlier rows (rows old.csv:2 and new.csv:2,")
    sides = [set(part["text"][:]) for part in rows.splits.values()]
    assert not sides[0] & sides[1]
    assert len(check("data.drop_duplicates=true", "data.validation_split=0").splits["train"]) == 30


def test_rows_of_a_validation_file_that_are_in_any_of_the_files_are_found(check):
    leaked = ["text,label", "new 3,good", "other,bad"]
    rows = check("data.validation_file=held.csv", old=table("old", 30), new=table("new", 10), held=leaked)
    (found,) = [text for text in rows.findings.warnings() if "optimistic" in text]
    assert "(rows new.csv:5 and held.csv:2 of their files)" in found


def test_a_maximum_takes_the_first_rows_of_each_file_in_proportion(check):
    rows = check("data.max_train_samples=8", "data.validation_split=0", old=table("old", 30), new=table("new", 10))
    assert rows.splits["train"]["text"][:] == [*(f"old {row}" for row in range(6)), "new 0", "new 1"]


def test_files_of_one_name_are_told_apart_by_their_paths(check, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_text("\n".join([*table("same", 20), ""]))
    rows = check("data.train_file=[a/rows.csv, b/rows.csv]")
    assert "(rows a/rows.csv:2 and b/rows.csv:2," in " ".join(rows.findings.warnings())


def test_a_list_of_one_is_a_file(check):
    rows = check("data.train_file=[old.csv]", "data.mix=[3]", "data.validation_split=0", old=table("old", 30))
    assert len(rows.splits["train"]) == 30


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.train_file=[old.csv, none.csv]", "data.train_file: received 'none.csv', there is no such file"),
        ("data.train_file=[old.csv, old.doc]", "there is no such file"),
        ("data.train_file=[old.csv, '  ']", "data.train_file: received '  ', expected text that is not blank"),
        ("data.train_file=[old.csv, 3]", "received ['old.csv', 3] (a list), expected text, a list of text or null"),
        ("data.mix=[1, 0]", "data.mix: received 0, must be above 0"),
        ("data.mix=[1, .inf]", "data.mix: received .inf, expected a finite number"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_read(check, setting, message):
    Path("old.csv").write_text("text,label\na,good\n")
    with pytest.raises(ConfigError) as caught:
        check(setting)
    assert message in str(caught.value)


def test_the_name_of_a_file_may_have_any_characters(check):
    name = "odd: {a}, #1.csv"
    Path(name).write_text("\n".join([*table("old", 30), ""]))
    assert len(check(f"data.train_file={name}", "data.validation_split=0").splits["train"]) == 30


def test_a_share_without_a_row_is_an_error(check, capsys, tmp_path):
    check(old=table("old", 30), new=table("new", 10))
    with pytest.raises(DataError, match=r"data\.mix: new\.csv: an epoch of 36 rows has 0 of this file, which has 8\."):
        train("reviews", tmp_path / "run", *BOTH, "data.mix=[1, 0.001]")
    assert run_command("validate", "reviews", "--config", SMOKE, *BOTH, "data.mix=[1, 0.001]") == 2
    assert "data.mix: new.csv: an epoch of 36 rows has 0 of this file" in capsys.readouterr().err


def test_repeats_are_counted_and_each_file_has_a_score(check, caplog, tmp_path):
    check(old=table("old", 60), new=table("new", 30))
    sizes = tuple(each for each in TINY if "max_eval_samples" not in each)
    own = ("data.mix=[1, 3]", "data.validation_split=0.4", "train.max_steps=2", "eval.slices=[label]")
    train("reviews", tmp_path / "run", *BOTH, *own, sizes=sizes)
    counts = by_file(check(*BOTH, "data.validation_split=0.4").splits["train"])
    repeats = f"{round(0.75 * 54) - counts['new']} of {round(0.75 * 54)} rows of an epoch repeat others (data.mix)"
    assert f"new.csv: {repeats}" in caplog.text
    assert "old.csv: " in caplog.text
    assert "rows are not drawn in every epoch (data.mix)" in caplog.text
    report = (tmp_path / "run/report.md").read_text()
    assert "| new.csv | rows of an epoch repeat others (data.mix) |" in report
    slices = report.partition("## Slices (validation)")[2].partition("\n## ")[0]
    held = by_file(check(*BOTH, "data.validation_split=0.4").splits["validation"])
    for file, count in held.items():
        assert f"| file={file}.csv | {count} | " in slices
    assert "| label=good | " in slices
    lines = [json.loads(line) for line in (tmp_path / "run/predictions.jsonl").read_text().splitlines()]
    assert Counter(line["file"] for line in lines) == {f"{file}.csv": count for file, count in held.items()}
    texts = {
        (f"{name}.csv", row + 2): f"{name} {row}" for name, most in (("old", 60), ("new", 30)) for row in range(most)
    }
    assert all(line["text"] == texts[line["file"], line["row"]] for line in lines)
    assert lines[0]["slices"] == {"label": lines[0]["label"]}
