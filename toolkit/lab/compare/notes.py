"""What readers of a comparison must know: a busy machine, different rows per step, and where the best model is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import psutil

from toolkit.base.console import format_value, shorten
from toolkit.lab.compare.table import rows_differ

MARGIN = 0.5
"""Load above the number of CPUs that is not called busy: a run uses all CPUs, and the comparison itself needs a bit."""


def load_average() -> float:
    """Returns the number of processes that used or waited for a CPU, on average over the last minute."""
    return psutil.getloadavg()[0]


def is_busy(load: float | None, cpus: int) -> TypeGuard[float]:
    """Returns whether more processes want to run than there are CPUs; false if the load is unknown."""
    return load is not None and load > cpus + MARGIN


def busy_at_start(load: float | None, cpus: int) -> str | None:
    """Returns a warning if the machine is busy before the first run."""
    if not is_busy(load, cpus):
        return None
    return (
        f"The machine is busy: its load average is {load:.1f} with {cpus} CPUs. Step times will be unreliable; stop "
        "other programs first."
    )


def notes(found: Mapping[str, Any]) -> Iterator[str]:
    """Yields sentences to print below the results."""
    if (before := found.get("before_training")) is not None:
        name = found["metric"]["name"].removeprefix("eval_")
        yield f"Before training, {name} is {format_value(before)} (eval.eval_on_start)."
    if rows_differ(found):
        yield (
            "The variants have different numbers of rows per step: compare their items per second, not their steps. "
            "With --keep-window, all have those of the baseline."
        )
    if busy := _busy(found):
        yield busy


def kept(found: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns a sentence on the model that `--keep-best` kept, and the command that uses it; None if there is none."""
    best = found.get("best")
    if best is None:
        return None
    mean = f"mean {best['metric']} {format_value(best['mean'])}"
    sentence = f"The best variant is {shorten(best['variant'], 60)} ({mean}). The run with seed {best['seed']} is kept:"
    return sentence, f"toolkit predict {shlex.quote(best['run'])} --input FILE"


def _busy(found: Mapping[str, Any]) -> str | None:
    cpus = (found["hardware"] or {}).get("cpus")
    if not cpus:
        return None
    when = []
    if is_busy(start := found.get("load_at_start"), cpus):
        when.append(f"before the first run ({start:.1f})")
    loads = {variant["name"]: max(variant["load"]) for variant in found["variants"] if "load" in variant}
    busy = {name: load for name, load in loads.items() if is_busy(load, cpus)}
    if len(busy) == len(loads) > 0:
        when.append(f"during runs of all variants (up to {max(busy.values()):.1f})")
    elif busy:
        when.append(f"during runs of {', '.join(f'{shorten(name, 40)} ({load:.1f})' for name, load in busy.items())}")
    if not when:
        return None
    return (
        f"The machine was busy: its load average was above its {cpus} CPUs {' and '.join(when)}. Step times are "
        "unreliable; measure again with nothing else running, and another --output-dir."
    )
