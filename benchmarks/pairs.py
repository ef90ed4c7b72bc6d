"""Interleaved comparisons: each side runs in a process of its own, A B A B ..., and ratios are taken per pair.

A slow spell of the machine then meets all sides of a round, and cancels in the ratio. A side is a command, or a
function that this file calls (`python benchmarks/pairs.py module:function '{"argument": 1}'`). Either prints one line,
`RESULT` and a JSON object, whose `seconds` are compared. Sides time their steps with `Clock` themselves, so that
neither start-up nor warm-up is counted. A ratio is the baseline's seconds over the toolkit's: above 1 is faster.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CPU_TIME = "BENCH_CPU_TIME"
"""Environment variable, set where sides count CPU time instead of wall-clock time."""
MARK = "RESULT "
LONGEST = 3600
"""Limit of one side, in seconds."""

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""What each side returned in each round."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Args:
        name: its name in the results.
        command: the command, which prints the result line.
        environment: further environment variables.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def calling(name: str, function: Callable[..., Mapping[str, Any]], **arguments: Any) -> Side:
    """Returns a side that calls a module's function, with JSON arguments, in a process of its own."""
    module = Path(sys.modules[function.__module__].__file__ or "").stem  # a benchmark that runs is `__main__`
    place = f"{module}:{function.__qualname__}"
    return Side(name, [sys.executable, str(Path(__file__).resolve()), place, json.dumps(arguments)])


class Clock:
    """Times steps in the process of a side, in wall-clock or CPU time (of all threads of the process).

    On a GPU, a step ends when its work is done.
    """

    def __init__(self) -> None:
        self.now = time.process_time if os.environ.get(CPU_TIME) else time.perf_counter
        self._at: list[float] = []

    def tick(self) -> None:
        """Notes the time; call it once before the first step or after every step."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._at.append(self.now())

    def steps(self, warm_up: int) -> list[float]:
        """Returns the seconds between ticks, without the first `warm_up` ticks."""
        kept = self._at[warm_up:]
        return [end - begin for begin, end in itertools.pairwise(kept)]


def report(result: Mapping[str, Any]) -> None:
    """Prints the result line of a side."""
    print(MARK + json.dumps(result), flush=True)


def parser(description: str | None, pairs: int = 5, wall_only: str | None = None) -> argparse.ArgumentParser:
    """Returns a parser with the options that all benchmarks have.

    Args:
        description: what the benchmark measures.
        pairs: default number of rounds.
        wall_only: why CPU time would not say what is measured, for a benchmark that refuses `--cpu-time`.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--pairs", type=int, default=pairs, help=f"rounds to run (default {pairs})")
    made.add_argument("--threads", type=int, default=2, help="threads of each side (default 2)")
    made.add_argument("--cpu-time", action="store_true", help="compare CPU time with one thread: for a busy machine")
    made.add_argument("--quick", action="store_true", help="tiny sizes, one pair, the first cases; writes no file")
    made.add_argument("--results", type=Path, help="folder of the JSON files (default benchmarks/results)")
    made.set_defaults(wall_only=wall_only)
    return made


def read_options(made: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line; `--quick` and `--cpu-time` imply their pairs and threads."""
    options = made.parse_args(arguments)
    if options.cpu_time and options.wall_only:
        made.error(f"--cpu-time: {options.wall_only}; measure on an idle machine without it")
    if options.quick:
        options.pairs = 1
    if options.cpu_time:
        options.threads = 1
    if options.results is None and not options.quick:
        options.results = RESULTS
    return options


def run(side: Side, options: argparse.Namespace) -> dict[str, Any]:
    """Runs a side and returns its result.

    Raises:
        SystemExit: if it fails or prints no result, with the end of its output.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), str(options.threads))
    environment = {**os.environ, **threads, "HF_HUB_OFFLINE": "1", **side.environment}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    if options.cpu_time:
        environment[CPU_TIME] = "1"
    if options.quick and side.command[1] != "-m":
        done = _forked(side.command, environment)
    else:
        done = subprocess.run(
            side.command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        output = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        raise SystemExit(f"{side.name}: ended with {done.returncode} and {len(lines)} results\n{output}")
    return json.loads(lines[-1].removeprefix(MARK))


def _forked(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a Python script in a fork of this process, which has imported the libraries: a quick form measures nothing.

    Of several threads, a fork has one only, so that its side computes with one.
    """
    import torch
    import transformers

    import toolkit.run  # noqa: F401

    assert transformers.Trainer  # which is imported when it is asked for
    sys.stdout.flush()  # what is not written yet, the fork would write too
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        if (child := os.fork()) == 0:
            code = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                os.chdir(ROOT)
                os.environ.update(environment)
                torch.set_num_threads(1)
                sys.argv = list(command[1:])
                runpy.run_path(command[1], run_name="__main__")
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def interleave(sides: Sequence[Side], options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Runs the sides in turn, `options.pairs` times, and returns the results of each."""
    runs: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    for number in range(1, options.pairs + 1):
        for side in sides:
            runs[side.name].append(run(side, options))
            seconds = runs[side.name][-1]["seconds"]
            print(f"round {number} of {options.pairs}: {side.name}: {seconds:.4g} s", file=sys.stderr, flush=True)
    return runs


def compared(runs: Runs, baseline: str, ours: str) -> dict[str, Any]:
    """Returns the ratios of two sides: the baseline's seconds over ours, one per pair, and their median and range."""
    seconds = {name: [run["seconds"] for run in runs[name]] for name in (baseline, ours)}
    ratios = [other / own for other, own in zip(seconds[baseline], seconds[ours], strict=True)]
    return {
        "ratio": f"{baseline} / {ours}",
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "pairs": len(ratios),
        "seconds_per_run": seconds,
    }


def cpu() -> dict[str, Any]:
    """Returns the name of the CPU, its number of cores, and the instructions that bfloat16 is fast with."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    flags = found.get("flags", "").split()
    name = found.get("model name") or platform.processor() or platform.machine()
    return {"cpu": name, "cores": os.cpu_count(), "bf16": [f for f in ("avx512_bf16", "amx_bf16") if f in flags]}


def write(name: str, benchmark: str, title: str, figures: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Prints the result of a benchmark and writes it, unless this is a quick run without `--results`.

    Args:
        name: name of the JSON file.
        benchmark: its key, `P1`.
        title: what is compared with what.
        figures: `ratio_median`, `ratio_min`, `ratio_max` and `pairs`, or `seconds`, of the main case; other cases
            in `cases`, by name.
        options: the command line.
    """
    from toolkit.system.environment import checkout, versions

    state = checkout(ROOT)
    page = {
        "benchmark": benchmark,
        "title": title,
        **figures,
        "clock": "CPU" if options.cpu_time else "wall",
        "threads": options.threads,
        "quick": options.quick,
        **cpu(),
        "versions": versions(),
        "commit": state.commit if state else None,
        # A benchmark of several cases writes its own file after each of them.
        "changed_files": state.changed_files - (f"benchmarks/results/{name}.json" in state.untracked)
        if state
        else None,
    }
    text = json.dumps(page, indent=2) + "\n"
    print(text)
    if options.results is not None:
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / f"{name}.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Calls the function of a side; of several processes, the first reports."""
    from importlib import import_module

    place, arguments = sys.argv[1:]
    module, _, function = place.partition(":")
    result = getattr(import_module(module), function)(**json.loads(arguments))
    if os.environ.get("RANK", "0") == "0":
        report(result)


if __name__ == "__main__":
    main()
