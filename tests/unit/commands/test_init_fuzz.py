"""`toolkit init` on odd files: a YAML that a run accepts, or a message; never a traceback."""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from audio_files import encoded as audio
from audio_files import tone
from commands import run_command
from image_files import encoded as image
from image_files import noise
from newcomer_files import sentences
from openpyxl import Workbook

from toolkit.data.loading import check_rows
from toolkit.lab.init.kinds import KINDS
from toolkit.recipe import load_settings, load_task_type, validate

RECIPES = (None, *dict.fromkeys(kind.recipe for kind in KINDS))
TEXTS = sentences(rows=24)
PLAIN: Sequence[Mapping[str, Any]] = [
    {"id": number, "text": text, "label": ("good", "bad")[number % 2]} for number, text in enumerate(TEXTS)
]
"""Rows that most odd files are made of."""


def changed(**columns: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Returns the plain rows with other or more columns, given as functions of the row's number."""
    return [{**row, **{name: value(number) for name, value in columns.items()}} for number, row in enumerate(PLAIN)]


def of_kinds(*values: Any) -> Callable[[int], Any]:
    return lambda number: values[number % len(values)]


ROWS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "plain": PLAIN,
    "no rows": [],
    "one row": PLAIN[:1],
    "two rows": PLAIN[:2],
    "mixed types": changed(text=of_kinds("a sentence of several words", 3, True, 2.5), label=of_kinds("a", 1, None)),
    "nested": changed(text=lambda n: {"a": [n]}, label=of_kinds([1, [2]], {"b": None}, [])),
    "deep": changed(label=lambda n: json.loads("[" * 40 + "]" * 40)),
    "long cell": changed(text=lambda n: "word " * (40_000 if n == 3 else 5)),
    "long label": changed(label=lambda n: "x" * 5000 + str(n % 2)),
    "blanks in names": [{" id ": row["id"], "the text": row["text"], "label (yes)": row["label"]} for row in PLAIN],
    "odd names": [{"=x": row["id"], "a: #b": row["text"], "": row["label"], "~": "y"} for row in PLAIN],
    "empty column": changed(note=of_kinds(None), label=of_kinds(None)),
    "empty text": changed(text=of_kinds("", "   ")),
    "non-finite": changed(label=of_kinds(float("nan"), 1.5, float("inf"), 1e308)),
    "huge numbers": changed(label=lambda n: 10**400 + n),
    "numbers as text": changed(label=of_kinds("1.234,5", "2,5 €", "-")),
    "dates": changed(label=of_kinds("2024-01-02", "2024-01-03")),
    "vectors": changed(label=of_kinds([0, 1, 0], [1, 0, 1])),
    "vectors as text": changed(label=of_kinds("0 1 0", "1 0 1")),
    "printed lists": changed(label=of_kinds("['a', 'b']", "['a']", "[", "{'a': ")),
    "control characters": changed(text=lambda n: f"\x01{TEXTS[n]}\x1b[31m \u2028 \ud7ff", label=of_kinds("a\x07", "b")),
    "one class": changed(label=of_kinds("same")),
    "nothing repeats": changed(label=lambda n: f"class {n}"),
    "tags": [{"tokens": text.split(), "tags": ["O"] * len(text.split())} for text in TEXTS],
    "tags and numbers": [{"words": text, "tags": ("O", 3, None)[n % 3]} for n, text in enumerate(TEXTS)],
    "tags of other lengths": [{"tokens": text.split(), "tags": ["O", "B-PER"]} for text in TEXTS],
    "questions": changed(question=lambda n: f"What is number {n}?", context=lambda n: TEXTS[n],
                         answers=of_kinds({"text": ["a"], "answer_start": [999]}, {"text": [], "answer_start": []})),
    "broken answers": changed(question=lambda n: "What?", context=lambda n: TEXTS[n],
                              answers=of_kinds({"text": None, "answer_start": 0}, {"text": "a", "answer_start": ""})),
    "chats": changed(messages=of_kinds([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}],
                                       [{"role": None, "content": None}], [])),
    "prompts": [{"prompt": text, "completion": text[:9]} for text in TEXTS],
    "summaries": [{"document": text, "summary": text[:9]} for text in TEXTS],
    "languages": [{"translation": {"en": text, "de": None if n % 2 else text}} for n, text in enumerate(TEXTS)],
    "no such files": changed(file=lambda n: f"{n}.wav", image=lambda n: f"{n}.png"),
    "recordings": [{"audio": "tone.wav", "start": n / 10, "end": n / 10 + 0.2, "label": "ab"[n % 2]} for n in range(9)],
    "pictures": [{"image": ("tiny.png", "broken.png")[n == 3], "label": "ab"[n % 2]} for n in range(20)],
}  # fmt: skip
"""Rows by what is odd about them."""


