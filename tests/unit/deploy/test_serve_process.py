"""`toolkit serve` and `toolkit demo` in processes of their own: parallel requests, leaks and signals."""

from __future__ import annotations

import http.client
import re
import resource
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import psutil
import pytest
from runs import assert_close
from served import TEXTS, Case, Server, predicted, run_of
from tolerances import float32_tolerance

MALFORMED = [{"rows": [{"txt": "a"}]}, {"rows": []}, {"rows": [{"text": 3}]}, {"row": []}, []]
MIB = 2**20


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_of("single label", tmp_path_factory.mktemp("serve") / "run")


def sent(address: str, body: Any) -> httpx.Response:
    with httpx.Client(timeout=120) as client:
        return client.post(f"{address}/predict", json=body)


@pytest.mark.slow
def test_parallel_requests_are_answered_as_predict_does_and_nothing_leaks(run, tmp_path):
    rows = [{"text": f"{number} {text}"} for number in range(20) for text in TEXTS]
    expected = predicted(Case("reviews", rows, []), run, tmp_path)
    groups = [range(start, min(start + size, 80)) for size in (1, 3, 16) for start in range(0, 80, size)]
    bodies: list[Any] = [{"rows": [rows[place] for place in group]} for group in groups] + 5 * MALFORMED
    with Server(tmp_path, "serve", run) as server, ThreadPoolExecutor(50) as threads:
        process, use = psutil.Process(server.process.pid), []
        for _ in range(4):
            answers = list(threads.map(lambda body: sent(server.address, body), bodies))
            for group, answer in zip(groups, answers, strict=False):
                assert answer.status_code == 200, answer.text
                wanted = [expected[place] for place in group]
                assert_close(answer.json()["predictions"], wanted, float32_tolerance())
            assert {answer.status_code for answer in answers[len(groups) :]} == {422}
            use.append((process.memory_info().rss, process.num_fds(), process.num_threads()))
        health = httpx.get(f"{server.address}/health").json()
        assert server.stop() == 0, server.log
    assert health["queue"]["requests"] == 0
    assert health["computed"]["batches"] < health["computed"]["rows"]
    (_, *_), (memory, files, threads_before), *_, last = use
    assert last[0] - memory < 32 * MIB
    assert last[1] <= files + 2  # connections that are being closed
    assert last[2] <= threads_before
    assert server.log.splitlines()[-1] == "stopped"


@pytest.mark.slow
def test_sigterm_finishes_the_requests_in_flight(run, tmp_path):
    body = {"rows": [{"text": "word " * 60}] * 128}
    slowly = ("--per-device-eval-batch-size", "1")
    with Server(tmp_path, "serve", run, *slowly) as server, ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(sent, server.address, body) for _ in range(8)]
        while httpx.get(f"{server.address}/health").json()["queue"]["requests"] < 8:
            assert not any(each.done() for each in waiting)  # answered before all were sent: too few rows
            time.sleep(0.01)
        assert server.stop() == 0, server.log
        assert [len(each.result().json()["predictions"]) for each in waiting] == [128] * 8
        with pytest.raises(httpx.ConnectError):
            sent(server.address, body)


@pytest.mark.slow
def test_a_client_that_goes_or_sends_slowly_holds_nobody_up(run, tmp_path):
    with Server(tmp_path, "serve", run, "--timeout", "12") as server:
        host, port = re.fullmatch(r"http://(.+):(\d+)", server.address).groups()
        head = f"POST /predict HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        for start in ("", "GET", f"{head}Content-Length: 90\r\n\r\n{{"):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(start.encode())
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(f"{head}Content-Length: 90\r\n\r\n{{".encode())
            assert sent(server.address, {"rows": [{"text": "a"}]}).status_code == 200
            slow.settimeout(60)
            assert b" 408 " in slow.recv(1000).splitlines()[0]
        assert httpx.get(f"{server.address}/health").json()["queue"]["requests"] == 0
        assert server.stop(signal.SIGINT) == 0
        assert "Traceback" not in server.log


@pytest.mark.slow
def test_connections_without_a_request_end_with_the_timeout_and_crowd_nobody_out(run, tmp_path):
    few = (250, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    with limited(few):
        started = Server(tmp_path, "serve", run, "--timeout", "12")
    with started as server:
        address = re.fullmatch(r"http://(.+):(\d+)", server.address).groups()
        known = http.client.HTTPConnection(address[0], int(address[1]), timeout=60)

        def again() -> int:  # on the same connection
            known.request("GET", "/health")
            found = known.getresponse()
            found.read()
            return found.status

        assert again() == 200
        with ExitStack() as held:
            held.callback(known.close)
            for start in [b"", b"POST /pre", b"GET / HTTP/1.1\r\nHost: x\r\n"] * 100:
                connection = held.enter_context(socket.create_connection((address[0], int(address[1])), timeout=60))
                connection.sendall(start)
            assert again() == 200
            assert sent(server.address, {"rows": [{"text": "a"}]}).status_code == 200
            with suppress(ConnectionError):
                assert connection.recv(100) == b""
        assert sent(server.address, {"rows": [{"text": "a"}]}).status_code == 200
        assert server.stop() == 0
        assert len(server.log) < 5000


@contextmanager
def limited(files: tuple[int, int]) -> Iterator[None]:
    """Limits the descriptors of processes that are started inside the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
