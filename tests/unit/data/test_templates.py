"""Templates of columns: one text of several columns, in training, predictions and messages."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from commands import run_command
from exports import assert_equal_answers, exported, exported_as, script_answers, toolkit_answers, write_rows
from fastapi.testclient import TestClient
from runs import predictions, train
from tolerances import float32_tolerance

from toolkit.base.errors import ConfigError, DataError
from toolkit.config.templates import fill
from toolkit.deploy.demo import row_of, validation_examples
from toolkit.deploy.serving.app import build
from toolkit.deploy.serving.requests import Columns, Limits
from toolkit.deploy.trained import load
from toolkit.recipe import load_settings, load_task_type

TEMPLATE = "{title}\n{body}\nprice: {price} {{EUR}}"
FEW = ("train.max_steps=2", "train.num_train_epochs=1")


def rows(count: int = 24) -> list[dict[str, str]]:
    """Returns rows of which some lack a price or a body."""
    return [
        {"title": f"Rake {n}", "body": "" if n % 5 == 4 else f"A rake, number {n}", "price": "" if n % 3 else f"{n}.50",
         "label": "dear" if n % 2 else "cheap"}
        for n in range(count)
    ]  # fmt: skip


def expected(row: dict[str, str]) -> str:
    """Returns the text of a row, written without the toolkit."""
    price = f"price: {row['price']} {{EUR}}" if row["price"] else ""
    return "\n".join(line for line in (row["title"], row["body"], price) if line)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("templates")
    files = [write_rows(folder / f"{part}.csv", rows(count)) for part, count in (("train", 24), ("validation", 9))]
    data = [f"data.{file.stem}_file={file}" for file in files]
    train("reviews", folder / "run", *FEW, *data, f"data.columns.text={TEMPLATE}")
    return folder / "run"


@pytest.mark.parametrize(("row", "text"), [
    ({"a": "x", "b": "y"}, "x\nb: y\nend"),
    ({"a": " ", "b": "y"}, "b: y\nend"),
    ({"a": None, "b": 0}, "b: 0\nend"),
    ({"a": "{b}"}, "{b}\nend"),
    ({}, ""),
])  # fmt: skip
def test_a_line_without_values_vanishes(row, text):
    assert fill("{a}\nb: {b}\nend", row) == text


def test_a_run_reads_the_joined_text(finished):
    assert [record["text"] for record in predictions(finished)] == list(map(expected, rows(9)))


@pytest.mark.slow
def test_files_rows_and_exports_take_the_columns(finished, tmp_path):
    given = [{name: row[name] for name in ("price", "title", "body")} for row in rows(7)] + [
        {"price": "1 &amp; 2", "title": 'Ü, "quoted"', "body": "two\nlines"}
    ]
    file = write_rows(tmp_path / "new.csv", given)
    answers = toolkit_answers(finished, file)
    assert [{name: row[name] for name in given[0]} for row in answers] == given
    in_python = load(finished).predict(given)
    assert [each["prediction"] for each in in_python] == [row["prediction"] for row in answers]
    numbers = tmp_path / "new.jsonl"
    numbers.write_text('{"title": "Hoe", "body": null, "price": 12.50}\n{"title": "Hoe", "price": 3}\n{"body": "x"}\n')
    words = [word for name in ("title", "body", "price") for word in (f"--{name}", given[0][name])]
    for folder in (exported(finished, tmp_path), exported_as(finished, "onnx", tmp_path, "--parity-rows", "3")[0]):
        for new in (file, numbers):
            assert_equal_answers(finished, folder, new, float32_tolerance())
        assert script_answers(folder, *words)[0]["prediction"] == answers[0]["prediction"]
        without = write_rows(tmp_path / "without.csv", [{"title": "Hoe", "body": "A hoe"}])
        with pytest.raises(SystemExit, match="no column price"):
            script_answers(folder, without)


def test_texts_of_the_command_line_are_columns_or_objects(finished, capsys):
    row = {"title": "Hoe", "body": "A hoe", "price": None}
    words = ["title=Hoe", "body=A hoe", "price="]
    for texts in (words, [json.dumps(row)]):
        arguments = [word for text in texts for word in ("--input-text", text)]
        assert run_command("predict", finished, *arguments) == 0
    one, other = capsys.readouterr().out.split("title: Hoe")[1:]
    assert one.split("score")[1].split()[1:2] == other.split("score")[1].split()[1:2]
    for wrong in ('{"titel": "Hoe", "body": "", "price": ""}', "Hoe", '{"title": "Hoe"}', "{title"):
        assert run_command("predict", finished, "--input-text", wrong) == 2
        assert "body" in capsys.readouterr().err


def test_requests_and_the_page_take_the_columns(finished, tmp_path):
    run = load(finished)
    row = {"title": "Hoe", "body": None, "price": 3}
    expected = run.predict([row])
    with TestClient(build(run, "run", Limits())) as server:
        found = server.post("/predict", json={"rows": [row]})
        assert [each["prediction"] for each in found.json()["predictions"]] == [expected[0]["prediction"]]
        assert found.json()["predictions"][0]["score"] == pytest.approx(max(expected[0]["scores"].values()), abs=1e-6)
        schema = server.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]["content"]
        items = schema["application/json"]["schema"]["properties"]["rows"]["items"]
        assert list(items["properties"]) == items["required"] == ["title", "body", "price"]
        lacking = server.post("/predict", json={"rows": [{"title": "Hoe", "pric": 3}]})
        assert lacking.status_code == 422
        problems = [(each["column"], each["reason"]) for each in lacking.json()["problems"]]
        assert [column for column, _ in problems] == ["body", "price"]
        assert "did you mean 'pric'?" in problems[1][1]
        empty = server.post("/predict", json={"rows": [dict.fromkeys(row)]}).json()
        assert empty["problems"][0]["reason"] == "columns 'title', 'body' and 'price' are empty"
    columns = Columns(run.task, run.cfg.data.columns)
    assert row_of(columns, {"title": "Hoe", "body": "", "price": "3"}) == {"title": "Hoe", "body": None, "price": "3"}
    examples = validation_examples(run, tmp_path)
    assert examples[0] == {name: rows(9)[0][name] for name in ("title", "body", "price")}
    assert {each["title"] for each in examples} <= {row["title"] for row in rows(9)}


def test_a_template_takes_text_and_numbers(finished):
    with pytest.raises(DataError, match="column 'body' holds list; templates take text and numbers"):
        load(finished).predict([{"title": "Hoe", "body": ["a"], "price": 1.5}])


def test_rows_without_any_value_are_empty_texts(finished, tmp_path, capsys):
    file = write_rows(tmp_path / "empty.csv", [rows(1)[0] | {"title": " ", "body": "", "price": ""}, rows(1)[0]])
    assert run_command("predict", finished, "--input", file, "--output", tmp_path / "out.csv") == 0
    with (tmp_path / "out.csv").open() as opened:
        assert [row["error"] for row in csv.DictReader(opened)] == ["columns 'title', 'body' and 'price' are empty", ""]


def test_a_missing_column_is_named_with_the_nearest(tmp_path):
    file = write_rows(tmp_path / "train.csv", rows())
    with pytest.raises(DataError, match=r"no column 'titel'.*Did you mean \{title\}\?"):
        train("reviews", tmp_path / "run", *FEW, f"data.train_file={file}", "data.columns.text={titel}: {body}")


def settings(text: str, tmp_path: Path, recipe: str = "reviews") -> dict[str, str]:
    """Returns `data.columns` of a YAML whose line in it is `text`."""
    file, train_file = tmp_path / "run.yaml", write_rows(tmp_path / "train.csv", rows())
    file.write_text(
        f"output_dir: out\nmodel:\n  from_config:\n    model_type: bert\ndata:\n  train_file: {train_file}\n"
        f"  columns:\n    {text}\n"
    )
    return dict(load_settings(load_task_type(recipe), file).config.data.columns)


@pytest.mark.parametrize(("text", "message"), [
    ("text: {title}", r'data\.columns\.text: YAML reads braces without quotes as a mapping; quote the .*"\{title\}"'),
    ("text: {title} {body}", "put quotes around text with braces"),
    ('text: "{title"', "a brace without its other half"),
    ('text: "{title} {}"', "braces without the name of a column"),
    ('image: "{title}.png"', "a template makes text, and this column holds files"),
])  # fmt: skip
def test_wrong_templates_are_messages(text, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        settings(text, tmp_path)


@pytest.mark.parametrize("text", [r'text: "{title}\n{body}"', r"text: '{title}\n{body}'"])
def test_a_line_break_is_one_however_it_is_quoted(text, tmp_path):
    assert settings(text, tmp_path) == {"text": "{title}\n{body}"}


def test_a_column_with_braces_is_named_with_two(tmp_path):
    given = [{"{text}": f"text {n}", "label": "ab"[n % 2]} for n in range(20)]
    file = write_rows(tmp_path / "train.csv", given)
    train("reviews", tmp_path / "run", *FEW, f"data.train_file={file}", "data.validation_file=null",
          "data.columns.text={{text}}")  # fmt: skip
    assert {record["text"] for record in predictions(tmp_path / "run")} <= {row["{text}"] for row in given}


def test_every_recipe_reads_templates(tmp_path):
    given = [{"head": f"Rain in {n} towns", "body": f"It rained in {n} towns today.", "short": f"Rain {n}"}
             for n in range(16)]  # fmt: skip
    file = write_rows(tmp_path / "train.csv", given)
    data = (f"data.train_file={file}", "data.validation_file=null", "data.columns.document={head}. {body}",
            "data.columns.summary={short}!")  # fmt: skip
    train("summarization", tmp_path / "run", "train.max_steps=1", *data)
    records = predictions(tmp_path / "run")
    assert records
    wanted = {(f"{row['head']}. {row['body']}", f"{row['short']}!") for row in given}
    assert {(record["document"], record["reference"]) for record in records} <= wanted
