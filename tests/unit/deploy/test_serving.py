"""`toolkit serve` in this process: good and bad requests for every task, limits, failures, and what is rejected."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from browser import needs_browser, open_page
from commands import run_command
from fastapi import FastAPI
from fastapi.testclient import TestClient
from runs import assert_close
from served import CASES, in_json, predicted, run_of
from tolerances import float32_tolerance

import toolkit
from toolkit.base.errors import DataError, InputError
from toolkit.commands.options import open_served
from toolkit.data.readers.raw import Reading
from toolkit.data.table import Table
from toolkit.deploy.serving import worker
from toolkit.deploy.serving.app import build
from toolkit.deploy.serving.requests import Columns, Limits, Refusal, checked_table
from toolkit.deploy.serving.server import bound, rejection, serve
from toolkit.deploy.serving.worker import Job, next_batch

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """Returns a case, the folder of its run, and the run."""
    folder = run_of(request.param, tmp_path_factory.mktemp(request.param.replace(" ", "-")) / "run")
    return CASES[request.param], folder, toolkit.load(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return toolkit.load(run_of("single label", tmp_path_factory.mktemp("reviews") / "run"))


def client(run, **limits) -> TestClient:
    return TestClient(build(run, "the run", Limits(**limits)))


@pytest.mark.fast(2)
def test_every_task_answers_as_predict_does(case, tmp_path):
    own, folder, run = case
    expected = predicted(own, folder, tmp_path)
    cache = set(Path(datasets.config.HF_DATASETS_CACHE).rglob("*"))
    with client(run) as server:
        found = server.post("/predict", json={"rows": in_json(own)})
        assert found.status_code == 200, found.text
        assert found.json() == {"predictions": expected}  # in the same batches, so to the last bit
        if own.files is not None:
            column = own.files.partition(".")[0]
            parts = [(column, (own.files, row[column])) for row in own.rows]
            assert server.post("/predict", files=parts).json() == {"predictions": expected}
    assert set(Path(datasets.config.HF_DATASETS_CACHE).rglob("*")) == cache


@pytest.mark.fast(2)
def test_requests_of_every_task_share_batches_and_get_their_own_answers(case):
    own, _, run = case
    rows = in_json(own)
    requests = [rows, *([row] for row in rows), rows[::-1]]
    expected = [alone(run, own.rows), *(alone(run, [row]) for row in own.rows), alone(run, own.rows[::-1])]
    with client(run, batch_wait_ms=300) as server, ThreadPoolExecutor(len(requests)) as threads:
        answers = list(threads.map(lambda rows: server.post("/predict", json={"rows": rows}), requests))
        computed = server.get("/health").json()["computed"]
    for found, wanted in zip(answers, expected, strict=True):
        assert_close(found.json()["predictions"], json.loads(json.dumps(wanted)), float32_tolerance())
    assert computed["batches"] < len(requests)


def alone(run, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    given = [
        {name: {"bytes": value, "path": "a"} if isinstance(value, bytes) else value for name, value in row.items()}
        for row in rows
    ]
    return [run.task.answer(record) for record in run.predict(given)]


@pytest.mark.fast(6)
def test_every_task_names_row_and_column_of_what_it_cannot_use(case):
    own, _, run = case
    good = in_json(own)[0]
    with client(run) as server:
        for row, column, reason in own.bad:
            found = server.post("/predict", json={"rows": [good, row]})
            assert found.status_code == 422, found.text
            (problem,) = found.json()["problems"]
            assert (problem["row"], problem["column"]) == (2, column), problem
            assert reason in problem["reason"]
            assert found.json()["error"] == f"1 of 2 rows cannot be used: row 2: {problem['reason']}"
        several = server.post("/predict", json={"rows": [row for row, _, _ in own.bad]}).json()
        assert [problem["row"] for problem in several["problems"]] == list(range(1, len(own.bad) + 1))


def test_every_task_describes_its_columns(case):
    own, _, run = case
    with client(run) as server:
        described = server.get("/openapi.json").json()
        page = server.get("/docs").text
    body = described["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    columns = body["schema"]["properties"]["rows"]["items"]["properties"]
    assert set(own.rows[0]) <= set(columns)
    assert set(body["example"]["rows"][0]) <= set(columns)
    assert all(f">{name}</td>" in page for name in columns)


BAD = {
    "no body": (b"", JSON, 400, "not JSON"),
    "broken": (b'{"rows": [', JSON, 400, "not JSON"),
    "not utf-8": (b'{"rows": [{"text": "\xff"}]}', JSON, 400, "not JSON"),
    "deep": (b"[" * 2900, JSON, 400, "not JSON"),
    "nan": (b'{"rows": [{"text": NaN}]}', JSON, 400, "NaN is not a number of JSON"),
    "list": (b"[]", JSON, 422, "a list; expected an object"),
    "unknown name": (b'{"rows": [], "threshold": 1}', JSON, 422, "the unknown name 'threshold'"),
    "no rows": (b"{}", JSON, 422, "`rows` is missing"),
    "rows are text": (b'{"rows": "x"}', JSON, 422, "`rows` is a text"),
    "empty": (b'{"rows": []}', JSON, 422, "there are no rows"),
    "row is text": (b'{"rows": [{"text": "a"}, "b"]}', JSON, 422, "row 2: expected an object with columns"),
    "surrogate": (b'{"rows": [{"text": "\\ud800"}]}', JSON, 422, "column 'text' is not UTF-8 text"),
    "too many": (json.dumps({"rows": [{"text": "a"}] * 9}).encode(), JSON, 413, "a request may have 8"),
    "too large": (b" " * 3001, JSON, 413, "larger than 0.003 MB"),
    "too long": (json.dumps({"rows": [{"text": "a" * 101}] * 2}).encode(), JSON, 413, "have more than 200 characters"),
    "other type": (b"text=a", {"content-type": "application/x-www-form-urlencoded"}, 415, "expected application/json"),
    "no type": (b"{}", {}, 415, "it is missing"),
    "form without boundary": (b"x", {"content-type": "multipart/form-data"}, 400, "the form cannot be read"),
    "broken form": (b"broken", {"content-type": "multipart/form-data; boundary=b"}, 400, "the form cannot be read"),
}


@pytest.mark.parametrize(("body", "headers", "status", "reason"), BAD.values(), ids=BAD)
def test_a_bad_request_is_rejected_with_the_reason(run, body, headers, status, reason):
    with client(run, max_rows=8, max_chars=200 if b"aa" in body else 10_000, max_body_mb=0.003) as server:
        found = server.post("/predict", content=body, headers=headers)
        assert found.status_code == status, found.text
        assert reason in found.json()["error"]
        pieces = server.post("/predict", content=iter([body[:1], body[1:]]), headers=headers)  # of unknown length
        assert (pieces.status_code, pieces.json()) == (found.status_code, found.json())
        assert server.post("/predict", json={"rows": [{"text": "good"}]}).status_code == 200


def test_a_deep_row_is_rejected_and_not_repeated(run):
    with client(run) as server:
        for depth in (20, 500, *range(940, 1000, 3), 5000):  # around Python's limit, at different steps of the checks
            body = b'{"rows": [{"text": ' + b"[" * depth + b"]" * depth + b"}]}"
            found = server.post("/predict", content=body, headers=JSON)
            assert found.status_code in (400, 422), depth
            assert len(found.text) < 1000


def test_forms_have_rows_of_known_fields_and_files_only_for_files(run):
    with client(run) as server:
        fine = server.post("/predict", files=[("text", (None, "a")), ("text", (None, "b"))])
        assert fine.json() == server.post("/predict", json={"rows": [{"text": "a"}, {"text": "b"}]}).json()
        for parts, reason in (
            ([("txt", (None, "a"))], "the unknown field 'txt'"),
            ([("text", ("a.txt", b"a"))], "holds a file"),
        ):
            found = server.post("/predict", files=parts)
            assert (found.status_code, reason in found.json()["error"]) == (422, True), found.text


def test_other_addresses_and_methods_are_rejected_in_the_same_form(run):
    with client(run) as server:
        assert server.get("/nothing").json() == {"error": "Not Found", "problems": []}
        assert server.get("/predict").status_code == 405
        assert server.get("/", follow_redirects=False).headers["location"] == "docs"


def test_columns_have_the_names_of_the_runs_files_and_entities_are_decoded(run):
    data = replace(run.cfg.data, columns={"text": "body"}, unescape_html=True)
    with client(replace(run, cfg=replace(run.cfg, data=data))) as server:
        found = server.post("/predict", json={"rows": [{"body": "a &amp; b", "label": "ignored"}]})
        missing = server.post("/predict", json={"rows": [{"text": "a"}]})
    assert found.json()["predictions"] == alone(run, [{"text": "a & b"}])
    assert missing.json()["problems"][0]["column"] == "body"


class Held:
    """Makes the computation of batches wait until it is let go."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached, self.go, self._compute = threading.Event(), threading.Event(), worker.compute
        patch.setattr(worker, "compute", self)

    def __call__(self, *arguments: Any) -> None:
        self.reached.set()
        assert self.go.wait(60)
        self._compute(*arguments)


