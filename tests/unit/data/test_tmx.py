"""Translation memories: units, languages, inline codes, and XML that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.base.errors import DataError
from toolkit.data.readers.raw import RECOGNISED, RawRow
from toolkit.data.sources import read_rows, reading_notes

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4"><header/><body>'


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(*units: dict[str, str] | str, head: str = HEAD, end: str = "</body></tmx>", encoding="utf-8") -> Path:
        texts = [
            unit
            if isinstance(unit, str)
            else "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in unit.items())
            for unit in units
        ]
        content = head + "\n".join(f"<tu>{text}</tu>" for text in texts) + end
        Path("memory.tmx").write_bytes(content.encode(encoding))
        return Path("memory.tmx")

    return write


def test_units_are_rows_and_languages_are_columns(write):
    path = write({"en-US": "Hello", "de-DE": "Hallo"}, {"de-DE": "Nur &lt;b> &amp; du", "en-US": ""}, {"en-US": "one"})
    assert list(read_rows(path)) == [
        RawRow(1, {"en": "Hello", "de": "Hallo"}),
        RawRow(2, {"de": "Nur <b> & du", "en": ""}),
        RawRow(3, {"en": "one"}),
    ]
    assert reading_notes(path, RECOGNISED) == ["memory.tmx: its columns are de (de-DE), en (en-US)"]


def test_regions_stay_where_a_language_has_several(write):
    path = write({"pt-BR": "trem", "pt-PT": "comboio", "EN": "train"})
    assert list(read_rows(path)) == [RawRow(1, {"pt-BR": "trem", "pt-PT": "comboio", "en": "train"})]
    assert reading_notes(path, RECOGNISED) == ["memory.tmx: its columns are en (EN), pt-BR, pt-PT"]


def test_inline_codes_are_not_text(write):
    unit = {
        "en": "Press <bpt>&lt;b></bpt>OK<ept>&lt;/b></ept><ph>{0}<sub>note</sub></ph>, <hi>now</hi><it>x</it>!",
        "de": "a&nbsp;b",  # declared in the document type, which is not read
    }
    assert [row.values for row in read_rows(write(unit))] == [{"en": "Press OK, now!", "de": "a&nbsp;b"}]


def test_units_that_cannot_be_used(write):
    twice = '<tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="en"><seg>b</seg></tuv>'
    path = write(twice, "<tuv><seg>a</seg></tuv>", '<tuv lang="de"><seg>alt</seg></tuv>')
    assert [(row.number, row.reason) for row in read_rows(path)] == [
        (1, "more than one text in the language 'en'"), (2, "a text has no language (xml:lang)"), (3, None),
    ]  # fmt: skip


def test_the_encoding_is_the_documents_own(write):
    head = HEAD.replace("UTF-8", "ISO-8859-1")
    assert [row.values for row in read_rows(write({"de": "für"}, head=head, encoding="latin-1"))] == [{"de": "für"}]
    head = HEAD.replace("UTF-8", "UTF-16")
    assert [row.values for row in read_rows(write({"de": "für"}, head=head, encoding="utf-16"))] == [{"de": "für"}]


def test_a_long_file_is_streamed(write):
    rows = read_rows(write(*[{"en": f"text {number} &amp; more" * 9} for number in range(3000)]))
    assert [next(rows).number, sum(1 for _ in rows)] == [1, 2999]


def test_entities_are_never_expanded(write):
    bomb = '<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><tmx><body>'
    with pytest.raises(DataError, match=r"memory.tmx declares the entity 'a'"):
        list(read_rows(write({"en": "&b;"}, head=bomb)))
    outside = '<!DOCTYPE tmx [<!ENTITY a SYSTEM "secret.txt">]><tmx><body>'
    Path("secret.txt").write_text("secret")
    with pytest.raises(DataError, match="declares the entity 'a'"):
        list(read_rows(write({"en": "&a;"}, head=outside)))


@pytest.mark.parametrize(
    ("end", "message"),
    [("</body>", "is not valid XML: no element found"), ("</tmx>", "mismatched tag"), ("<a", "unclosed token")],
)
def test_broken_xml(write, end, message):
    with pytest.raises(DataError, match=message):
        list(read_rows(write({"en": "a"}, end=end)))


def test_a_memory_without_units(write):
    assert reading_notes(write(), RECOGNISED) == []
    with pytest.raises(DataError, match="has no rows"):
        list(read_rows(write()))
