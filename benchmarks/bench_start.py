"""P6: seconds from a command to its first step, to its help, and to the error about a wrong setting.

    python benchmarks/bench_start.py [--pairs 7]

Each command runs `--pairs` times in turn with the others; a time before those is not counted, so that files are in the
disk cache (`--quick` leaves it out). The first step is the first line of `metrics.jsonl`, for a new small BERT on the
shipped questions. Beside it, the library's example trains a BERT of that size for two steps and ends.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import texts
from pairs import ROOT, compared, parser, read_options, write

TRAIN = ("train", "qa", "--config", "smoke", "tracking.logging_steps=1", "checkpoint.save_steps=null",
         "eval.eval_steps=null")  # fmt: skip
COMMANDS: dict[str, tuple[tuple[str, ...], int | None]] = {
    "first step": (TRAIN, None),
    "help": (("--help",), 0),
    "error": (("train", "qa", "--config", "smoke", "train.learning_rate=fast"), 2),
}
"""Arguments of `toolkit` and the expected exit code; None where the process is ended after its first step."""
EXAMPLE = "two steps of the example"
POLL = 0.002
LONGEST = 300.0


def children_seconds() -> float:
    """Returns the CPU time of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def last_step(metrics: Path) -> int:
    """Returns the step of the last complete line of a `metrics.jsonl`, 0 without one."""
    lines = metrics.read_text(encoding="utf-8").split("\n")[:-1] if metrics.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def seconds_to_step(command: Sequence[str], metrics: Path, options: argparse.Namespace, step: int = 1) -> float:
    """Runs a training until its `metrics.jsonl` has a step, ends it, and returns the seconds.

    Raises:
        SystemExit: if the training ends before.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(options.threads)}
    cpu, begin = children_seconds(), time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while last_step(metrics) < step:
        if process.poll() is not None or time.perf_counter() - begin > LONGEST:
            process.kill()
            raise SystemExit(f"{' '.join(command)}: no step\n{process.communicate()[1][-2000:]}")
        time.sleep(POLL)
    wall = time.perf_counter() - begin
    process.kill()
    process.communicate()
    return children_seconds() - cpu if options.cpu_time else wall


def seconds_to_end(command: Sequence[str], code: int, options: argparse.Namespace) -> float:
    """Runs a command and returns its seconds.

    Raises:
        SystemExit: if it does not end with the expected code.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(options.threads)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    cpu, begin = children_seconds(), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - begin
    if done.returncode != code:
        raise SystemExit(f"{' '.join(command)}: ended with {done.returncode}, not {code}\n{done.stderr[-2000:]}")
    return children_seconds() - cpu if options.cpu_time else wall


def once(name: str, folder: Path, options: argparse.Namespace) -> float:
    """Runs one of the commands and returns its seconds."""
    if name == EXAMPLE:
        given = {"model": folder.parent / "bert", "train_file": folder.parent / "rows.jsonl", "warm_up": 1,
                 "output_dir": f"{folder}-example"}  # fmt: skip
        words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
        return seconds_to_end([sys.executable, "benchmarks/scripts/qa.py", *words], 0, options)
    arguments, code = COMMANDS[name]
    command = [sys.executable, "-m", "toolkit", *arguments]
    if code is not None:
        return seconds_to_end(command, code, options)
    return seconds_to_step([*command, f"output_dir={folder}"], folder / "metrics.jsonl", options)


def median_and_range(seconds: Sequence[float]) -> dict[str, Any]:
    """Returns the figures of several times."""
    return {"seconds": statistics.median(seconds), "seconds_min": min(seconds), "seconds_max": max(seconds),
            "runs": len(seconds)}  # fmt: skip


def main() -> None:
    """Measures the commands and writes the result."""
    options = read_options(parser(__doc__, pairs=7))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled, too
    found: dict[str, list[float]] = {name: [] for name in ("first step", EXAMPLE, "help", "error")}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        words = texts.one_token_words(texts.new_bert(Path(folder) / "bert"))
        texts.write_rows(texts.qa_rows(words, 2, 16, "random"), Path(folder) / "rows.jsonl")
        for number in range(options.quick, options.pairs + 1):
            for name, times in found.items():
                times.append(once(name, Path(folder) / str(number), options))
                print(f"round {number} of {options.pairs}: {name}: {times[-1]:.3f} s", file=sys.stderr, flush=True)
    counted = {name: times[-options.pairs :] for name, times in found.items()}
    runs = {name: [{"seconds": seconds} for seconds in times] for name, times in counted.items()}
    ratio = compared(runs, EXAMPLE, "first step")
    cases = {"first step, against the example": ratio}
    cases |= {name: median_and_range(times) for name, times in counted.items()}
    title = "from a command to its first step; `--help`; the error about a wrong setting"
    write("p6_start", "P6", title, {**ratio, "case": next(iter(cases)), "cases": cases}, options)


if __name__ == "__main__":
    main()
