"""`toolkit evaluate --endpoint` against `toolkit serve`, and against servers with one planted fault each."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from commands import run_command
from fastapi.testclient import TestClient
from runs import ROOT, train

import toolkit
from toolkit.base.files import read_json
from toolkit.deploy import endpoint
from toolkit.deploy.serving.app import build
from toolkit.deploy.serving.requests import Limits

FEW = ("data.max_train_samples=12", "data.max_eval_samples=5", "checkpoint.save_steps=null", "task.max_new_tokens=12")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs that answer conversations, two of other weights, and one that continues texts."""
    folder = tmp_path_factory.mktemp("runs")
    for name, recipe, steps in (("chat", "smoke_chat", 6), ("other", "smoke_chat", 2), ("text", "smoke", 3)):
        train(
            f"language_modeling/{recipe}", folder / name, *FEW, f"train.max_steps={steps}", "train.learning_rate=0.02"
        )
    questions = [f"How do I keep {count} hens?" for count in (2, 3, 40)]
    rows = [[{"role": "user", "content": each}, {"role": "assistant", "content": "Feed them."}] for each in questions]
    (folder / "chat.jsonl").write_text("\n".join(json.dumps({"messages": each}) for each in rows))
    (folder / "text.jsonl").write_text("\n".join(json.dumps({"text": each}) for each in questions))
    return folder


@contextmanager
def served(run, ask=lambda request: request, say=lambda answer: answer, models=("hens",)):
    """Serves a run with requests and answers changed by two functions; yields the address."""
    with TestClient(build(toolkit.load(run), "hens", Limits()), base_url="http://127.0.0.1") as app:

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.reply(200, {"data": [{"id": each} for each in models]})

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                found = app.post(self.path, json=ask(request))
                self.reply(found.status_code, say(found.json()) if found.status_code == 200 else found.json())

            def reply(self, status, content):
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
            server.shutdown()


def evaluated(folders, url, kind="chat", *more):
    output = folders / "parity.json"
    rows = folders / f"{kind}.jsonl"
    where = ("--data", rows, "--endpoint", url, "--output", output, "--overwrite")
    code = run_command("evaluate", folders / kind, *where, *more)
    return code, read_json(output)


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", ["chat", "text"])
def test_the_run_itself_answers_the_same(folders, kind, capsys):
    with served(folders / kind) as url:
        code, found = evaluated(folders, url, kind)
    assert code == 0
    assert (found["rows"], found["same"], found["causes"]) == (3, 3, {})
    assert found["max_difference"] < 1e-5
    assert len(found["answers"][0]["differences"]) >= 1
    if kind == "chat":
        assert found["scores"]["run"] == found["scores"]["endpoint"]
    assert "3 of 3" in capsys.readouterr().out


def with_system(request):
    return {**request, "messages": [{"role": "system", "content": "Be kind."}, *request["messages"]]}


def changed(answer, size=None, **choice):
    (given,) = answer["choices"]
    usage = answer["usage"]
    cut = {} if size is None else {"prompt_tokens": min(size, usage["prompt_tokens"])}
    return {**answer, "choices": [{**given, **choice}], "usage": {**usage, **cut}}


def longer(answer):
    text = answer["choices"][0]["message"]["content"] + " and again"
    return changed(answer, message={"content": text}, logprobs=None, finish_reason="length")


@pytest.mark.fast(3)
@pytest.mark.parametrize(
    ("cause", "rows", "changes"),
    [
        ("template", 3, {"ask": with_system}),
        ("answer truncated", 3, {"ask": lambda request: {**request, "max_tokens": 2}}),
        ("end of answers", 3, {"say": longer}),
        ("not answered", 3, {"say": lambda answer: {"choices": []}}),
        ("not answered", 3, {"ask": lambda request: {**request, "n": 4}}),
        ("prompt truncated", 1, {"cut": True}),
        ("other weights", 3, {"run": "other"}),
    ],
)
def test_a_planted_fault_is_named(folders, cause, rows, changes, capsys):
    options = dict(changes)
    run = folders / options.pop("run", "chat")
    if options.pop("cut", False):
        ids = [toolkit.load(run).task.prompt_ids([{"role": "user", "content": "How do I keep 3 hens?"}],
                                                 toolkit.load(run).processor)[0]]  # fmt: skip
        options["say"] = lambda answer: changed(answer, size=len(ids[0]))
    with served(run, **options) as url:
        code, found = evaluated(folders, url)
    assert code == 1
    assert found["causes"] == {cause: rows}
    assert f"likely cause: {cause}" in " ".join(capsys.readouterr().out.split())


def test_answers_that_differ_where_two_tokens_are_as_likely_pass(folders, monkeypatch):
    monkeypatch.setattr(endpoint, "TOLERANCE", 1000.0)
    with served(folders / "other") as url:
        code, found = evaluated(folders, url)
    assert (code, set(found["causes"])) == (0, {"precision"})


def test_other_runs_are_rejected(folders, tmp_path, capsys):
    few = ("train.max_steps=1", "data.max_train_samples=12", "data.max_eval_samples=5", "eval.eval_on_start=false")
    train("preference/smoke", tmp_path / "run", *few, "tracking.count_memory=true")
    assert read_json(tmp_path / "run" / "run.json")["result"]["counted_peak_bytes"] == [0]  # there was no second step
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    rows = ROOT / "recipes/data/preference/validation.jsonl"
    with served(folders / "chat") as url:
        assert run_command("evaluate", tmp_path / "run", "--data", rows, "--endpoint", url) == 2
    assert "is for causal models of the recipe language_modeling" in " ".join(capsys.readouterr().err.split())


def test_addresses_and_models_that_do_not_fit_are_named(folders, capsys):
    def message(url, *more):
        code = run_command("evaluate", folders / "chat", "--data", folders / "chat.jsonl", "--endpoint", url, *more)
        assert code == 2
        return " ".join(capsys.readouterr().err.split())

    assert "expected an address" in message("localhost:80")
    assert "http://127.0.0.1:9/v1/models:" in message("http://127.0.0.1:9/v1")
    with served(folders / "chat", models=("base", "hens")) as url:
        assert "the server has base, hens" in message(url)
        assert "received geese" in message(url, "--endpoint-model", "geese")
        assert evaluated(folders, url, "chat", "--endpoint-model", "hens")[0] == 0
    assert "remove --slices" in message("http://127.0.0.1:9/v1", "--slices", "a")
