"""Files in the state that real files have: separators, encodings, quotes, missing headers; what is said about them."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.base.errors import DataError
from toolkit.checks.rules.data import RULES
from toolkit.config.sections import DataConfig
from toolkit.data.readers.encodings import likely_encoding
from toolkit.data.readers.raw import RECOGNISED, Reading
from toolkit.data.sources import READERS, read_rows, reading_notes

GERMAN = "text,label\n" + "Das Gerät ist schön,gut\nNur für Gäste,schlecht\n" * 9


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def write(name: str, content: str | bytes) -> Path:
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
        return Path(name)

    return write


def values(path: Path, reading: Reading = RECOGNISED) -> list[dict[str, str]]:
    rows = list(read_rows(path, reading))
    assert [row.reason for row in rows if row.reason] == []
    return [row.values for row in rows]


def test_the_settings_are_those_of_the_data_section() -> None:
    data = DataConfig(delimiter="tab", encoding="cp1252", header=False, quoting="none", unescape_html=True)
    assert Reading.of(data) == Reading("\t", "cp1252", False, "none", True)
    assert Reading.of(DataConfig(delimiter="\\t")).delimiter == "\t"
    assert Reading.of(DataConfig()) == RECOGNISED


# Delimiters


@pytest.mark.parametrize(("delimiter", "shown"), [(";", "';'"), ("|", "'|'"), ("\t", "tab")])
def test_the_header_decides_the_delimiter(write, delimiter, shown):
    rows = [("ID", "Review Text", "Rating"), ("1", "Good, really good", "5"), ("2", "Bad, very bad, never again", "1")]
    path = write("reviews.csv", "".join(delimiter.join(row) + "\n" for row in rows))
    assert values(path) == [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert reading_notes(path, RECOGNISED) == [f"reviews.csv: recognised data.delimiter={shown}"]
    assert reading_notes(path, Reading(delimiter=delimiter)) == []


def test_a_tsv_file_may_hold_commas(write):
    path = write("a.tsv", "text,label\na,b\n")
    assert values(path) == [{"text": "a", "label": "b"}]
    assert reading_notes(path, RECOGNISED) == ["a.tsv: recognised data.delimiter=','"]


@pytest.mark.parametrize(
    "content",
    [
        "text,label;x\na,b\nc,d;e\n",  # both divide the header, the comma divides all rows
        "text\na;b\nc|d\n",  # one column
        "Comment; in your own words\ngood\nbad\n",  # a header that only looks like two columns
        "text,label\n",
    ],
)
def test_the_usual_delimiter_stays_where_no_other_fits_better(write, content):
    assert reading_notes(write("a.csv", content), RECOGNISED) == []


def test_a_header_that_both_divide_is_decided_by_the_rows(write):
    path = write("a.csv", "Last, first name;Age\nMeier;7\nMüller, B.;9\n")
    assert values(path)[1] == {"Last, first name": "Müller, B.", "Age": "9"}


def test_a_given_delimiter_is_taken(write):
    assert values(write("a.csv", "a~b,c\n1~2,3\n"), Reading(delimiter="~")) == [{"a": "1", "b,c": "2,3"}]


# Headers and quotes


def test_without_a_header_columns_have_numbers(write):
    path = write("tm.tsv", "A man in a hat.\tEin Mann mit Hut.\nA dog.\tEin Hund.\n")
    assert values(path, Reading(header=False)) == [
        {"1": "A man in a hat.", "2": "Ein Mann mit Hut."}, {"1": "A dog.", "2": "Ein Hund."},
    ]  # fmt: skip
    short = write("a.csv", "a,b\nc\n")
    assert [row.reason for row in read_rows(short, Reading(header=False))] == [
        None,
        "1 field where the first row has 2",
    ]


UNQUOTED = 'source\ttarget\n"Hi," he said.\t"Hallo", sagte er.\n"\t"\n"Bye"\t"Tschüss"\n'


def test_a_tsv_file_whose_quotes_do_not_balance_has_no_quoting(write):
    path = write("tm.tsv", UNQUOTED)
    assert values(path) == [
        {"source": '"Hi," he said.', "target": '"Hallo", sagte er.'},
        {"source": '"', "target": '"'},
        {"source": '"Bye"', "target": '"Tschüss"'},
    ]
    assert reading_notes(path, RECOGNISED) == ["tm.tsv: recognised data.quoting=none"]
    assert sum(row.reason is not None for row in read_rows(path, Reading(quoting="minimal"))) == 2
    assert reading_notes(path, Reading(quoting="minimal")) == []


def test_a_tsv_file_with_doubled_quotes_is_quoted(write):
    path = write("a.tsv", 'text\tlabel\n"He said ""Hi"""\tpos\n"never closed\tneg\nlast\tpos\n')
    assert [(row.values or {}).get("text") for row in read_rows(path)] == ['He said "Hi"', None, "last"]
    assert reading_notes(path, RECOGNISED) == []


