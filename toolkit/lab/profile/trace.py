"""Reads a trace in Chrome's format: the operations that take most time, memory by phase, and exchanges in flight."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OPERATIONS = ("cpu_op",)
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
MICROSECOND = 1e-6
EXCHANGES = ("gloo:", "nccl:", "ncclDevKernel")
"""How the names of collectives begin."""
UNFUSED = {
    f"aten::{name}"
    for name in ("_softmax", "_safe_softmax", "softmax", "_softmax_backward_data", "bmm", "baddbmm")
}  # fmt: skip
"""Operations of attention that is computed step by step: its scores, their softmax, and the products with values."""

Event = Mapping[str, Any]


@dataclass
class Operation:
    """All calls of an operation."""

    calls: int = 0  # their number
    seconds: float = 0.0  # their time, without that of operations inside them


@dataclass
class Reading:
    """What a trace says; all sums are those of all traced steps."""

    operations: dict[str, Operation] = field(default_factory=dict)  # operations of the CPU by name
    kernels: dict[str, Operation] = field(default_factory=dict)  # the same of the GPU
    leaves: int = 0  # operations that call no other one
    # by phase, the largest number of bytes that tensors held above their bytes at the beginning of the trace (`peak`),
    # and by how many bytes they grew in it (`kept`)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    exchange_seconds: float = 0.0  # seconds in which any collective was under way
    busy_seconds: float = 0.0  # seconds in which the GPU computed


def read_trace(file: Path) -> Reading:
    """Reads a trace file."""
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return read_events([event for event in events if isinstance(event, dict) and "ts" in event])


def read_events(events: Sequence[Event]) -> Reading:
    """Reads the events of a trace."""
    kernels = [event for event in events if event.get("cat") in KERNELS]
    found = Reading(memory=_memory(events))
    found.operations, found.leaves = _operations([event for event in events if event.get("cat") in OPERATIONS])
    for event in kernels:
        kernel = found.kernels.setdefault(event["name"], Operation())
        kernel.calls += 1
        kernel.seconds += event["dur"] * MICROSECOND
    found.busy_seconds = _union(kernels)
    timed = (event for event in events if "dur" in event)
    found.exchange_seconds = _union(event for event in timed if str(event.get("name", "")).startswith(EXCHANGES))
    return found


def _operations(events: Iterable[Event]) -> tuple[dict[str, Operation], int]:
    """Returns calls and own times by name, and the number of operations without others inside."""
    found: dict[str, Operation] = defaultdict(Operation)
    leaves = 0
    threads: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        threads[event.get("pid"), event.get("tid")].append(event)
    for thread in threads.values():
        open_calls: list[tuple[float, str]] = []
        ordered = sorted(thread, key=lambda event: (event["ts"], -event["dur"]))
        ends = [event["ts"] + event["dur"] for event in ordered]
        for number, event in enumerate(ordered):
            while open_calls and open_calls[-1][0] <= event["ts"]:
                open_calls.pop()
            name, seconds = event["name"], event["dur"] * MICROSECOND
            if open_calls:
                found[open_calls[-1][1]].seconds -= seconds
            found[name].calls += 1
            found[name].seconds += seconds
            leaves += number + 1 == len(ordered) or ordered[number + 1]["ts"] >= ends[number]
            open_calls.append((ends[number], name))
    return dict(found), leaves


def _memory(events: Sequence[Event]) -> dict[str, dict[str, int]]:
    """Returns the peak and the growth of each phase, in bytes above those at the beginning of the trace."""
    ranges = [event for event in events if str(event.get("name", "")).startswith(RANGE) and event.get("dur")]
    on_cpu = [event for event in ranges if event.get("cat") == "user_annotation"]
    starts = sorted({(event["ts"], event["name"].removeprefix(RANGE)) for event in on_cpu})
    ends = [*(start for start, _ in starts[1:]), float("inf")]
    changes = deque(_allocations(events))
    found: dict[str, dict[str, int]] = {}
    total = 0
    for (_, name), end in zip(starts, ends, strict=False):
        while changes and changes[0][0] < end:
            change = changes.popleft()[1]
            total += change
            phase = found.setdefault(name, {"peak": total, "kept": 0})
            phase["peak"] = max(phase["peak"], total)
            phase["kept"] += change
    return found


def _allocations(events: Iterable[Event]) -> list[tuple[float, int]]:
    """Returns the time and size of each allocation of tensors, in order; those of a GPU, if there are any."""
    found = [event for event in events if event.get("name") == "[memory]"]
    on_gpu = [event for event in found if event["args"].get("Device Type") != 0]
    return sorted((event["ts"], int(event["args"]["Bytes"])) for event in on_gpu or found)


def _union(events: Iterable[Event]) -> float:
    """Returns the seconds in which any of the events was under way."""
    seconds, end = 0.0, float("-inf")
    for begin, length in sorted((event["ts"], event["dur"]) for event in events):
        seconds += max(0.0, begin + length - max(begin, end))
        end = max(end, begin + length)
    return seconds * MICROSECOND


RANGE = "phase: "
"""How the names of the phases begin in the trace."""
