"""Tables that are written come back the same, in every format, or the format is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from openpyxl import load_workbook

from toolkit.base.errors import DataError, InputError
from toolkit.data import writers
from toolkit.data.writers import OutputTable, check_excel, check_format, write_table

COLUMNS = ["ID", "Text; short", "prediction", "score", "scores", "error"]
ROWS: list[dict[str, Any]] = [
    {"ID": "007", "Text; short": 'a "quoted", text\r with\nlines — ü', "prediction": "yes", "score": 0.25,
     "scores": {"yes": 0.25, "no": 0.125}, "error": None},
    {"ID": "=1+1", "Text; short": "", "prediction": None, "score": None, "scores": None, "error": "it is empty"},
    {"ID": "x", "prediction": "no", "score": 1.0, "scores": {"yes": 0.0, "no": 1.0}, "error": None},
]  # fmt: skip
FLAT = [
    ["007", 'a "quoted", text\r with\nlines — ü', "yes", "0.25", '{"yes": 0.25, "no": 0.125}', ""],
    ["=1+1", "", "", "", "", "it is empty"],
    ["x", "", "no", "1.0", '{"yes": 0.0, "no": 1.0}', ""],
]


def written(path: Path, columns: list[str] = COLUMNS, rows: list[dict[str, Any]] = ROWS, **style: Any) -> Path:
    write_table(path, OutputTable(columns, lambda: iter(rows), **style))
    return path


@pytest.mark.parametrize(("name", "given", "used"), [("a.csv", ",", ","), ("a.csv", ";", ";"), ("a.TSV", ";", "\t")])
@pytest.mark.parametrize("mark", [False, True])
def test_delimited_text_comes_back(tmp_path, name, given, used, mark):
    path = written(tmp_path / name, delimiter=given, byte_order_mark=mark)
    content = path.read_bytes()
    assert content.startswith(b"\xef\xbb\xbfID") == mark
    assert content.endswith(b"\n")
    assert b"\r\n" not in content
    with path.open(encoding="utf-8-sig", newline="") as file:
        assert list(csv.reader(file, delimiter=used)) == [COLUMNS, *FLAT]


def test_json_lines_keep_values_and_what_a_row_lacks(tmp_path):
    lines = written(tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == ROWS


def test_excel_has_numbers_and_texts_but_no_formulas(tmp_path):
    sheet = load_workbook(written(tmp_path / "a.xlsx")).active
    header, *rows = [[cell.value for cell in row] for row in sheet]
    assert header == COLUMNS
    assert rows[0][:4] == ["007", ROWS[0]["Text; short"], "yes", 0.25]
    assert rows[1] == ["=1+1", None, None, None, None, "it is empty"]
    assert sheet["A3"].data_type == "s"
    assert rows[2][3] == 1.0


def test_parquet_keeps_types_and_writes_mixed_columns_as_text(tmp_path):
    rows = [*ROWS, {"ID": 5, "score": 1, "prediction": ["a", "b"]}]
    table = pq.read_table(written(tmp_path / "a.parquet", rows=rows)).to_pylist()
    assert [row["score"] for row in table] == [0.25, None, 1.0, 1.0]
    assert table[0]["scores"] == ROWS[0]["scores"]
    assert [row["ID"] for row in table] == ["007", "=1+1", "x", "5"]
    assert table[3]["prediction"] == "a,b"
    assert [row["error"] for row in table] == [None, "it is empty", None, None]


def test_parquet_types_are_those_of_all_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "BATCH_ROWS", 2)
    rows: list[dict[str, Any]] = [{"n": None}, {"n": 1}, {"n": 2}, {"n": 0.5}]
    assert pq.read_table(written(tmp_path / "a.parquet", ["n"], rows)).to_pylist() == [
        {"n": None}, {"n": 1.0}, {"n": 2.0}, {"n": 0.5},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (["a", "b"], "a,b"),
     (["a,b", "c"], '["a,b", "c"]'), ([1, {"x": b"123"}], '[1, {"x": "<3 bytes>"}]'),
     ([], ""), (None, ""), (b"12", "<2 bytes>"), (3, "3")],
)  # fmt: skip
def test_values_of_cells(value, text):
    assert writers.flat(value) == text


def test_excels_limits_are_told_before_anything_is_written(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"row 2, column 'text': 40,000 characters, .* at most 32,767; write .csv"):
        check_excel([{"text": "a"}, {"text": "x" * 40_000}])
    monkeypatch.setattr(writers, "EXCEL_ROWS", 3)
    with pytest.raises(DataError, match="at most 2 rows"):
        check_excel([{}] * 3)
    with pytest.raises(DataError, match="row 1, column 'prediction'"):
        written(tmp_path / "a.xlsx", ["prediction"], [{"prediction": "x" * 40_000}])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_former_file(tmp_path):
    (tmp_path / "a.csv").write_text("former")

    def rows():
        yield {"n": 1}
        raise DataError("changed")

    with pytest.raises(DataError):
        write_table(tmp_path / "a.csv", OutputTable(["n"], rows))
    assert (tmp_path / "a.csv").read_text() == "former"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["answers", "answers.txt", "answers.csv.gz"])
def test_other_endings_are_rejected_with_the_list(name):
    with pytest.raises(InputError, match=r"expected a name that ends in .csv, .tsv, .xlsx, .jsonl, .parquet or .npy"):
        check_format(Path(name))


def test_excel_without_its_library_names_the_extra(monkeypatch):
    monkeypatch.setattr(writers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"install the extra `excel` .*or write .csv"):
        check_format(Path("answers.xlsx"))
