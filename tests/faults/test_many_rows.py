"""A million rows of text, one in a hundred of which cannot be used: prepared and trained within limits."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import psutil
import pytest
from fault_runs import QUICK
from faults import Faults
from forked import ROOT, ForkServer

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

ROWS = 1_000_000
MOST_SECONDS, MOST_BYTES = 600, 4 * 2**30
"""Of a complete run, on two cores."""
WORDS = 400_000
"""Different words in the rows; so many that a vocabulary cannot hold them."""


def write_rows(file: Path, number: int, generator: random.Random) -> int:
    """Writes reviews, some of them bad, and returns the number of those."""
    bad = 0
    with file.open("w", encoding="utf-8") as out:
        out.write("text,label\n")
        for row in range(number):
            words = " ".join(f"w{int(generator.paretovariate(0.5)) % WORDS}" for _ in range(12))
            if row % 100 == 7:
                bad += 1
                out.write(("only one field\n", f"{words},perhaps,more\n", ",positive\n")[row // 100 % 3])
            else:
                out.write(f"{words},{'positive' if row % 2 else 'negative'}\n")
    return bad


def test_a_million_rows_are_prepared_in_time_and_memory(server: ForkServer, faults: Faults, tmp_path):
    number = max(20_000, round(ROWS * faults.share))
    bad = write_rows(tmp_path / "train.csv", number, faults.random())
    (tmp_path / "validation.csv").write_text("text,label\nw1 w2,positive\nw3 w4,negative\n")
    settings = [
        *("model.from_config.hidden_size=16", "model.from_config.intermediate_size=24", "task.max_length=16"),
        *("model.from_config.num_hidden_layers=1", "train.max_steps=1", "checkpoint.save_steps=1"),
        *("data.bad_rows=skip", "data.max_bad_rows=0.02", f"output_dir={tmp_path / 'run'}"),
        *(f"data.{part}_file={tmp_path / part}.csv" for part in ("train", "validation")),
    ]
    config = ROOT / "recipes" / "configs" / "reviews" / "smoke.yaml"
    hooks = [*QUICK, ("use_cache", {"path": str(tmp_path / "cache")})]
    began = time.monotonic()
    started = server.start([ROOT / "recipes" / "reviews.py", "--config", config, *settings], hooks=hooks)
    process, peak = psutil.Process(started.pids[0]), 0
    checkpoint = tmp_path / "run" / "checkpoints" / "step-1"
    while not checkpoint.exists() and not started.poll():
        family = [process, *process.children(recursive=True)]
        peak = max(peak, sum(_bytes(each) for each in family))
        time.sleep(0.2)
    seconds = time.monotonic() - began
    ended = started.wait(3 * MOST_SECONDS)
    faults.count("bad inputs", bad)
    assert faults.problems(ended, "a million rows", [0]) == []
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["bad_rows"]["train"] == bad
    assert facts["num_rows"]["train"] == number - bad
    faults.measure("rows", {"rows": number, "bad": bad, "seconds": round(seconds), "peak_bytes": peak})
    assert peak < MOST_BYTES
    assert seconds < MOST_SECONDS


def _bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
