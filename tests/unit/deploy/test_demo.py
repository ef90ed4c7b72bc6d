"""`toolkit demo` in this process: fields, answers and examples of every task, and no other machine is asked."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from served import CASES, run_of

import toolkit
from toolkit.api.supports import answer, answer_columns
from toolkit.deploy.demo.examples import as_text, from_text, validation_examples
from toolkit.deploy.demo.page import row_of, shown
from toolkit.deploy.demo.server import POLICY, build_demo
from toolkit.deploy.serving.guard import Guard
from toolkit.deploy.serving.limits import Limits
from toolkit.deploy.serving.reading import Columns

TALK = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module", params=["single label", "several labels", "numbers", "image", "audio", "qa", "tokens",
                                        "translation", "summarization", "packed", "chat"])  # fmt: skip
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    return toolkit.load(run_of(request.param, folder / "run"))


@pytest.fixture
def no_other_machine(monkeypatch):
    """Fails if a socket is connected or a name is looked up."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError(f"asked another machine: {arguments}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def environment(monkeypatch):
    """Restores what `build_demo` sets."""
    for name in ("GRADIO_ANALYTICS_ENABLED", "GRADIO_SHARE", "GRADIO_MCP_SERVER", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")


def asked(client: TestClient, values: list[Any]) -> tuple[str, Any]:
    """Returns the event and the values with which the page answers the values of its fields."""
    event = client.post("/gradio_api/call/predict", json={"data": values}).json()["event_id"]
    lines = client.get(f"/gradio_api/call/predict/{event}").text.splitlines()
    events = [(lines[i].removeprefix("event: "), json.loads(lines[i + 1].removeprefix("data: ")))
              for i in range(len(lines) - 1) if lines[i].startswith("event: ")]  # fmt: skip
    return events[-1]


def test_the_page_answers_its_examples_as_the_model_does(run, tmp_path, no_other_machine, environment):
    app = Guard(build_demo(run, "a run", Limits(), tmp_path), local=False, policy=POLICY)
    examples = validation_examples(run, tmp_path / "again")
    assert 3 <= len(examples) <= 6
    columns = Columns(run.task, run.cfg.data.columns)
    with TestClient(app) as client:
        page = client.get("/")
        assert page.headers["content-security-policy"] == POLICY
        config = client.get("/config").json()
        for example in examples[:2]:
            values = [example[name] for name in columns.example]
            row = row_of(columns, dict(zip(columns.example, values, strict=True)))
            expected = shown(predicted(run, row), answer_columns(run.task))
            sent = [uploaded(client, value) if name in columns.files else value
                    for name, value in zip(columns.example, values, strict=True)]  # fmt: skip
            kind, found = asked(client, sent)
            assert kind == "complete", found
            assert found[0] == expected[0]
            assert len(found) == len(expected)
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page.text)
    assert config["analytics_enabled"] is False
    assert {part["type"] for part in config["components"]} >= {"button", "dataset"}


def predicted(run, row: dict[str, Any]) -> dict[str, Any]:
    given = {name: {"path": value[0], "bytes": value[1]} if isinstance(value, tuple) else value
             for name, value in row.items()}  # fmt: skip
    (record,) = run.predict([given])
    return answer(run.task, record)


def uploaded(client: TestClient, file: str) -> dict[str, Any]:
    """Sends a file as the page does, and returns what refers to it."""
    (path,) = client.post("/gradio_api/upload", files={"files": (Path(file).name, Path(file).read_bytes())}).json()
    return {"path": path, "orig_name": Path(file).name, "meta": {"_type": "gradio.FileData"}}


def test_what_cannot_be_answered_is_said_and_files_of_the_machine_are_not_read(tmp_path, no_other_machine, environment):
    run = toolkit.load(run_of("image", tmp_path / "run"))
    secret = tmp_path / "secret.png"
    secret.write_bytes(CASES["image"].rows[0]["image"])
    with TestClient(build_demo(run, "a run", Limits(), tmp_path / "page")) as client:
        assert asked(client, [None])[0] == "error"
        stolen = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
        assert asked(client, [stolen])[0] == "error"
        assert client.get(f"/gradio_api/file={secret}").status_code == 403


def test_a_run_whose_rows_are_gone_has_no_examples(tmp_path, capsys):
    run = toolkit.load(run_of("numbers", tmp_path / "run"))
    assert validation_examples(run, tmp_path)
    (tmp_path / "run.jsonl").unlink()
    assert validation_examples(run, tmp_path) == []
    assert "no examples: the run's rows cannot be read" in capsys.readouterr().out


def test_values_are_written_into_fields_and_read_from_them():
    assert as_text(["Anna", "sings"]) == "Anna sings"
    assert from_text(as_text(TALK), messages=True) == TALK
    assert from_text("Hello", messages=True) == TALK
    assert from_text("12", messages=True) == [{"role": "user", "content": "12"}]
    assert from_text("[1]", messages=False) == "[1]"
    assert as_text(None) == ""
