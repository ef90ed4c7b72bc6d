"""Samples of faults and their counts, and what must hold after each of them."""

from __future__ import annotations

import inspect
import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from forked import DEADLY, Ended

Case = TypeVar("Case")
SHARE, SEED, RECORD = "FAULT_SHARE", "FAULT_SEED", "FAULT_RECORD"
"""Environment variables: the share of all cases to try, the seed of the sample, the file for the counts."""
KINDS = ("kills", "operations", "flips", "signals", "stalls", "races", "bad inputs", "hangs", "tracebacks", "wrong")


class Faults:
    """The cases of this session.

    Args:
        share: of the cases; 1 tries all of them.
        seed: selects the sample.
    """

    def __init__(self, share: float, seed: str) -> None:
        self.share, self.seed = share, seed
        self.counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.measured: dict[str, dict[str, float]] = {}

    def random(self, *key: object) -> random.Random:
        """Returns a source of random numbers that depends on the seed, the calling file and `key`."""
        caller = next(frame.filename for frame in inspect.stack() if frame.filename != __file__)
        return random.Random("-".join(map(str, (self.seed, Path(caller).name, *key))))

    def sample(self, cases: Iterable[Case], *key: object, least: int = 1) -> list[Case]:
        """Returns this session's share of the cases, at least `least`, in their order.

        Args:
            cases: all cases.
            *key: makes samples of several lists independent.
            least: the smallest number of cases.
        """
        every = list(cases)
        size = min(len(every), max(least, round(self.share * len(every))))
        chosen = sorted(self.random("sample", *key).sample(range(len(every)), size))
        return [every[index] for index in chosen]

    def count(self, kind: str, number: int = 1) -> None:
        """Counts cases of a kind, one of `KINDS`."""
        assert kind in KINDS
        self.counts[kind] += number

    def measure(self, name: str, figures: dict[str, float]) -> None:
        """Records figures under a name."""
        self.measured[name] = figures

    def problems(self, ended: Ended, where: object, codes: Sequence[int] | None = None) -> list[str]:
        """Returns what is wrong with how a run ended, and counts it.

        Args:
            ended: the run.
            where: names the case.
            codes: exit codes that are right; None allows any that the toolkit uses, and deadly signals.
        """
        found = []
        if ended.hung:
            self.count("hangs")
            found.append(f"{where}: hung:\n{ended.output}")
        elif "Traceback" in ended.output:
            self.count("tracebacks")
            found.append(f"{where}: traceback:\n{ended.output}")
        elif any(code not in (codes or (0, 1, 2, *(-each for each in DEADLY))) for code in ended.codes):
            self.count("wrong")
            found.append(f"{where}: ended with {ended.codes}, not {codes}:\n{ended.output}")
        return found

    def wrong(self, found: list[str]) -> list[str]:
        """Counts and returns problems."""
        self.count("wrong", len(found))
        return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries of a line of metrics that no session changes: no times, memory, traffic and energy."""
    own = ("second", "memory", "exchange", "energy", "co2", "cost")
    return {name: value for name, value in line.items() if not any(word in name for word in own)}


def _metrics(run: Path) -> list[dict[str, Any]]:
    """Returns the lines of metrics; those with figures of a session only are left out, since a short one has none."""
    lines = [without_times(line) for line in read_lines(run / "metrics.jsonl")]
    return [line for line in lines if not line.keys() <= {"step", "epoch"}]


def differences(reference: Path, found: Path) -> list[str]:
    """Returns in what a run differs from one that was never interrupted: files, bytes, metrics."""
    wrong = []
    names = [sorted(path.relative_to(run).as_posix() for path in run.rglob("*")) for run in (reference, found)]
    files = [[name for name in each if name != "uncommitted.diff"] for each in names]  # of the developer's checkout
    if files[0] != files[1]:
        wrong.append(f"files differ: {sorted(set(files[0]) ^ set(files[1]))}")
    same = [name for name in files[0] if name.endswith((".safetensors", "predictions.jsonl")) or "processor/" in name]
    for name in same:
        one, other = reference / name, found / name
        if one.is_file() and other.is_file() and one.read_bytes() != other.read_bytes():
            wrong.append(f"{name} differs")
    lines = [_metrics(run) for run in (reference, found)]
    if lines[0] != lines[1]:
        wrong.append(f"metrics.jsonl differs: {lines}")
    results = [json.loads((run / "run.json").read_text())["result"] for run in (reference, found)]
    if without_times(results[0]) != without_times(results[1]):
        wrong.append(f"results differ: {results}")
    return wrong


def row_problems(log: Path, rows: int, steps_per_epoch: int) -> list[str]:
    """Returns in which epochs a row was not used exactly once, and which steps were repeated with other rows.

    Args:
        log: what `fault_hooks.log_rows` has written in all sessions of a run.
        rows: number of training rows.
        steps_per_epoch: number of optimizer steps of an epoch; an incomplete last epoch may leave out rows.
    """
    wrong, used = [], dict[tuple[int, int], list[int]]()
    for line in read_lines(log):
        place = line["step"], line["rank"]
        if used.setdefault(place, line["rows"]) != line["rows"]:
            wrong.append(f"step {place} was repeated with other rows")
    last = max(step for step, _ in used)
    for epoch in range(-(-last // steps_per_epoch)):
        steps = range(epoch * steps_per_epoch + 1, (epoch + 1) * steps_per_epoch + 1)
        seen = Counter(row for (step, _), numbers in used.items() if step in steps for row in numbers)
        if any(count != 1 for count in seen.values()) or (last >= steps[-1] and len(seen) != rows):
            wrong.append(f"epoch {epoch}: rows {seen}")
    return wrong


def from_environment() -> Faults:
    """Returns the cases that the environment asks for; by default a tenth."""
    return Faults(float(os.environ.get(SHARE, "0.1")), os.environ[SEED])
