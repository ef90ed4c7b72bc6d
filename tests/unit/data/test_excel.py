"""Excel workbooks: sheets, cells as text, and files that are none."""

from __future__ import annotations

import sys
from datetime import date, datetime, time
from pathlib import Path
from zipfile import ZipFile

import openpyxl
import pytest

from toolkit.base.errors import DataError
from toolkit.config.paths import files_of, sheet_of
from toolkit.data.readers.raw import RECOGNISED, RawRow, Reading
from toolkit.data.sources import fingerprint, num_bytes, read_rows, reading_notes


@pytest.fixture
def workbook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def workbook(**sheets: list[list]) -> str:
        book = openpyxl.Workbook()
        book.remove(book.active)
        for name, rows in sheets.items():
            sheet = book.create_sheet(name)
            for row in rows:
                sheet.append(row)
        book.save("reviews.xlsx")
        return "reviews.xlsx"

    return workbook


def test_cells_are_the_text_of_a_csv_file(workbook):
    name = workbook(Ratings=[
        [], ["Text", "Rating", "When", "Sold", 2024],
        ["gut", 5.0, datetime(2024, 1, 31), True, 1e20],
        ["schlecht\n& neu", 0.1, datetime(2024, 1, 31, 12, 30), False, -3],
        [None, None], [" ", "", None], ["#N/A", 7, date(2024, 2, 1), time(8, 5), "007"], ["kurz"],
    ])  # fmt: skip
    header = ("Text", "Rating", "When", "Sold", "2024")
    assert list(read_rows(name)) == [
        RawRow(number, dict(zip(header, row, strict=True)))
        for number, row in (
            (3, ("gut", "5", "2024-01-31", "true", "1e+20")),
            (4, ("schlecht\n& neu", "0.1", "2024-01-31T12:30:00", "false", "-3")),
            (7, (None, "7", "2024-02-01", "08:05:00", "007")),
            (8, ("kurz", None, None, None, None)),
        )
    ]
    assert reading_notes(name, RECOGNISED) == []


def test_a_sheet_is_named_after_the_file(workbook):
    name = workbook(Q1=[["text"], ["first"]], **{"second quarter": [["text"], ["second"]]})
    other = f"{name}#second quarter"
    assert [row.values for row in read_rows(name)] == [{"text": "first"}]
    assert [row.values for row in read_rows(Path(other))] == [{"text": "second"}]
    assert fingerprint(other) != fingerprint(name)
    assert num_bytes(other) == num_bytes(name) == Path(name).stat().st_size
    assert reading_notes(other, RECOGNISED) == []
    assert reading_notes(name, RECOGNISED) == [
        "reviews.xlsx: read the first sheet, 'Q1'; for another one, add its name, as in 'reviews.xlsx#second quarter'"
    ]
    with pytest.raises(DataError) as error:
        list(read_rows(f"{name}#Q3"))
    assert str(error.value) == ("reviews.xlsx has no sheet 'Q3' (did you mean 'Q1'?); it has 'Q1', 'second quarter'.")


def test_names_with_a_sheet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sheet_of("a/b.XLSX#Q1") == ("a/b.XLSX", "Q1")
    assert sheet_of("b.xlsx") == ("b.xlsx", None)
    assert sheet_of("b.csv#Q1") == ("b.csv#Q1", None)
    assert files_of("b.xlsx#Q1") == ["b.xlsx"]
    assert files_of("a.{en,de}") == ["a.en", "a.de"]
    Path("b.xlsx#Q1").touch()
    assert sheet_of("b.xlsx#Q1") == ("b.xlsx#Q1", None)


def test_a_table_without_a_header_and_rows_that_are_too_long(workbook):
    name = workbook(A=[["gut", 5], ["schlecht", 1, "really"]])
    first, second = read_rows(name, Reading(header=False))
    assert first == RawRow(1, {"1": "gut", "2": "5"})
    assert second.reason == "3 cells where the first row has 2"


def test_a_formula_is_its_last_computed_value(workbook):
    name = workbook(A=[["text", "score"], ["x", 0]])
    with ZipFile(name) as archive:
        parts = {part: archive.read(part) for part in archive.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    parts[sheet] = parts[sheet].replace(b"<v>0</v>", b"<f>1+1</f><v>2</v>")
    with ZipFile(name, "w") as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
    assert list(read_rows(name)) == [RawRow(2, {"text": "x", "score": "2"})]


def test_a_formula_without_a_value_is_a_bad_row(workbook):
    rows = list(read_rows(workbook(A=[["text", "score"], ["x", 0], ["=B2", 1], ["y", "=1+1"], [None, 2]])))
    reasons = [row.reason and row.reason.partition(";")[0] for row in rows]
    assert reasons == [None, "a formula has no value", "a formula has no value", None]
    assert [row.number for row in rows] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], "has no rows"), ([["text"]], "has no rows"), ([["text", None, "b"], ["x"]], "has no name")],
)
def test_sheets_that_cannot_be_used(workbook, rows, message):
    with pytest.raises(DataError, match=message):
        list(read_rows(workbook(A=rows)))


def test_files_that_are_not_workbooks(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"PK text")
    with pytest.raises(
        DataError, match=r"a\.xlsx is not a whole \.xlsx workbook, or it has a password: File is not a zip"
    ):
        list(read_rows(tmp_path / "a.xlsx"))


def test_workbooks_that_are_damaged_inside(workbook):
    name = workbook(A=[["text"], *([f"row {number}"] for number in range(500))])
    content = Path(name).read_bytes()
    with ZipFile(name) as parts:
        places = [part.header_offset + 150 for part in parts.infolist() if part.compress_size > 1000]
    assert places
    for place in places:
        Path(name).write_bytes(content[:place] + bytes(64) + content[place + 64 :])
        with pytest.raises(DataError, match=r"is not a whole \.xlsx workbook"):
            list(read_rows(name))


def test_without_openpyxl_the_message_says_what_to_do(workbook, monkeypatch):
    name = workbook(A=[["text"], ["x"]])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError) as error:
        list(read_rows(name))
    assert str(error.value) == (
        "reviews.xlsx: Excel files need openpyxl, which is not installed; pip install 'finetune-toolkit[excel]', or "
        "save the sheet in Excel as 'CSV UTF-8'."
    )
