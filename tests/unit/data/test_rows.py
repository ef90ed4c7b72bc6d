"""Checked tables, their cache, and the policy about bad rows."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pytest
from rows_task import RowsTask

from toolkit.api.batch import BadRow
from toolkit.base.errors import DataError
from toolkit.config.fields import Column
from toolkit.data import table
from toolkit.data.columns import Beside
from toolkit.data.keys import NO_GROUP, row_keys
from toolkit.data.table import HubSplit, apply_policy, load_table, skipped, write_bad_rows


@dataclass(frozen=True)
class Options:
    shout: bool = False


@dataclass
class Reviews(RowsTask):
    options: Options = Options()
    state: dict[str, Any] = field(default_factory=dict)
    checked: int = 0
    columns = {  # noqa: RUF012
        "text": Column("the review"),
        "label": Column("its class", label=True),
        "id": Column("a name for the row", required=False),
    }

    def schema(self) -> datasets.Features:
        return datasets.Features({name: datasets.Value("string") for name in self.columns})

    def check_row(self, row: dict[str, Any], labelled: bool) -> dict[str, Any]:
        self.checked += 1
        if labelled and self.state and row["label"] not in self.state["labels"]:
            raise BadRow(f"label {row['label']!r} is unknown")
        return row | {"text": row["text"].upper() if self.options.shout else row["text"]}


class Questions(RowsTask):
    columns = {  # noqa: RUF012
        "id": Column("its name", required=False),
        "question": Column("the question"),
        "context": Column("the text"),
        "answers": Column("the answers", label=True),
    }

    def schema(self) -> datasets.Features:
        text, number = datasets.Value("string"), datasets.Value("int64")
        answers = {"text": datasets.List(text), "answer_start": datasets.List(number)}
        return datasets.Features({"id": text, "question": text, "context": text, "answers": answers})

    def check_row(self, row: dict[str, Any], labelled: bool) -> dict[str, Any]:
        return row


@pytest.fixture
def load(tmp_path: Path):
    """Writes a file and loads it with a separate cache."""

    def load(name: str, content: str | bytes, task: Any = None, columns: Any = None, labelled: bool = True) -> Any:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load_table(path, task or Reviews(), columns or {}, labelled, tmp_path / "cache")

    return load


def column(table: Any, name: str) -> list[Any]:
    return list(table.rows[name])


GARBLED = b'text,label\na,pos\ncaf\xe9,neg\n\n ,neg\n"b\nc",neg\nd\ne,\nf,pos\n'


# Tables


def test_good_and_bad_rows_keep_their_numbers(load):
    table = load("a.csv", GARBLED)
    assert column(table, "text") == ["a", "b\nc", "f"]
    assert column(table, "_number") == [2, 6, 10]
    assert table.rows.column_names == ["text", "label", "id", "_number", "_file", "_id", "_slices"]
    assert [(row.number, row.reason) for row in table.bad] == [
        (3, "column 'text' is not UTF-8 text (byte 0xe9 at character 4)"),
        (5, "column 'text' is empty"),
        (8, "1 field where the header has 2"),
        (9, "column 'label' is empty"),
    ]
    assert table.bad[0].values == {"text": "caf\\udce9", "label": "neg"}


def test_columns_are_mapped_and_only_the_tasks_columns_are_kept(load):
    table = load("a.csv", "text,body,stars\nold,new,5\n ,,4\n", columns={"text": "body", "label": "stars"})
    assert table.rows[0] == {
        "text": "new",
        "label": "5",
        "id": None,
        "_number": 2,
        "_file": None,
        "_id": None,
        "_slices": [],
    }
    assert table.bad[0].reason == "column 'body' is empty"


def test_labels_are_neither_needed_nor_read_without_labelled(load):
    assert column(load("a.csv", "text,label\na,pos\nb,\n", labelled=False), "label") == [None, None]
    assert column(load("b.csv", "text\na\n", columns={"label": "stars"}, labelled=False), "label") == [None]


def test_missing_columns_are_all_named_with_what_to_write(load):
    with pytest.raises(DataError) as error:
        load("reviews.csv", "review,stars\na,5\n")
    first, second = str(error.value).splitlines()
    assert "reviews.csv has no column 'text': the review. Its columns are review, stars." in first
    assert "Set data.columns.text." in first  # no name is similar
    assert "no column 'label'" in second
    with pytest.raises(
        DataError, match=r"'lable' \(the task's 'label'\).*Set data.columns.label, for instance to 'labels'\."
    ):
        load("b.csv", "text,title,labels\na,b,pos\n", columns={"label": "lable"})


@pytest.mark.parametrize(
    ("header", "columns", "advice"),
    [
        ("ID,Review Text,label", {}, "Set data.columns.text, for instance to 'Review Text'."),
        ("ID,TEXT,label", {}, "Set data.columns.text, for instance to 'TEXT'."),
        ("ID,body,label", {"text": "Body text"}, "Set data.columns.text, for instance to 'body'."),
        ("ID,Datum,label", {}, "Set data.columns.text."),
        ("ID~Datum~Review", {}, "If the file has several columns, set data.delimiter to the character between them."),
        (
            "A man in an orange hat starring at something.,Ein Mann",
            {},
            "If the first line is a row and not a header, set data.header=false and name the columns by number, as in "
            "data.columns.text=1.",
        ),
    ],
)
def test_advice_about_missing_columns(load, header, columns, advice):
    with pytest.raises(DataError) as error:
        load("a.csv", f"{header}\n" + ",".join(["x"] * (header.count(",") + 1)) + "\n", columns=columns)
    assert advice in [line[line.find(" Set data") + 1 :] for line in str(error.value).splitlines()]


def test_a_column_that_was_named_must_be_there_even_if_it_is_not_required(load):
    with pytest.raises(DataError, match="no column 'uid'"):
        load("a.csv", "text,label\na,pos\n", columns={"id": "uid"})


def test_json_rows_may_leave_columns_out(load):
    table = load("a.jsonl", '{"label": "pos"}\n{"text": "a", "label": "pos"}\n{"text": null, "label": "neg"}\n')
    assert column(table, "text") == ["a"]
    assert [(row.number, row.reason) for row in table.bad] == [
        (1, "column 'text' is empty"),
        (3, "column 'text' is empty"),
    ]


def test_a_column_may_first_occur_after_a_hundred_json_rows(load):
    row = '{"text": "a", "label": "pos"}\n'
    later = '{"text": "a", "label": "pos", "uid": "7"}\n'
    assert column(load("a.jsonl", row * 100 + later, columns={"id": "uid"}), "id") == [None] * 100 + ["7"]
    with pytest.raises(DataError, match=r"b\.jsonl has no column 'uid'.*Its columns are text, label\."):
        load("b.jsonl", row * 101, columns={"id": "uid"})
    # Rows without a needed value are bad rows only if the column is anywhere.
    assert len(load("c.jsonl", '{"label": "pos"}\n' * 100 + row).bad) == 100
    with pytest.raises(DataError, match=r"d\.jsonl has no column 'text'"):
        load("d.jsonl", '{"label": "pos"}\n' * 101)


def test_the_tasks_reasons_are_kept_and_its_own_faults_escape(load):
    task = Reviews(state={"labels": ["pos"]})
    assert load("a.csv", "text,label\na,pos\nb,good\n", task).bad[0].reason == "label 'good' is unknown"

    class Faulty(Reviews):
        def check_row(self, row: dict[str, Any], labelled: bool) -> dict[str, Any]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        load("a.csv", "text,label\na,pos\n", Faulty())


def test_squad_rows(load):
    question = {"id": 87, "question": "How much?", "answers": [{"text": "45%", "answer_start": 6}]}
    paragraph = {"context": "It is 45%.", "qas": [question, {"id": 88, "question": " ", "answers": []}]}
    table = load("a.json", json.dumps({"data": [{"paragraphs": [paragraph, {"context": "x"}]}]}), Questions())
    assert table.rows[0] == {"id": "87", "question": "How much?", "context": "It is 45%.",
                             "answers": {"text": ["45%"], "answer_start": [6]}, "_number": 1, "_file": None,
                             "_id": None, "_slices": []}  # fmt: skip
    assert [row.number for row in table.bad] == [2, 3]
    assert table.bad[0].reason == "column 'question' is empty"


def test_previews_are_short(load):
    table = load("a.jsonl", json.dumps({"text": "", "label": "x" * 500}) + '\n{"text": "a", "label": "b"}')
    assert table.bad[0].values["label"] == "x" * 79 + "…"


def test_hub_split(tmp_path):
    (tmp_path / "set").mkdir()
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    rows = datasets.Dataset.from_dict({"text": ["a", ""], "label": [1, 0]}, features=features)
    rows.to_parquet(tmp_path / "set" / "train.parquet")
    arguments = (str(tmp_path / "set"), None, None)
    table = load_table(HubSplit(*arguments, "train"), Reviews(), {}, True, tmp_path / "cache")
    assert column(table, "label") == ["pos"]
    assert [row.number for row in table.bad] == [2]
    with pytest.raises(DataError, match="no split 'test'; it has train"):
        load_table(HubSplit(*arguments, "test"), Reviews(), {}, True, tmp_path / "cache")


# Cache


def test_second_load_reads_the_cache_and_gives_the_same(load):
    first = load("a.csv", GARBLED)
    task = Reviews()
    second = load("a.csv", GARBLED, task)
    assert task.checked == 0
    assert second.rows.to_list() == first.rows.to_list()
    assert second.rows._fingerprint == first.rows._fingerprint  # what later steps are cached by
    assert (second.bad, second.fingerprint) == (first.bad, first.fingerprint)


@pytest.mark.parametrize(
    "changed",
    [
        {"content": "text,label,b\na,pos,y\n"},
        {"task": Reviews(Options(shout=True))},
        {"task": Reviews(state={"labels": ["pos"]})},
        {"columns": {"text": "b"}},
        {"labelled": False},
        {"name": "a.tsv", "content": "text,label,b\ttext\tlabel\na,pos,x\tz\tpos\n"},
    ],
    ids=lambda changed: "+".join(changed),
)
def test_whatever_changes_the_rows_reads_anew(load, changed):
    usual = {"name": "a.csv", "content": "text,label,b\na,pos,x\n"}
    before = load(**usual).fingerprint
    task = changed.get("task") or Reviews()
    after = load(**(usual | changed | {"task": task}))
    assert task.checked == 1
    assert (after.fingerprint != before) is ("content" in changed)


def test_a_check_that_failed_leaves_nothing_in_the_cache(load):
    for _ in range(2):
        with pytest.raises(DataError, match="has no rows"):
            load("a.csv", "text,label\n")


def test_a_file_that_changes_while_it_is_read_is_not_cached(load, tmp_path):
    class Rewriting(Reviews):
        def check_row(self, row: dict[str, Any], labelled: bool) -> dict[str, Any]:
            (tmp_path / "a.csv").write_text("text,label\nnew,neg\n")
            return row

    content = "text,label\nold,pos\nolder,pos\n"
    with pytest.raises(DataError, match=r"a\.csv, or a file that its rows refer to, changed while it was read"):
        load("a.csv", content, Rewriting())
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    assert column(load("a.csv", content), "text") == ["old", "older"]


@pytest.mark.parametrize("disabled", [True, False])
def test_progress_bars_are_left_as_they_were(load, disabled):
    before = datasets.are_progress_bars_disabled()
    switch = {True: datasets.disable_progress_bars, False: datasets.enable_progress_bars}
    try:
        switch[disabled]()
        load("a.csv", GARBLED)
        assert datasets.are_progress_bars_disabled() is disabled
    finally:
        switch[before]()


def test_progress_is_shown_for_large_files_only(load, monkeypatch, capfd):
    load("a.csv", GARBLED)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(table, "PROGRESS_FROM_BYTES", 1)
    load("b.csv", GARBLED + b"g,pos\n")
    assert "8 examples" in capfd.readouterr().err


# Policy


def test_error_lists_the_first_rows_of_all_splits(load):
    tables = {"train": load("t.csv", "text,label\n" + ",pos\n" * 18 + "a,pos\n"), "test": load("v.csv", GARBLED)}
    with pytest.raises(DataError) as error:
        apply_policy(tables, "error")
    lines = str(error.value).splitlines()
    assert lines[0] == "22 of 26 rows cannot be used:"
    assert lines[1].endswith("t.csv, rows 2, 3, 4, 5, 6 and 13 more: column 'text' is empty")
    assert lines[2].rpartition("/")[2].startswith("v.csv, row")
    assert len(lines) == 7
    assert "data.bad_rows=skip" in lines[-1]


def test_skip_counts_and_error_lets_good_tables_pass(load):
    tables = {"train": load("t.csv", "text,label\na,pos\n"), "test": load("v.csv", GARBLED)}
    assert apply_policy(tables, "skip") == {"train": 0, "test": 4}
    assert apply_policy({"train": tables["train"]}, "error") == {"train": 0}


def test_skip_rejects_a_table_without_a_usable_row(load):
    tables = {"train": load("t.csv", "text,label\n,pos\n,neg\n")}
    with pytest.raises(
        DataError, match=r"none of its 2 rows can be used:\n.*t.csv, rows 2 and 3: column 'text' is empty"
    ):
        apply_policy(tables, "skip")


def test_bad_rows_are_written_whole(load, tmp_path, monkeypatch):
    tables = {"train": load("t.csv", GARBLED), "test": load("v.csv", "text,label\n,é\na,pos\n")}
    path = tmp_path / "bad_rows.jsonl"
    write_bad_rows(tables, path)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [Path(record["file"]).name for record in records] == ["t.csv"] * 4 + ["v.csv"]
    assert records[-1] | {"file": ""} == {"file": "", "row": 2, "reason": "column 'text' is empty",
                                          "values": {"text": "", "label": "é"}}  # fmt: skip
    before = path.read_bytes()
    monkeypatch.setattr(table.json, "dumps", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_bad_rows(tables, path)
    assert path.read_bytes() == before


def test_too_many_skipped_rows_stop_the_run_with_their_reasons(load):
    table = load("t.csv", "text,label\n,pos\n ,neg\na,pos\nb,neg\nc,pos\nd\ne,f,g\n")
    tables = {"train": table}
    assert apply_policy(tables, "skip", 4 / 7) == {"train": 4}
    with pytest.raises(DataError) as error:
        apply_policy(tables, "skip", 0.5)
    assert str(error.value).partition("t.csv: ")[2] == (
        "4 of 7 rows cannot be used (57.1%): column 'text' is empty (2, first in row 2); 1 field where the header has "
        "2 (1, first in row 7); 3 fields where the header has 2 (1, first in row 8); data.max_bad_rows=0.5 allows 50%. "
        "Correct them, or set data.max_bad_rows to at least 0.572."
    )


def test_reasons_that_differ_in_values_only_are_counted_together(load):
    task = Reviews(state={"labels": ["pos"]})
    rows = "".join(f"a,x{number}\n" for number in range(5)) + ",pos\nb,pos\n"
    line = skipped(load("t.csv", "text,label\n" + rows, task))
    assert "label 'x0' is unknown (5, first in row 2); column 'text' is empty (1, first in row 7)" in str(line)


def test_digests_follow_inputs_labels_and_groups(load):
    content = "id,text,label,who\n1,a,pos,x\n2,a,pos,\n3,b,pos, x\n4,a,neg,y\n"
    first = load("a.csv", content).keys  # `id` is an input of this task
    assert len(set(first.inputs)) == 4
    assert first.groups.tolist() == [0] * 4
    task = Reviews()
    task.columns = Reviews.columns | {"id": Column("a name", required=False, key=True)}
    path = load("b.csv", content, task).source
    keys = load_table(path, task, {}, True, Path(path).parent / "cache", beside=Beside(group="who")).keys
    assert (keys.inputs[:, None] == keys.inputs).tolist() == [
        [True, True, False, True], [True, True, False, True], [False, False, True, False], [True, True, False, True]
    ]  # fmt: skip
    assert keys.labels[0] == keys.labels[2] != keys.labels[3]
    assert keys.groups[0] == keys.groups[2] != keys.groups[3]
    assert keys.groups[1] == 0
    with pytest.raises(DataError, match=r"data\.group_column: .* has no column 'whom' \(did you mean 'who'\?\)"):
        load_table(path, task, {}, True, Path(path).parent / "cache", beside=Beside(group="whom"))


@pytest.mark.parametrize("missing", [None, float("nan"), "", " "])
def test_a_missing_value_is_no_group(missing):
    assert row_keys({"text": "a", "label": "b"}, Reviews(), missing)["_group"] == NO_GROUP


def test_equal_numbers_are_one_group():
    groups = [row_keys({"text": "a", "label": "b"}, Reviews(), value)["_group"] for value in (5, 5.0, "5", " 5.0", 6)]
    assert len(set(groups[:4])) == 1
    assert groups[4] != groups[0] != NO_GROUP


@pytest.mark.parametrize("count", [3, 8, 9, 100, 1001])
def test_a_sample_is_spread_over_the_file(tmp_path, count):
    file = tmp_path / "sorted.jsonl"
    file.write_text("".join(json.dumps({"text": str(i), "label": str(2 * i // count)}) + "\n" for i in range(count)))
    rows = load_table(file, Reviews(), {}, True, tmp_path / "cache", sample=8).rows
    numbers = [int(text) for text in rows["text"]]
    assert len(numbers) == min(8, count)
    assert numbers == sorted(set(numbers))
    assert set(rows["label"]) == {"0", "1"}