def separated(rows: Sequence[Mapping[str, Any]], delimiter: str) -> bytes:
    names = list(dict.fromkeys(name for row in rows or PLAIN for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def of_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    file = pyarrow.BufferOutputStream()
    names = list(dict.fromkeys(name for row in rows or PLAIN for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pyarrow.array(values)
        except (pyarrow.ArrowException, OverflowError):
            columns[name] = pyarrow.array([str(value) for value in values])
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue().to_pybytes()


def workbook(rows: Sequence[Mapping[str, Any]]) -> bytes:
    book, file = Workbook(), io.BytesIO()
    names = list(dict.fromkeys(name for row in rows or PLAIN for name in row))
    book.active.append(names)
    for row in rows:
        cells = [row.get(name) for name in names]
        plain = [
            each if isinstance(each, int | float | None) and abs(each or 0) < 1e300 else str(each)[:30_000]
            for each in cells
        ]
        book.active.append(
            [each.translate(dict.fromkeys(range(32))) if isinstance(each, str) else each for each in plain]
        )
    book.save(file)
    return file.getvalue()


FORMS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], bytes]] = {
    "rows.csv": lambda rows: separated(rows, ","),
    "semicolons.csv": lambda rows: separated(rows, ";"),
    "rows.tsv": lambda rows: separated(rows, "\t"),
    "rows.json": lambda rows: json.dumps(rows).encode(),
    "rows.jsonl": lambda rows: "".join(f"{json.dumps(row)}\n" for row in rows).encode(),
    "rows.parquet": of_parquet,
    "rows.xlsx": workbook,
    "rows.txt": lambda rows: "\n".join(str(row.get("text", "")) for row in rows).encode("utf-8", "replace"),
}
"""Writers of rows, by the name of the file."""
BYTES: Mapping[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "blank": lambda content: b" \n\n",
    "a BOM": lambda content: b"\xef\xbb\xbf" + content,
    "CRLF": lambda content: content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "CR": lambda content: content.replace(b"\r\n", b"\n").replace(b"\n", b"\r"),
    "NUL": lambda content: content.replace(b"boots", b"bo\0ts"),
    "Latin-1": lambda content: content.replace(b"boots", b"St\xfcck"),
    "neither": lambda content: content.replace(b"boots", b"\x81\xfe\xff"),
    "UTF-16": lambda content: content.decode("utf-8", "replace").encode("utf-16"),
    "truncated": lambda content: content[: len(content) // 2],
    "equal names": lambda content: content.replace(b"label", b"text", 1),
    "a row too long": lambda content: content.replace(b"good", b"good,good;good\tgood"),
    "an open quote": lambda content: content.replace(b"boots", b'"boots', 3),
    "no header": lambda content: content.partition(b"\n")[2],
}
"""Changes of the bytes of a file of plain rows."""
PNG, WAV = image(noise(24, 20, 3)), audio(tone(0.4))
FOLDERS: Mapping[str, Mapping[str, bytes]] = {
    "images": {f"{n % 2}/{n}.png": image(noise(24, 20, 3, seed=n)) for n in range(12)},
    "recordings": {f"{n % 2}/{n}.wav": audio(tone(0.4, frequency=200 + n)) for n in range(12)},
    "empty recordings": {f"{n % 2}/{n}.wav": audio(tone(0.0)) for n in range(6)},
    "no class": {f"{n}.png": PNG for n in range(6)},
    "one class": {f"a/{n}.png": PNG for n in range(6)},
    "one image": {"a/0.png": PNG},
    "deeper classes": {f"a/b/{n % 2}/{n}.png": PNG for n in range(6)},
    "images and recordings": {"a/0.png": PNG, "b/0.wav": WAV, "a/1.png": PNG, "b/1.wav": WAV},
    "broken images": {f"{n % 2}/{n}.png": b"\x89PNG broken" for n in range(6)},
    "empty images": {f"{n % 2}/{n}.png": b"" for n in range(6)},
    "odd names": {f"{name}/{n}.png": PNG for name in ("=a: #", "Ä ö", "-") for n in range(4)},
    "nothing": {},
    "other files": {"a.pdf": b"%PDF", "b/c.docx": b"PK"},
    "a table": {"train.csv": separated(PLAIN, ","), "test.csv": separated(PLAIN[:4], ",")},
    "a zip": {"inside.zip": b"PK\x05\x06" + bytes(18)},
}
"""Members of folders and archives."""
OTHERS: Mapping[str, bytes] = {
    "a b 'c' \"d\" é.csv": separated(PLAIN, ","),
    "--output.csv": separated(PLAIN, ","),
    "x=y.csv": separated(PLAIN, ","),
    "new\nline.csv": separated(PLAIN, ","),
    "RECEIPTS.CSV": separated(PLAIN, ","),
    "train.csv": separated(PLAIN, ","),
    "rows.docx": b"PK\x03\x04",
    "rows": separated(PLAIN, ","),
    "rows.csv.gz": b"\x1f\x8b",
    "broken.zip": b"PK\x03\x04 broken",
    "broken.xlsx": b"PK\x03\x04 broken",
    "broken.parquet": b"PAR1 broken",
    "broken.h5": b"\x89HDF broken",
    "broken.arrow": b"ARROW1 broken",
    "broken.tmx": b"<tmx><body><tu>",
    "empty.tmx": b"<tmx version='1.4'><body></body></tmx>",
    "one.tmx": b"<tmx version='1.4'><body><tu><tuv xml:lang='en'><seg>a</seg></tuv></tu></body></tmx>",
    "words.conll": "\n".join(f"{word}\tO\n" for word in TEXTS[0].split()).encode(),
    "odd.conll": b"-DOCSTART- -X- O O\n\nAnna B-PER\nsaw\n12 I-\n",
    "squad.json": json.dumps({"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b"}]}]}]}).encode(),
    "lists.json": b"[[1, 2], [3, 4]]",
    "texts.json": b'["a", "b"]',
    "object.json": b'{"text": "a", "label": "b"}',
    "number.json": b"3",
    "keys.json": b'[{"text": "a", "text": "b"}]',
    "lists.jsonl": b"[1]\n[2]\n",
    "half.jsonl": b'{"text": "a"}\n{"te',
    "blank.txt": b"\n\n \n",
    "one line.txt": b"word " * 20_000,
}
"""Other files, by their names."""
COLUMNS: Sequence[Sequence[str]] = (
    (),
    ("data.columns.label=label",),
    ("data.columns.text=text", "data.columns.label=id"),
    ("data.columns.text=text", "data.columns.label=text"),
    ("data.columns.label=none",),
    ("data.columns.text=label",),
    ("data.columns.question=text", "data.columns.context=text", "data.columns.answers=label"),
    ("data.columns.source=text", "data.columns.target=label"),
    ("data.columns.document=text", "data.columns.summary=label"),
    ("data.columns.tokens=text", "data.columns.tags=label"),
    ("data.columns.messages=label",),
    ("data.columns.prompt=text", "data.columns.completion=label"),
    ("data.columns.audio=text", "data.columns.label=label"),
    ("data.columns={text: text, label: label}",),
    ("data.columns.nonsense=text",),
    ("task.problem_type=regression",),
    ("task.problem_type=multi_label_classification", "task.labels=[a,b,c]"),
    ("data.validation_split=0",),
    ("data.bad_rows=error",),
    ("data.header=false",),
    ("--from-scratch",),
    ("--from-scratch", "data.columns.text=text"),
)
"""Settings that a user may pass."""


