"""Runs the variants in turn (A B C, A B C), each run in its own process; finished runs are not repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from toolkit.lab.compare.best import keep_best
from toolkit.lab.compare.notes import load_average
from toolkit.lab.compare.runs import Comparison, Repeat, folder_of, job_of
from toolkit.lab.finished import measured_in, note_failure, run_job


def run_repeats(comparison: Comparison, repeats: Sequence[Repeat], changed: Callable[[], None]) -> None:
    """Runs everything that is waiting.

    Args:
        comparison: the comparison.
        repeats: all runs; their states are updated.
        changed: called after each change of a state.
    """
    failed: dict[str, str] = {}
    succeeded = {repeat.variant.name for repeat in repeats if repeat.state == "kept"}
    for repeat in repeats:
        name = repeat.variant.name
        if repeat.state != "waiting":
            continue
        if name in failed and name not in succeeded:  # it would most likely fail with other seeds too
            repeat.state, repeat.reason = "failed", failed[name]
            note_failure(folder_of(comparison, repeat), failed[name])
        else:
            repeat.state = "running"
            changed()
            began = time.monotonic()
            run_once(comparison, repeat)
            repeat.seconds = time.monotonic() - began
            # At most one model of each variant is on disk.
            keep_best(comparison, [each for each in repeats if each.variant is repeat.variant])
            if repeat.reason:
                failed[name] = repeat.reason
            else:
                succeeded.add(name)
        changed()


def run_once(comparison: Comparison, repeat: Repeat) -> None:
    """Trains and measures one run; its state says how it ended."""
    folder, job = folder_of(comparison, repeat), job_of(comparison, repeat)
    further = {"keep_model": comparison.keep_best}
    error = run_job("compare", job, folder, comparison.launch, further, lambda: {"load": load_average()})
    if error is not None:
        repeat.state, repeat.reason = "failed", error
        return
    repeat.measured, repeat.state = measured_in(folder), "done"