def test_a_full_queue_rejects_further_requests(run, monkeypatch):
    held = Held(monkeypatch)
    with client(run, max_queue=2) as server, ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(server.post, "/predict", json={"rows": [{"text": "a"}]}) for _ in range(2)]
        while server.get("/health").json()["queue"]["requests"] < 2:
            time.sleep(0.01)
        refused = server.post("/predict", json={"rows": [{"text": "a"}]})
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        held.go.set()
        assert [each.result().status_code for each in waiting] == [200, 200]


def test_a_late_answer_is_said_and_harms_nobody(run, monkeypatch):
    held = Held(monkeypatch)
    with client(run, timeout=0.5) as server:
        late = server.post("/predict", json={"rows": [{"text": "a"}]})
        assert (late.status_code, late.json()["error"]) == (504, "the rows were not answered within 0.5 s")
        assert server.get("/health").json()["queue"]["requests"] == 0
        held.go.set()
    with client(run) as server:
        assert server.post("/predict", json={"rows": [{"text": "a"}]}).status_code == 200


def checked(run) -> Table:
    return checked_table([{"text": "a"}], Columns(run.task, {}), Reading.of(run.cfg.data), Limits())


def test_a_worker_that_ends_answers_what_was_submitted(run, monkeypatch):
    held, own = Held(monkeypatch), worker.Worker(run, batch_wait=0.0)
    own.start()
    jobs = [own.submit(checked(run)) for _ in range(3)]
    assert held.reached.wait(60)
    threading.Timer(0.2, held.go.set).start()
    own.end(60)
    assert [len(job.done.result(0)) for job in jobs] == [1, 1, 1]
    assert not own.is_alive


