"""Serves a run for some minutes under parallel requests, and measures whether anything is lost or leaks.

    python benchmarks/soak_serve.py RUN ROWS [--seconds 600] [--clients 50] [--pause SECONDS]
        [--idle N] [--slow N] [--large CHARACTERS] [--descriptors N]
        [--name soak] [--results FOLDER]

`ROWS` is a .jsonl file with rows of the run, whose answers must not depend on the rows beside them (as those of packed
or masked documents do). Each client sends requests of one or several rows, one after the other, and every tenth is
malformed. Every answer is compared with that of `toolkit predict` for the file. Beside them, idle clients connect and
say nothing, slow ones send a byte a second, and one sends a row with a text that is too long, again and again. The
result has the numbers of requests by status, wrong and lost answers, latencies, and memory and open files of the server
over time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "serve"
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
TOLERANCE = 1e-4
"""Largest difference of a number from that of `toolkit predict`, whose batches have other sizes."""
MALFORMED = ({"rows": "none"}, {"rows": [{"nothing": 1}]}, {"rows": []}, {"row": [{}]})
SAMPLE_SECONDS = 5.0
MIB = 2**20


class Clients:
    """Sends requests from several threads, and counts what comes back.

    Args:
        address: the server's.
        rows: rows to send.
        expected: their answers.
        end: when to stop, by `time.monotonic`.
        pause: seconds between two requests of a client.
    """

    def __init__(self, address: str, rows: list[Any], expected: list[dict[str, Any]], end: float, pause: float) -> None:
        self._address, self._rows, self._expected, self._end, self._pause = address, rows, expected, end, pause
        self._lock = threading.Lock()
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.wrong, self.num_rows = 0, 0

    def work(self, seed: int) -> None:
        """Sends requests until the end."""
        source = random.Random(seed)
        host = self._address.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=120)
        while time.monotonic() < self._end:
            self._once(connection, source)
            time.sleep(self._pause)
        connection.close()

    def work_idly(self, request: bytes, seconds: float) -> None:
        """Connects again and again, and sends a request with so many seconds between its bytes, or nothing."""
        host, port = self._address.removeprefix("http://").split(":")
        while time.monotonic() < self._end:
            try:
                with socket.create_connection((host, int(port)), timeout=seconds) as connection:
                    for byte in request:
                        connection.sendall(bytes([byte]))
                        time.sleep(seconds)
                    while time.monotonic() < self._end and not closed(connection):
                        pass
            except OSError:
                time.sleep(1)

    def work_at_length(self, length: int) -> None:
        """Sends a row with a text of so many characters, again and again."""
        row = {
            name: "good " * (length // 5) if isinstance(value, str) else value for name, value in self._rows[0].items()
        }
        body = json.dumps({"rows": [row]}).encode()
        while time.monotonic() < self._end:
            connection = http.client.HTTPConnection(self._address.removeprefix("http://"), timeout=120)
            try:
                connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
                self._count(f"{connection.getresponse().status} long text")
            except OSError:
                self._count("closed: long text")  # while it was sent
            connection.close()

    def _once(self, connection: http.client.HTTPConnection, source: random.Random) -> None:
        malformed = source.random() < 0.1
        places = [source.randrange(len(self._rows)) for _ in range(source.choice((1, 1, 1, 4, 16)))]
        body = source.choice(MALFORMED) if malformed else {"rows": [self._rows[place] for place in places]}
        began = time.monotonic()
        try:
            status, content = ask(connection, json.dumps(body))
        except (http.client.HTTPException, OSError, ValueError) as error:
            connection.close()  # the next request opens it again
            self._count(f"lost: {type(error).__name__}")
            return
        seconds = time.monotonic() - began
        if malformed:
            right = status == 422 and bool(content.get("error"))
        else:
            wanted = [self._expected[place] for place in places]
            right = status == 429 or (status == 200 and same(content.get("predictions"), wanted))
        with self._lock:
            self.statuses[f"{status}{' malformed' if malformed else ''}"] += 1
            self.wrong += not right
            if status == 200:
                self.seconds.append(seconds)
                self.num_rows += len(places)

    def _count(self, what: str) -> None:
        with self._lock:
            self.statuses[what] += 1


def ask(connection: http.client.HTTPConnection, body: str) -> tuple[int, Any]:
    """Sends JSON to `/predict`, and returns the status and the answer."""
    connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
    found = connection.getresponse()
    return found.status, json.loads(found.read())


def closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection; waits for that up to the socket's timeout."""
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False


def same(found: Any, expected: Any) -> bool:
    """Whether two answers are equal, with numbers up to `TOLERANCE`."""
    if isinstance(expected, dict):
        fits = isinstance(found, dict) and found.keys() == expected.keys()
        return fits and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float) and isinstance(found, int | float):
        return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return found == expected


