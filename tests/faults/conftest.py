"""Fixtures of the fault tests; their sample, its seed and the record of counts come from the environment.

FAULT_SHARE=0.1 FAULT_SEED=7 FAULT_RECORD=counts.json pytest tests/faults -m faults
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import RECORD, SEED, SHARE, Faults, from_environment
from file_faults import built
from forked import ForkServer

from toolkit.base.files import write_json

COUNTS = Counter[str]()
MEASURED: dict[str, dict[str, float]] = {}
PASSED: dict[str, float] = {}
BEGAN = time.monotonic()


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault(SEED, str(random.SystemRandom().randrange(10**6)))  # workers inherit it


def pytest_report_header() -> str:
    return f"faults: {SHARE}={os.environ.get(SHARE, '0.1')}, repeat with {SEED}={os.environ[SEED]}"


@pytest.fixture(scope="session")
def faults() -> Iterator[Faults]:
    found = from_environment()
    yield found
    COUNTS.update(found.counts)
    MEASURED.update(found.measured)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    folder = tmp_path_factory.mktemp("server")
    with ForkServer(folder, built(folder)) as started:
        yield started


@pytest.fixture(scope="session")
def injecting(server: ForkServer) -> ForkServer:
    """Returns the server for tests that need the C library."""
    if server.library is None:
        pytest.skip("no C compiler: faults in file operations cannot be injected")
    return server


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        PASSED[report.nodeid] = round(report.duration, 1)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collects the counts of a worker of pytest-xdist."""
    counts, measured = getattr(node, "workeroutput", {}).get("faults", ({}, {}))
    COUNTS.update(counts)
    MEASURED.update(measured)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["faults"] = dict(COUNTS), MEASURED
    elif RECORD in os.environ:
        record = {
            "share": float(os.environ.get(SHARE, "0.1")),
            "seed": os.environ[SEED],
            "seconds": round(time.monotonic() - BEGAN),
            "cores": len(os.sched_getaffinity(0)),
            "passed": exitstatus == 0,
            "counts": dict(COUNTS),
            "measured": MEASURED,
            "tests": dict(sorted(PASSED.items())),
        }
        write_json(Path(os.environ[RECORD]), record)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if COUNTS:
        terminalreporter.write_line(f"faults: {json.dumps(COUNTS)}")
