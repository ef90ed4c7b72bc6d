"""`toolkit demo`: fields, answers and examples of every task, and no other machine is asked."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import demo_pages
import pytest
from runs import ROOT
from served import CASES, PICTURES, run_of
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

import toolkit
from toolkit.deploy.demo import UPLOAD, OwnFiles, as_text, from_text, replying, row_of, shown, validation_examples
from toolkit.deploy.serving.requests import Columns

TALK = [{"role": "user", "content": "Hello"}]
NAMES = ["single label", "several labels", "numbers", "image", "audio", "speech", "qa", "tokens", "translation", "chat"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function that returns the run of a task, which is trained at the first call."""
    folder = tmp_path_factory.mktemp("demo")

    @cache
    def run(name: str) -> Path:
        run_of(name, folder / name)
        (folder / name / demo_pages.SECRET).write_bytes(PICTURES[0])
        return folder / name

    return run


@pytest.fixture(scope="module")
def pages(runs: Callable[[str], Path]) -> dict[str, dict[str, Any]]:
    """Returns what `demo_pages` has found for each task."""
    command = [sys.executable, demo_pages.__file__, *(str(runs(name)) for name in NAMES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "asked another machine" not in done.stderr
    found = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return dict(zip(NAMES, map(json.loads, found), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_page_answers_its_examples_as_the_model_does(pages, name):
    page = pages[name]
    assert 3 <= page["examples"] <= 6
    assert len(page["answers"]) == 2
    for expected, event, found in page["answers"]:
        assert event == "complete", found
        assert found[0] == expected[0]
        assert len(found) == len(expected)
        if "scores" in page["values"]:
            confidences = {each["label"]: each["confidence"] for each in found[1]["confidences"]}
            assert confidences == pytest.approx(expected[1])
    kinds = {part["type"] for part in page["config"]["components"]}
    assert {"button", "dataset", CASES[name].files.partition(".")[0] if CASES[name].files else "textbox"} <= kinds


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_answered_is_said_and_files_of_the_machine_are_not_read(pages, name):
    assert pages[name]["empty"][0] == "error"
    assert pages[name]["refused"] == [403, 403]
    assert pages[name]["read"] == 403


@pytest.mark.slow
def test_the_page_names_no_other_machine(pages):
    page = pages["single label"]
    sources = re.findall(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?([^"'> ]+)""", page["html"])
    assert sources
    assert [source for source in sources if re.match(r"(?:https?:)?//", source)] == []
    assert not re.search(r"@import|url\(.?https?:", page["css"])
    assert page["config"]["analytics_enabled"] is False
    assert page["config"].get("stylesheets", []) == []
    allowed = {word for part in page["policy"].split(";") for word in part.split()[1:]}
    assert allowed == {"'self'", "'unsafe-inline'", "'unsafe-eval'", "data:", "blob:"}


def test_a_request_that_refers_to_another_file_is_rejected_whatever_it_says_it_is(tmp_path):
    async def echo(scope, receive, send) -> None:
        await Response(await Request(scope, receive).body())(scope, receive, send)

    server, address = TestClient(OwnFiles(echo, tmp_path, max_body=1000)), "/gradio_api/call/predict"
    own, other = (json.dumps({"data": [{"path": str(place)}]}).encode() for place in (tmp_path / "a", __file__))
    assert server.post(address, content=own).content == own
    assert server.post(address, content=iter([own[:5], own[5:]])).content == own
    form, data = ("content-type", "multipart/form-data"), ("content-type", "application/json")
    for headers in ([data], [form], [data, form], [form, data]):
        assert server.post(address, content=other, headers=headers).status_code == 403
    assert server.post(address, content=b"--b", headers=[form]).status_code == 400
    assert server.post(address, content=b" " * 1001).status_code == 413
    assert server.post(UPLOAD, content=b" " * 1001, headers=[form]).content == b" " * 1001


def test_a_run_whose_rows_are_gone_has_no_examples(runs, tmp_path, capsys):
    run = toolkit.load(runs("numbers"))
    rows = runs("numbers").with_name("numbers.jsonl")
    text = rows.read_text()
    rows.unlink()
    assert validation_examples(run, tmp_path) == []
    assert "no examples: the run's rows cannot be read" in capsys.readouterr().out
    rows.write_text(text)


def test_the_fields_become_a_row(runs, tmp_path):
    (tmp_path / "a.png").write_bytes(b"content")
    image = Columns(toolkit.load(runs("image")).task, {})
    assert row_of(image, {"image": str(tmp_path / "a.png")}) == {"image": ("a.png", b"content")}
    assert row_of(image, {"image": None}) == {}
    chat = Columns(toolkit.load(runs("chat")).task, {"messages": "talk"})
    assert row_of(chat, {"talk": "Hello"}) == {"talk": TALK}
    assert row_of(chat, {"talk": json.dumps(TALK)}) == {"talk": TALK}


def test_values_are_written_into_fields_and_read_from_them():
    assert as_text(["Anna", "sings"]) == "Anna sings"
    assert from_text(as_text(TALK), messages=True) == TALK
    assert from_text("Hello", messages=True) == TALK
    assert from_text("12", messages=True) == [{"role": "user", "content": "12"}]
    assert from_text("[1]", messages=False) == "[1]"
    assert as_text(None) == ""


def test_answers_are_shown_by_their_kind():
    scores = {"prediction": ["a", "b"], "score": 0.5, "scores": {"a": 0.5}}
    assert shown(scores, list(scores)) == ["a,b", {"a": 0.5}]
    spans = {"prediction": "x", "score": 0.25, "n_best": [{"text": "x", "score": 0.25}]}
    table = {"headers": ["text", "score"], "data": [["x", "0.25"]]}
    assert shown(spans, list(spans)) == ["x", "score: 0.25", table]
    model = {"prediction": 2.5, "loss": None, "num_tokens": 0}
    assert shown(model, list(model)) == ["2.5", "loss: \nnum_tokens: 0"]


def test_a_chat_answers_a_message_with_those_before_it():
    asked: list[dict[str, Any]] = []

    async def predict(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        asked.extend(rows)
        return [{"prediction": "Grass."}]

    history = [
        {"role": "user", "content": [{"type": "text", "text": "Hens?"}]},
        {"role": "assistant", "content": "Corn."},
    ]
    assert asyncio.run(replying(None, "talk", predict)("And ducks?", history)) == "Grass."
    said = [("user", "Hens?"), ("assistant", "Corn."), ("user", "And ducks?")]
    assert asked == [{"talk": [{"role": role, "content": content} for role, content in said]}]