def answers(run: Path, file: Path, folder: Path) -> list[dict[str, Any]]:
    """Returns what `toolkit predict` adds to each row."""
    from toolkit.deploy.trained import read_settings

    output = folder / "answers.jsonl"
    command = [sys.executable, "-m", "toolkit", "predict", str(run), "--input", str(file), "--output", str(output)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    names = read_settings(run, None)[1].answer_columns
    written = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    return [{name: row[name] for name in names} for row in written]


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Runs a server, whose output goes to a file, and yields it with its address; kills it at the end."""
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        yield server, address_of(log, server)
    finally:
        server.kill()


def address_of(log: Path, server: subprocess.Popen[bytes]) -> str:
    """Waits until the server listens, and returns its address.

    Raises:
        SystemExit: if it ends before, with its output.
    """
    while server.poll() is None:
        text = log.read_text(encoding="utf-8")
        if "ctrl" in text.lower() and (found := ADDRESS.search(text)):
            return found[0]
        time.sleep(0.2)
    raise SystemExit(log.read_text(encoding="utf-8"))


def watched(process: psutil.Process, end: float) -> list[dict[str, float]]:
    """Samples memory, open files and threads of a process until the end."""
    began, samples = time.monotonic(), []
    while time.monotonic() < end:
        samples.append(
            {
                "seconds": round(time.monotonic() - began, 1),
                "mib": round(process.memory_info().rss / MIB, 1),
                "open_files": process.num_fds(),
                "threads": process.num_threads(),
            }
        )
        time.sleep(min(SAMPLE_SECONDS, max(0.0, end - time.monotonic())))
    return samples


def soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Serves the run, sends requests, stops the server, and returns the figures."""
    rows = [json.loads(line) for line in options.rows.read_text(encoding="utf-8").splitlines()]
    expected, log = answers(options.run, options.rows, folder), folder / "server.log"
    command = [sys.executable, "-m", "toolkit", "serve", str(options.run), "--port", "0"]
    limited = ["prlimit", f"--nofile={options.descriptors}", *command] if options.descriptors else command
    with running(limited, log) as (server, address):
        end = time.monotonic() + options.seconds
        clients = Clients(address, rows, expected, end, options.pause)
        threads = [threading.Thread(target=clients.work, args=(seed,)) for seed in range(options.clients)]
        threads += [threading.Thread(target=clients.work_idly, args=(b"", 1)) for _ in range(options.idle)]
        head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-Header: something\r\n" * 50
        threads += [threading.Thread(target=clients.work_idly, args=(head, 1)) for _ in range(options.slow)]
        threads += [threading.Thread(target=clients.work_at_length, args=(options.large,))] if options.large else []
        for thread in threads:
            thread.start()
        samples = watched(psutil.Process(server.pid), end)
        for thread in threads:
            thread.join()
        server.send_signal(signal.SIGTERM)
        exit_code = server.wait(120)
    return {**figures(clients, samples), "exit_code": exit_code, "log": log.read_text(encoding="utf-8").splitlines()}


def figures(clients: Clients, samples: list[dict[str, float]]) -> dict[str, Any]:
    """Returns what the clients and the samples say."""
    later = samples[len(samples) // 4 :]  # what a server needs once is there by then
    slope = 0.0
    if len(later) > 1:
        slope = statistics.linear_regression(
            *zip(*((each["seconds"], each["mib"]) for each in later), strict=True)
        ).slope
    ranks = statistics.quantiles(clients.seconds, n=100) if len(clients.seconds) > 1 else [math.nan] * 99
    return {
        "requests": sum(clients.statuses.values()),
        "statuses": dict(sorted(clients.statuses.items())),
        "lost": sum(count for status, count in clients.statuses.items() if status.startswith("lost")),
        "wrong": clients.wrong,
        "rows": clients.num_rows,
        "latency_seconds": {f"p{rank}": round(ranks[rank - 1], 4) for rank in (50, 95, 99)},
        "mib_per_hour_after_a_quarter": round(3600 * slope, 2),
        "open_files": [min(each["open_files"] for each in later), max(each["open_files"] for each in later)],
        "samples": samples,
    }


def main() -> None:
    """Soaks a server, prints the figures, and writes them with the machine and the versions."""
    from pairs import cpu

    from toolkit.system.environment import checkout, versions

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a finished run")
    parser.add_argument("rows", type=Path, help="rows, as .jsonl")
    parser.add_argument("--seconds", type=float, default=600, help="how long (default: 600)")
    parser.add_argument("--clients", type=int, default=50, help="parallel clients (default: 50)")
    parser.add_argument("--pause", type=float, default=0, help="seconds between a client's requests (default: 0)")
    parser.add_argument("--idle", type=int, default=0, help="clients that connect and send nothing (default: 0)")
    parser.add_argument("--slow", type=int, default=0, help="clients that send a byte a second (default: 0)")
    parser.add_argument("--large", type=int, default=0, help="characters of one client's texts (default: none)")
    parser.add_argument("--descriptors", type=int, default=0, help="the server's `ulimit -n` (default: as here)")
    parser.add_argument("--name", default="soak", help="name of the result's file (default: soak)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        found = soak(options, Path(folder))
    state = checkout(ROOT)
    asked = ("seconds", "clients", "pause", "idle", "slow", "large", "descriptors")
    page = {**{name: getattr(options, name) for name in asked}, **found, **cpu(), "versions": versions()}
    page |= {"commit": state.commit if state else None, "changed_files": state.changed_files if state else None}
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{options.name}.json").write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in page.items() if name != "samples"}, indent=1))


if __name__ == "__main__":
    main()