def check(folder: Path, source: Path, recipe: str | None, given: Sequence[str]) -> int:
    """Returns the exit status of `init` and, if it wrote a YAML, checks that with all rows as `validate` does."""
    output = folder / "new.yaml"
    output.unlink(missing_ok=True)
    named = ("--recipe", recipe) if recipe else ()
    code = run_command("init", source, *named, *given, "--output", output)
    assert code in (0, 2)
    assert output.exists() == (code == 0)
    if code == 0:
        name = output.read_text(encoding="utf-8").splitlines()[1].split()[4]
        task_type = load_task_type(name)
        assert not validate(task_type, output, elsewhere=True).problems
        cfg = load_settings(task_type, output).config
        assert check_rows(cfg, task_type(cfg)).splits["train"].num_rows
    return code


def beside(folder: Path) -> None:
    """Writes the media files that rows name."""
    (folder / "tone.wav").write_bytes(audio(tone(1.5)))
    (folder / "tiny.png").write_bytes(image(noise(1, 1, 3)))
    (folder / "broken.png").write_bytes(b"\x89PNG")


def odd_files(folder: Path) -> dict[str, Path]:
    """Writes every odd file, and returns their paths by what they are."""
    found = {}
    for (what, rows), (name, write) in itertools.product(ROWS.items(), FORMS.items()):
        found[f"{what}, {name}"] = path = folder / f"{len(found)}" / name
        path.parent.mkdir()
        beside(path.parent)
        path.write_bytes(write(rows))
    for (what, change), (name, write) in itertools.product(BYTES.items(), FORMS.items()):
        found[f"{what}, {name}"] = path = folder / f"{len(found)}" / name
        path.parent.mkdir()
        path.write_bytes(change(write(PLAIN)))
    for what, members in FOLDERS.items():
        (place := folder / f"{len(found)}").mkdir()
        found[f"folder of {what}"] = place / "media"
        found[f"zip of {what}"] = place / "media.zip"
        with zipfile.ZipFile(place / "media.zip", "w") as archive:
            for name, content in members.items():
                path = place / "media" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                archive.writestr(name, content)
        (place / "media").mkdir(exist_ok=True)
    for name, content in OTHERS.items():
        found[f"other: {name}"] = path = folder / f"{len(found)}" / name
        path.parent.mkdir()
        path.write_bytes(content)
    (folder / "x.en").write_text("\n".join(TEXTS), encoding="utf-8")
    (folder / "x.de").write_text("\n".join(TEXTS[1:]), encoding="utf-8")
    for name in (
        "x.{en,de}",
        "x.{en,en}",
        "x.{en}",
        "x.{en,fr}",
        "none.csv",
        "",
        "hub/data",
        "0/rows.csv#sheet",
        "6/rows.xlsx#none",
    ):
        found[f"source {name}"] = folder / name
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    return odd_files(tmp_path_factory.mktemp("odd"))


@pytest.mark.slow
def test_some_odd_files(files, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    codes = set()
    for number, (name, source) in enumerate(list(files.items())[::17]):
        for recipe, given in ((None, ()), (RECIPES[number % len(RECIPES)], COLUMNS[number % len(COLUMNS)])):
            print(name, recipe, given)  # shown if the test fails
            codes.add(check(tmp_path, source, recipe, given))
    assert codes == {0, 2}


@pytest.mark.fast(0)
@pytest.mark.parametrize("seed", range(4))
def test_odd_files_with_recipes_and_columns(seed, files, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    cases = list(itertools.product(files, RECIPES, COLUMNS))
    for name, recipe, given in random.Random(seed).sample(cases, 1000):
        print(name, recipe, given)
        check(tmp_path, files[name], recipe, given)


@pytest.mark.slow
def test_every_odd_file(files, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, source in files.items():
        print(name)
        check(tmp_path, source, None, ())
