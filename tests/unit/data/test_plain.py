"""CoNLL files: a token per line, a blank line after each text."""

from __future__ import annotations

from toolkit.data.sources import read_rows


def rows(tmp_path, text: str) -> dict:
    (tmp_path / "a.conll").write_text(text, encoding="utf-8")
    return {row.number: row.reason or row.values for row in read_rows(tmp_path / "a.conll")}


def test_the_first_and_the_last_column_of_each_text_are_read(tmp_path):
    text = "-DOCSTART- -X- O O\n\nAnna NNP B-NP B-PER\nruns VBZ B-VP O\n\n\nKiel\tNNP\tB-NP\tB-LOC\n"
    assert rows(tmp_path, text) == {
        3: {"tokens": ["Anna", "runs"], "tags": ["B-PER", "O"]}, 7: {"tokens": ["Kiel"], "tags": ["B-LOC"]}
    }  # fmt: skip


def test_a_single_column_has_no_tags(tmp_path):
    assert rows(tmp_path, "Anna\nruns\n") == {1: {"tokens": ["Anna", "runs"]}}


def test_only_the_text_with_an_uneven_line_cannot_be_used(tmp_path):
    found = rows(tmp_path, "Anna B-PER\nBerg\n\nKiel B-LOC\n")
    assert found == {1: "line 2 has 1 columns where line 1 has 2", 4: {"tokens": ["Kiel"], "tags": ["B-LOC"]}}


def test_bytes_that_are_not_utf8_spoil_only_their_text(tmp_path):
    (tmp_path / "a.conll").write_bytes(b"Caf\xe9 O\n\nKiel B-LOC\n")
    bad, good = read_rows(tmp_path / "a.conll")
    assert bad.reason == "column 'tokens' is not UTF-8 text (byte 0xe9 at character 4)"
    assert good.reason is None