def failing(patch: pytest.MonkeyPatch, error: Exception, count: int) -> None:
    """Makes batches fail that hold `count` feature rows of 3 tokens, which are those of the text `x`."""
    compute = worker.compute

    def fail(run, pieces) -> None:
        if any(job.lengths[rows].max() == count for job, rows in pieces):
            raise error
        compute(run, pieces)

    patch.setattr(worker, "compute", fail)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [(RuntimeError("no luck"), 500, "its log has the reason"), (DataError("changed"), 422, "changed")],
)
def test_a_request_that_fails_does_not_make_others_fail(run, monkeypatch, capsys, error, status, reason):
    short = len(run.processor("x")["input_ids"])
    failing(monkeypatch, error, short)
    texts = ["x", "a longer text", "x", "another long text"]
    with client(run, batch_wait_ms=300) as server, ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda text: server.post("/predict", json={"rows": [{"text": text}]}), texts))
        assert server.get("/health").json()["ready"]
    assert [each.status_code for each in found] == [status, 200, status, 200]
    assert reason in found[0].json()["error"]
    assert found[1].json()["predictions"] == alone(run, [{"text": texts[1]}])
    assert ("RuntimeError: no luck" in capsys.readouterr().err) == (status == 500)


def test_an_error_of_the_device_ends_the_service(run, monkeypatch, capsys):
    failing(monkeypatch, torch.AcceleratorError("device-side assert"), len(run.processor("x")["input_ids"]))
    with client(run) as server:
        assert server.post("/predict", json={"rows": [{"text": "x"}]}).status_code == 503
        assert server.post("/predict", json={"rows": [{"text": "a longer text"}]}).status_code == 503
        health = server.get("/health")
    assert (health.status_code, health.json()["ready"]) == (503, False)
    assert "device-side assert" in health.json()["reason"]
    assert "device-side assert" in capsys.readouterr().err


