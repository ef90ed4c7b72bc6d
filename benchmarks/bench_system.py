"""What samples of the machine cost: training with one every two seconds, the default, against training without.

    python benchmarks/bench_system.py [--pairs 9] [--cpu-time]

The seconds are the mean over steps, since most steps meet no sample. CPU time is that of all threads of the process,
the one that takes samples among them. The target is a ratio of at least 0.99: at most 1 % of a step.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_guards import CASES, cases_of, launched, settings_of, timed
from pairs import Side, calling, parser, read_options, write

INTERVALS = {"no samples": "null", "samples": "2.0"}


def train(overrides: Sequence[str], folder: str) -> dict[str, Any]:
    """Trains in this process, and returns the mean seconds of a step."""
    seconds, losses = timed(overrides, folder)
    return {"seconds": statistics.fmean(seconds), "losses": losses}


def sides(name: str, options: argparse.Namespace, folder: Path) -> list[Side]:
    """Returns the sides of a case: without and with samples."""
    settings = settings_of(name, options, folder)
    found = []
    for kind, interval in INTERVALS.items():
        own = [*settings, f"tracking.system_interval={interval}"]
        found.append(launched(calling(f"{kind}, {name}", train, overrides=own, folder=str(folder)), CASES[name][-1]))
    return found


def main() -> None:
    """Runs the pairs and writes the result."""
    options = read_options(parser(__doc__, pairs=9))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cases = cases_of(lambda name: sides(name, options, Path(folder)), options)
    title = "a step without samples of the machine, against the same step with one every two seconds"
    write("system", "system", title, {**cases["large"], "case": "large", "cases": cases}, options)


if __name__ == "__main__":
    main()
