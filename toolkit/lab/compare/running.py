"""Runs the variants in turn (A B C, A B C), each run in its own process; finished runs are not repeated."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence

from toolkit.base.files import write_json
from toolkit.lab.compare.best import keep_best
from toolkit.lab.compare.notes import load_average
from toolkit.lab.compare.repeats import MEASURED, Comparison, Repeat, folder_of, job_of, trained_run
from toolkit.lab.jobs import Trial, run_trials


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
    folder, run = folder_of(comparison, repeat), trained_run(comparison, repeat)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = job_of(comparison, repeat)
    job |= {"overrides": [*job["overrides"], f"output_dir={run.path}"], "keep_model": comparison.keep_best}
    trial, launch = Trial("compare", job, folder / "outcome.json"), comparison.launch
    (outcome,) = run_trials([trial], folder.with_name(f"{folder.name}.log"), launch.processes, launch.file)
    if outcome.error is not None:
        repeat.state, repeat.reason = "failed", outcome.error
        return
    trial.outcome.unlink()
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    write_json(folder / MEASURED, outcome.result | {"load": load_average()})
    repeat.measured = json.loads((folder / MEASURED).read_text(encoding="utf-8"))
    repeat.state = "done"