def test_a_batch_that_meets_an_error_of_the_device_is_not_repeated(run, monkeypatch):
    computed = []

    def fail(run, pieces) -> None:
        computed.append(len(pieces))
        raise torch.AcceleratorError("device-side assert")

    monkeypatch.setattr(worker, "compute", fail)
    tables, own = [checked(run), checked(run)], worker.Worker(run, batch_wait=1.0)
    own.start()
    jobs = [own.submit(table) for table in tables]
    for job in jobs:
        with pytest.raises(Refusal, match="device-side assert"):
            job.done.result(60)
    own.end(60)
    assert len(computed) == 1


def test_numbers_that_are_not_finite_are_null(run, monkeypatch):
    monkeypatch.setattr(type(run.task), "answer", lambda task, record: {"prediction": float("inf"), "scores": [np.nan]})
    with client(run) as server:
        found = server.post("/predict", json={"rows": [{"text": "a"}]})
    assert found.json() == {"predictions": [{"prediction": None, "scores": [None]}]}


def job(*batches: list[int], lengths: list[int]) -> Job:
    made = Job(SimpleNamespace(), 0.0, waiting=deque(batches))
    made.lengths = np.array(lengths)[:, None]
    return made


def sizes(rows: int, tokens: int | None = None) -> Any:
    sizes = SimpleNamespace(per_device_eval_batch_size=rows, max_tokens_per_batch=tokens)
    return SimpleNamespace(cfg=SimpleNamespace(eval=sizes))


def test_a_small_request_does_not_wait_for_a_large_one():
    large = job([0, 1], [2, 3], [4], lengths=[9] * 5)
    small, other = job([0], lengths=[5]), job([0], lengths=[5])
    jobs = deque([large, small, other])
    assert next_batch(jobs, sizes(2)) == [(large, [0, 1])]
    assert next_batch(jobs, sizes(2)) == [(small, [0]), (other, [0])]
    assert next_batch(jobs, sizes(2)) == [(large, [2, 3])]
    assert next_batch(jobs, sizes(2)) == [(large, [4])]
    assert not jobs


def test_a_common_batch_keeps_to_the_budget_of_padded_tokens():
    jobs = deque([job([0, 1], lengths=[4, 2]), job([0], lengths=[9]), job([0], lengths=[3]), job([0], lengths=[1])])
    first, long, third, _ = jobs
    taken = next_batch(jobs, sizes(8, 12))
    assert taken == [(first, [0, 1]), (third, [0])]  # 3 rows of 4 tokens; a fourth would make 16
    assert next_batch(jobs, sizes(8, 12))[0] == (long, [0])