def test_a_csv_file_is_quoted_unless_the_setting_says_otherwise(write):
    path = write("a.csv", 'text,label\n"oops,pos\nfine,neg\n')
    assert [row.reason for row in read_rows(path)] == ["lines 2 to 3: a quoted field is not closed", None]
    assert values(path, Reading(quoting="none"))[0] == {"text": '"oops', "label": "pos"}


# Encodings


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_utf_16_and_utf_32_are_recognised(write, name, encoding):
    path = write(name, GERMAN.encode(encoding))
    assert values(path) == values(write(f"utf8-{name}", GERMAN))
    assert reading_notes(path, RECOGNISED) == [f"{name}: recognised data.encoding={encoding}"]


def test_a_byte_order_mark_of_utf_8_is_not_text(write):
    path = write("a.csv", GERMAN.encode("utf-8-sig"))
    assert values(path)[0] == {"text": "Das Gerät ist schön", "label": "gut"}
    assert reading_notes(path, RECOGNISED) == []


@pytest.mark.parametrize("name", ["reviews_latin1.csv", "reviews_latin1.json", "reviews_latin1.txt"])
def test_a_file_in_another_encoding_is_one_message_and_a_setting(write, name):
    path = write(name, GERMAN.encode("latin-1"))
    message = (
        f"{name} is not UTF-8 text (the first such byte is in line 2). It looks like Windows-1252, which reads "
        "'Das Gerät ist schön' there: set data.encoding=cp1252 if that is right, or save the file as UTF-8."
    )
    with pytest.raises(DataError) as error:
        list(read_rows(path))
    assert str(error.value) == message
    if name.endswith(".csv"):
        assert values(path, Reading(encoding="cp1252")) == values(write("utf8.csv", GERMAN))


def test_every_line_of_a_file_in_another_encoding_is_a_bad_row_where_utf_8_is_set(write):
    path = write("a.csv", GERMAN.encode("latin-1"))
    reasons = [row.reason for row in read_rows(path, Reading(encoding="utf-8"))]
    assert reasons[:2] == [
        "column 'text' is not UTF-8 text (byte 0xe4 at character 8)",
        "column 'text' is not UTF-8 text (byte 0xfc at character 6)",
    ]
    assert None not in reasons


def test_bad_lines_among_lines_of_utf_8_are_bad_rows(write):
    path = write("a.csv", GERMAN.encode() + "käse,gut\nkäse,gut\n".encode("latin-1"))
    assert [row.number for row in read_rows(path) if row.reason] == [20, 21]


def test_a_file_of_utf_8_is_read_so_beside_files_in_another_encoding(write):
    path = write("a.csv", GERMAN)
    assert values(path, Reading(encoding="cp1252")) == values(path)
    assert reading_notes(path, Reading(encoding="cp1252")) == ["a.csv: recognised data.encoding=utf-8"]


def test_a_file_that_is_not_in_the_encoding_that_is_set(write):
    path = write("a.csv", GERMAN.encode("latin-1"))
    with pytest.raises(DataError) as error:
        list(read_rows(path, Reading(encoding="ascii")))
    assert str(error.value) == (
        "a.csv cannot be decoded as ascii (data.encoding): ordinal not in range(128). Set data.encoding to its "
        "encoding, or save it as UTF-8."
    )


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("L\u2019été dernier “nous” étions à Paris, où ça coûte 20€\n", "cp1252"),
        ("¿Qué tal? El niño comió piña y don\u00b4t care ¡olé!\n", "cp1252"),
        ("Zażółć gęślą jaźń, proszę bardzo. Łódź jest piękna i długa\n", "cp1250"),
        ("Привет, это хороший товар, мне понравилось\n", "cp1251"),
        ("这个产品很好\n", "gb18030"),
    ],
)
def test_the_likely_encoding(text, encoding):
    assert likely_encoding(text.encode(encoding) * 20) == encoding


def test_every_format_that_is_text_may_have_an_encoding():
    (rule,) = [rule for rule in RULES if rule.why == "no data file is a text file"]
    for suffix, reader in READERS.items():
        reads_text = "reading.encoding" in inspect.getsource(inspect.getmodule(reader))
        cfg: Any = SimpleNamespace(data=DataConfig(train_file=f"rows{suffix}", encoding="cp1252"))
        assert rule.when(cfg) is not reads_text, suffix
