"""Every text reader: contents of good rows, numbers and reasons of bad rows, and refused files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.base.errors import DataError
from toolkit.data.readers import delimited
from toolkit.data.readers.raw import RawRow
from toolkit.data.sources import read_rows


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, content: str | bytes | Any) -> Path:
        path = tmp_path / name
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def reasons(path: Path) -> dict[int, str]:
    return {row.number: row.reason for row in read_rows(path) if row.reason}


def good(path: Path) -> dict[int, dict[str, Any]]:
    return {row.number: row.values for row in read_rows(path) if not row.reason}


# CSV and TSV


def test_csv_rows_carry_the_line_on_which_they_start(write):
    path = write("a.csv", 'text,label\n"two\nlines, one field",pos\n\nplain,neg\r\n"a ""quote""",pos')
    assert list(read_rows(path)) == [
        RawRow(2, {"text": "two\nlines, one field", "label": "pos"}),
        RawRow(5, {"text": "plain", "label": "neg"}),
        RawRow(6, {"text": 'a "quote"', "label": "pos"}),
    ]


def test_csv_byte_order_mark_is_not_part_of_the_first_name(write):
    assert good(write("a.csv", b"\xef\xbb\xbftext,label\nfine,pos\n")) == {2: {"text": "fine", "label": "pos"}}


def test_tsv(write):
    assert good(write("a.tsv", "text\tlabel\none, two\tpos\n")) == {2: {"text": "one, two", "label": "pos"}}


def test_csv_wrong_number_of_fields(write):
    path = write("a.csv", "text,label\na,pos\nb\nc,neg,extra\nd,neg\n")
    assert reasons(path) == {3: "1 field where the header has 2", 4: "3 fields where the header has 2"}
    assert list(good(path)) == [2, 5]


def test_csv_row_in_another_encoding_spoils_only_itself(write):
    path = write("a.csv", b"text,label\na,pos\ncaf\xe9,pos\n\xc3\xa9t\xc3\xa9,neg\n")
    assert reasons(path) == {3: "column 'text' is not UTF-8 text (byte 0xe9 at character 4)"}
    assert good(path) == {2: {"text": "a", "label": "pos"}, 4: {"text": "été", "label": "neg"}}


def test_csv_stray_nul_byte_spoils_only_its_row(write):
    path = write("a.csv", "text,label\n" + "fine,pos\n" * 20 + "a\x00b,pos\n")
    assert reasons(path) == {22: "column 'text' is not UTF-8 text (NUL byte at character 2)"}


def test_csv_quote_that_is_never_closed_loses_one_row(write):
    path = write("a.csv", 'text,label\na,pos\n"oops,pos\nb,neg\nc,pos\n')
    assert reasons(path) == {3: "lines 3 to 5: a quoted field is not closed"}
    assert list(good(path)) == [2, 4, 5]


def test_csv_field_beyond_the_limit_is_a_quote_never_closed(write, monkeypatch):
    monkeypatch.setattr(delimited, "MAX_FIELD_CHARS", 20)
    path = write("a.csv", 'text,label\n"oops,pos\n' + "b,neg\n" * 9)
    assert list(reasons(path)) == [2]
    assert list(good(path)) == list(range(3, 12))


def test_csv_fields_longer_than_the_librarys_own_limit(write):
    path = write("a.csv", f"text,label\n{'x' * 200_000},pos\n")
    for _ in range(2):  # the limit belongs to the process: other code may set it between two readings
        assert len(good(path)[2]["text"]) == 200_000
        csv.field_size_limit(100)


def test_csv_text_after_a_closing_quote(write):
    path = write("a.csv", 'text,label\n"so "good" it is",pos\n"x\ny"z,pos\nb,neg\n')
    assert list(good(path)) == [5]
    assert "after the closing quote" in reasons(path)[2]
    assert reasons(path)[3].startswith("lines 3 to 4: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no rows"),
        (b"\n\n", "has no rows"),
        (b"text,label\n", "has no rows"),
        (b"text,label,text\na,b,c\n", "more than one column is named 'text'"),
        (b"text,\na,b\n", "a column has no name"),
        (b"te\xe9t,label\na,b\n", r"header \(line 1\) cannot be read: not UTF-8 text \(byte 0xe9 at character 3\)"),
        (b'"text,label\na,b\n', r"header \(line 1\) cannot be read: lines 1 to 2: a quoted field is not closed"),
        (bytes(range(256)) * 9 + bytes(999), "is not text: it has many NUL bytes, like a binary file"),
    ],
)
def test_csv_files_that_cannot_be_read(write, content, message):
    with pytest.raises(DataError, match=message):
        list(read_rows(write("a.csv", content)))


# JSON lines, JSON, SQuAD, text


def test_jsonl(write):
    path = write(
        "a.jsonl", b'{"text": "a"}\n\n  \n{"text": "b"\n["c"]\n{"text": "d\xe9"}\n{"text": "\\ud83d"}\n3\n{"text": "e"}'
    )
    assert good(path) == {1: {"text": "a"}, 9: {"text": "e"}}
    assert reasons(path) == {
        4: "not JSON: Expecting ',' delimiter at column 13",
        5: "expected a JSON object, received a list",
        6: "column 'text' is not UTF-8 text (byte 0xe9 at character 2)",
        7: "column 'text' is not UTF-8 text (lone surrogate U+D83D at character 1)",
        8: "expected a JSON object, received a number",
    }


