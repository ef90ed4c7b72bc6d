"""Line-aligned text files: `train.{en,de}`."""

from __future__ import annotations

import pytest

from toolkit.base.errors import DataError
from toolkit.config.paths import aligned_files
from toolkit.data.readers.raw import RECOGNISED
from toolkit.data.sources import fingerprint, num_bytes, read_rows, reading_notes


def write(folder, **texts: str) -> str:
    for language, text in texts.items():
        (folder / f"a.{language}").write_text(text, encoding="utf-8")
    return str(folder / "a.{en,de}")


def test_a_name_with_braces_means_several_files():
    assert aligned_files("corpus/train.{en,de}") == {"en": "corpus/train.en", "de": "corpus/train.de"}
    assert aligned_files("{source,target}.txt") == {"source": "source.txt", "target": "target.txt"}
    assert aligned_files("new.{en}") == {"en": "new.en"}
    assert aligned_files("train.csv") == aligned_files("odd{.csv") == aligned_files("a.{}") == {}


def test_a_file_of_just_that_name_is_that_file(tmp_path):
    odd = tmp_path / "a.{en,de}"
    odd.write_text("x\n")
    assert aligned_files(str(odd)) == {}


def test_lines_become_columns_and_keep_their_numbers(tmp_path):
    name = write(tmp_path, en="\ufeffone\r\n\nthree\n", de="eins\n\ndrei")
    assert list(read_rows(name)) == [(1, {"en": "one", "de": "eins"}, None), (3, {"en": "three", "de": "drei"}, None)]


def test_what_is_left_over_has_a_reason(tmp_path):
    one, two, three = read_rows(write(tmp_path, en="one\ntwo\nthree\n", de="eins\n"))
    assert one.reason is None
    for row in (two, three):
        assert "a.de ended before this line" in row.reason
        assert row.values.keys() == {"en"}
    assert (two.number, three.number) == (2, 3)


def test_a_wrong_byte_spoils_its_row_only(tmp_path):
    name = write(tmp_path, en="one\ntwo\n", de="")
    (tmp_path / "a.de").write_bytes(b"f\xfcnf\nzwei\n")
    first, second = read_rows(name)
    assert "column 'de' is not UTF-8 text (byte 0xfc" in first.reason
    assert second == (2, {"en": "two", "de": "zwei"}, None)


def test_files_may_differ_in_their_encoding(tmp_path):
    name = write(tmp_path, en="one\ntwo\n", de="")
    (tmp_path / "a.de").write_bytes("fünf\nzwölf\n".encode("utf-16"))
    assert [row.values["de"] for row in read_rows(name)] == ["fünf", "zwölf"]
    assert reading_notes(name, RECOGNISED) == [f"{tmp_path / 'a.de'}: recognised data.encoding=utf-16"]


def test_every_file_counts_in_fingerprint_and_size(tmp_path):
    name = write(tmp_path, en="one\n", de="eins\n")
    before = fingerprint(name)
    assert num_bytes(name) == 9
    write(tmp_path, de="zwei\n")
    assert fingerprint(name) != before


def test_a_file_that_is_missing_or_empty_is_named(tmp_path):
    with pytest.raises(DataError, match=r"a\.de does not exist"):
        list(read_rows(write(tmp_path, en="one\n")))
    with pytest.raises(DataError, match="has no rows"):
        list(read_rows(write(tmp_path, en="", de="")))


def test_a_carriage_return_inside_a_line_does_not_move_the_others(tmp_path):
    (tmp_path / "a.en").write_bytes(b"one\rmore\r\ntwo\nthree\n")
    (tmp_path / "a.de").write_bytes(b"eins\nzwei\rmehr\ndrei\r\n")
    assert [row.values for row in read_rows(str(tmp_path / "a.{en,de}"))] == [
        {"en": "one\rmore", "de": "eins"}, {"en": "two", "de": "zwei\rmehr"}, {"en": "three", "de": "drei"}
    ]  # fmt: skip


def test_lines_that_only_carriage_returns_end_are_lines(tmp_path):
    (tmp_path / "a.en").write_bytes(b"one\rtwo\r")
    (tmp_path / "a.de").write_bytes("eins\nzwei\n".encode("utf-16"))
    assert [row.values for row in read_rows(str(tmp_path / "a.{en,de}"))] == [
        {"en": "one", "de": "eins"}, {"en": "two", "de": "zwei"}
    ]  # fmt: skip
