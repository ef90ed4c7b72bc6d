"""HTML in texts is counted and told once per column; entities are decoded on request."""

from __future__ import annotations

from pathlib import Path

import pytest
from rows_task import RowsTask

from toolkit.data.readers.raw import Reading
from toolkit.data.sources import hub_rows, read_rows
from toolkit.data.table import given_table, load_table


class Texts(RowsTask):
    """Rows of a text and a label."""

    @property
    def columns(self):
        from toolkit.config.fields import Column

        return {"text": Column("the text"), "label": Column("its class", label=True)}

    def schema(self):
        from datasets import Features, Value

        return Features({"text": Value("string"), "label": Value("string")})

    def check_row(self, row, labelled):
        return row


ROWS = """body,label
Fish &amp; chips &quot;to go&quot;,good
AT&T and R&D; a <b and <unk>,good
2<br/>lines &#8211; and <A HREF='x'>links</a>,bad
 ,bad
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("reviews.csv").write_text(ROWS)

    def table(**reading):
        return load_table(
            "reviews.csv", Texts(), {"text": "body"}, True, tmp_path / "cache", reading=Reading(**reading)
        )

    return table


def test_entities_and_tags_are_counted_once_per_column(table, capsys):
    warning = (
        "warning: reviews.csv, column 'body': 2 of 3 texts have HTML entities (&amp; in row 2; data.unescape_html=true "
        "decodes them) and 1 of 3 texts have HTML tags (<br/> in row 4; data.strip_html=true removes them)\n"
    )
    for _ in range(2):  # also when the rows come from the cache
        assert table().rows["text"][0] == "Fish &amp; chips &quot;to go&quot;"
        assert capsys.readouterr().out == warning


def test_entities_are_decoded_on_request(table, capsys):
    rows = table(unescape_html=True).rows
    assert rows["text"][0] == 'Fish & chips "to go"'
    assert "HTML entities" not in (said := capsys.readouterr().out)
    assert "HTML tags" in said
    assert table().rows["text"][0] != rows["text"][0]  # another key in the cache


def test_texts_inside_other_values_are_decoded_too(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"translation": {"en": "a &lt; b", "de": ["&uuml;", 3]}}\n')
    (row,) = read_rows(path, Reading(unescape_html=True))
    assert row.values == {"translation": {"en": "a < b", "de": ["ü", 3]}}


def test_rows_of_the_hub_and_of_python_are_decoded_too():
    from datasets import Dataset

    rows = [{"text": "a &amp; b", "label": "x"}]
    (row,) = hub_rows(Dataset.from_list(rows), Reading(unescape_html=True))
    assert row.values["text"] == "a & b"
    assert given_table(rows, Texts(), {}, True, Reading(unescape_html=True)).rows["text"][:] == ["a & b"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<html><body><p>Late &amp; broken.</p><br/>Refund!&nbsp;</body></html>", "Late & broken. Refund!"),
        ("<style>p {color: red}</style>Fine<!-- never --> words", "Fine words"),
        ("a < b, <unk> and  two blanks", "a < b, <unk> and  two blanks"),
    ],
)
def test_html_is_removed_on_request_and_other_brackets_stay(table, text, left, tmp_path):
    Path("reviews.csv").write_text('body,label\n"' + text.replace('"', '""') + '",good\n')
    assert table(strip_html=True).rows["text"][:] == [left]
    (row,) = given_table([{"text": text, "label": "good"}], Texts(), {}, True, Reading(strip_html=True)).rows
    assert row["text"] == left