def test_jsonl_finds_bad_text_inside_nested_values(write):
    path = write("a.jsonl", b'{"answers": {"text": ["fine", "\xff"], "answer_start": [0, 1]}}\n')
    assert reasons(path) == {1: "column 'answers' is not UTF-8 text (byte 0xff at character 1)"}


@pytest.mark.parametrize("wrapped", [False, True])
def test_json_list_of_objects(write, wrapped):
    rows = [{"text": "a"}, None, "b", {"text": "c"}]
    path = write("a.json", {"version": 1, "data": rows} if wrapped else rows)
    assert good(path) == {1: {"text": "a"}, 4: {"text": "c"}}
    assert reasons(path) == {2: "expected a JSON object, received null", 3: "expected a JSON object, received a string"}


def test_json_lines_under_the_name_of_json(write):
    path = write("a.json", '{"text": "a"}\n{"text": \n{"text": "c"}\n')
    assert list(good(path)) == [1, 3]
    assert list(reasons(path)) == [2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a"},\n {"text": }]', "line 2, column 11: Expecting value"),
        ('[{"text": "a"}', "line 1, column 15"),
        ("", "not JSON: line 1, column 1"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "has no rows"),
        ({"data": []}, "has no rows"),
        ({"rows": [1]}, "it holds an object with rows"),
        ("7", "it holds a number"),
    ],
)
def test_json_files_that_cannot_be_read(write, content, message):
    with pytest.raises(DataError, match=message):
        list(read_rows(write("a.json", content)))


def test_squad_nesting_is_flattened(write):
    answers = [{"text": " 45%", "answer_start": 4, "answer_id": 1}, {"text": "45", "answer_start": 5}]
    questions = [
        {"id": 87, "question": "How much?", "answers": answers, "is_impossible": False},
        {"id": "x", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    squad = {"version": "2.0", "data": [
        {"title": "t", "paragraphs": [
            {"context": "It is 45%.", "qas": questions},
            {"context": "Other.", "qas": [{"id": 1, "question": "No labels?"}]}]},
        {"paragraphs": [{"context": "Last.", "qas": [{"question": "No id?", "answers": []}]}]}]}  # fmt: skip
    assert good(write("a.json", squad)) == {
        1: {"id": "87", "question": "How much?", "context": "It is 45%.",
            "answers": {"text": [" 45%", "45"], "answer_start": [4, 5]}},
        2: {"id": "x", "question": "Why?", "context": "It is 45%.", "answers": {"text": [], "answer_start": []}},
        3: {"id": "1", "question": "No labels?", "context": "Other.", "answers": None},
        4: {"id": None, "question": "No id?", "context": "Last.", "answers": {"text": [], "answer_start": []}},
    }  # fmt: skip


def test_squad_malformed_parts_are_bad_rows(write):
    answer = {"text": "a", "answer_start": 0}
    questions = [
        "what?",
        {"id": 1, "question": "q", "answers": {"text": ["a"]}},
        {"id": 2, "question": "q", "answers": [{"text": "a", "answer_start": "0"}]},
        {"id": 3, "question": "q", "answers": [answer], "is_impossible": True},
        {"id": 4, "question": "q", "answers": [answer]},
    ]
    paragraphs = [{"context": None, "qas": []}, {"context": "abc"}, {"context": "abc", "qas": questions}]
    path = write("a.json", {"data": ["article", {"paragraphs": paragraphs}]})
    found = reasons(path)
    assert list(good(path)) == [8]
    assert list(found) == [1, 2, 3, 4, 5, 6, 7]
    assert found[1] == "not an article with a list of `paragraphs`"
    assert found[2] == found[3] == "not a paragraph with a string `context` and a list `qas`"
    assert found[4] == "expected a question object, received a string"
    assert found[5] == found[6]
    assert found[5].startswith("`answers` is not a list of objects with a string `text`")
    assert found[7] == "`is_impossible` is true, but there are answers"


def test_txt_keeps_the_line_numbers_of_lines_that_are_not_blank(write):
    path = write("a.txt", b"one \r\n\n  \ntwo\nth\xe9\nlast")
    assert good(path) == {1: {"text": "one "}, 4: {"text": "two"}, 6: {"text": "last"}}
    assert reasons(path) == {5: "column 'text' is not UTF-8 text (byte 0xe9 at character 3)"}


def test_a_field_that_is_too_long_is_named_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.data.readers.delimited.MAX_FIELD_CHARS", 100)
    file = tmp_path / "rows.csv"
    file.write_text(f"text,label\n{'x' * 101},a\ngood,b\n")
    rows = list(read_rows(str(file)))
    assert [(row.number, row.reason) for row in rows] == [(2, "a field has more than 100 characters"), (3, None)]