@pytest.mark.parametrize(
    ("host", "origin", "local", "reason"),
    [
        ("127.0.0.1:8000", "", True, None),
        ("localhost", "http://localhost", True, None),
        ("[::1]:8000", "http://[::1]:8000", True, None),
        ("evil.example:8000", "", True, "Host"),
        ("", "", True, "Host"),
        ("127.0.0.1.evil.example", "", True, "Host"),
        ("127.0.0.1:8000", "http://evil.example", True, "Origin"),
        ("127.0.0.1:8000", "null", True, "Origin"),
        ("127.0.0.1:8000", "http://127.0.0.1:9000", True, "Origin"),
        ("models.example", "", False, None),
        ("models.example", "https://models.example", False, None),
        ("models.example", "https://evil.example", False, "Origin"),
    ],
)
def test_pages_of_other_sites_are_kept_away(host, origin, local, reason):
    found = rejection(host, origin, local)
    assert (found is None) if reason is None else found.error.startswith(reason)


@pytest.mark.fast(1)
@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_loads_nothing_else_and_fits(run, tmp_path, width):
    with client(run) as server:
        (tmp_path / "docs.html").write_text(server.get("/docs").text, encoding="utf-8")
    script = (
        "return [document.documentElement.scrollWidth - window.innerWidth, "
        "performance.getEntriesByType('resource').length]"
    )
    document, (too_wide, resources) = open_page(tmp_path / "docs.html", script, width)
    assert too_wide <= 0
    assert resources == 0
    assert not re.search(r"(?:src|href)=.?https?:", document)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--port", "70000"], "from 0 to 65535"),
        (["--host", "no..host"], "no address of this machine"),
        (["--max-body-mb", "inf"], "a number of at least 0.001"),
        (["--batch-wait-ms", "-1"], "a number of at least 0"),
        (["--batch-wait-ms", "2000", "--timeout", "2"], "within --timeout, 2 s"),
        (["data.delimiter=;", "data.columns.text=body"], "data.delimiter: rows come from requests"),
        (["--port", "0", "--recipe", "reviews"], "not a finished run"),
    ],
)
def test_wrong_arguments_are_said_before_the_model_is_loaded(tmp_path, capsys, arguments, reason):
    assert run_command("serve", tmp_path / "no run", *arguments) == 2
    assert reason in capsys.readouterr().err


def test_an_address_in_use_is_said():
    with bound("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(InputError, match=f"port {first.getsockname()[1]} of 127.0.0.1"):
            bound("127.0.0.1", first.getsockname()[1])


def test_an_address_that_another_server_took_meanwhile_is_said():
    with bound("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        second = bound("127.0.0.1", port)  # neither listens yet
        first.listen()
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1"):
            serve(FastAPI(), second, 1.0, lambda address: [])


def test_a_signal_while_the_server_starts_ends_it():
    before, opened = signal.getsignal(signal.SIGTERM), bound("127.0.0.1", 0)

    def signalled(address: str) -> list[str]:
        signal.raise_signal(signal.SIGTERM)
        return [address]

    serve(FastAPI(), opened, 1.0, signalled)
    assert signal.getsignal(signal.SIGTERM) is before
    assert opened.fileno() == -1  # closed


def test_several_processes_and_missing_libraries_are_said(tmp_path, capsys, monkeypatch):
    given = argparse.Namespace(command=["toolkit", "serve"], overrides=[], host="127.0.0.1", port=0, run=tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="toolkit serve"):
        open_served(given, ["fastapi"])
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr("toolkit.deploy.serving.server.find_spec", lambda name: None)
    for command in ("serve", "demo"):
        assert run_command(command, tmp_path) == 2
        assert f"pip install 'finetune-toolkit[{command}]'" in capsys.readouterr().err


@pytest.mark.parametrize("own", ["", "ACTIVE"])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(own, tmp_path, monkeypatch):
    for name in ("OMP_WAIT_POLICY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        monkeypatch.setenv(name, own)
        if not own:
            del os.environ[name]
    assert run_command("serve", tmp_path / "none", "--port", "0") == 2
    assert os.environ["OMP_WAIT_POLICY"] == (own or "PASSIVE")
