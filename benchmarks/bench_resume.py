"""P9: seconds to resume at 90 % of an epoch of 100,000 steps, from the command to its first step.

    python benchmarks/bench_resume.py [--pairs 5] [--rows 100000]

A tiny model classifies 100,000 short texts, one per step, so that finding the place in the data is what could take
long. To spare 90,000 steps, the run that writes the checkpoint starts to count at the step before it; the checkpoint
is otherwise that of any run. A start of the same run from the beginning is measured in turn with it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bench_start import median_and_range, seconds_to_step
from pairs import ROOT, calling, parser, read_options, run, write

from toolkit.api.training import Callback

if TYPE_CHECKING:
    pass

PART = 0.9
CONFIG = "recipes/configs/reviews/smoke.yaml"
WORDS = ("good", "bad", "fine", "poor", "nice", "dull", "quick", "slow", "book", "film", "phone", "meal", "very", "not")


class StopAfter(Callback):
    """Ends a run before the update after a step."""

    def __init__(self, last: int) -> None:
        self.last = last

    def before_update(self) -> None:
        """Ends the run once the last step is over.

        Raises:
            ReachedError: then.
        """
        if self.training.state.step >= self.last:
            raise ReachedError


class ReachedError(Exception):
    """The checkpoint is written."""


def write_checkpoint(overrides: Sequence[str], step: int) -> dict[str, Any]:
    """Runs the step before a checkpoint and writes it."""
    from toolkit.engine.training import Session
    from toolkit.lab.jobs.training import trained

    restore = Session.restore

    def restore_late(session: Session) -> None:
        restore(session)
        session.state.step = step - 1

    job = {"recipe": str(ROOT / "recipes" / "reviews.py"), "config": str(ROOT / CONFIG), "overrides": list(overrides)}
    with patch.object(Session, "restore", restore_late):
        try:
            with trained(job, StopAfter(step)):
                pass
        except ReachedError:
            return {"seconds": 0.0}
    raise AssertionError("the run ended before its checkpoint")


def write_rows(number: int, file: Path) -> None:
    """Writes short texts with a class each."""
    source = random.Random(5)
    rows = ({"text": " ".join(source.choices(WORDS, k=6)), "label": index % 2} for index in range(number))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def settings_of(file: Path, rows: int, step: int) -> list[str]:
    """Returns the settings of the run, but for its folder."""
    return [
        f"data.train_file={file}", "data.validation_file=null", "data.validation_split=0",
        "model.from_config.hidden_size=32", "model.from_config.intermediate_size=32", "task.max_length=16",
        "train.global_batch_size=1", "train.num_train_epochs=1",
        "train.lr_scheduler_type=constant", "train.warmup_steps=0", f"train.max_steps={rows}", "eval.eval_steps=null",
        f"checkpoint.save_steps={step}", "tracking.logging_steps=1",
    ]  # fmt: skip


def measure(options: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Measures starts and resumes in turn; the first of each is not counted, and not there in a quick form."""
    step = round(options.rows * PART)
    write_rows(options.rows, folder / "rows.jsonl")
    settings = settings_of(folder / "rows.jsonl", options.rows, step)
    kept = folder / "kept"
    run(calling("checkpoint", write_checkpoint, overrides=[*settings, f"output_dir={kept}"], step=step), options)
    command = [sys.executable, "-m", "toolkit", "train", "reviews", "--config", str(ROOT / CONFIG), *settings]
    found: dict[str, list[float]] = {"start": [], "resume": []}
    for number in range(options.quick, options.pairs + 1):
        for name, times in found.items():
            place, resume, first = folder / f"{name}-{number}", "none", 1
            if name == "resume":
                shutil.copytree(kept, place)
                resume, first = "auto", step + 1
            place.mkdir(exist_ok=True)
            whole = [*command, f"output_dir={place}", f"checkpoint.resume={resume}"]
            times.append(seconds_to_step(whole, place / "metrics.jsonl", options, first))
            print(f"round {number} of {options.pairs}: {name}: {times[-1]:.3f} s", file=sys.stderr, flush=True)
    return {name: times[-options.pairs :] for name, times in found.items()}


def main() -> None:
    """Measures and writes the result."""
    made = parser(__doc__, pairs=5)
    made.add_argument("--rows", type=int, default=100_000, help="rows and steps of the epoch")
    options = read_options(made)
    options.rows = 200 if options.quick else options.rows
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cases = {name: median_and_range(times) for name, times in measure(options, Path(folder)).items()}
    figures = {**cases["resume"], "case": "resume", "cases": cases, "settings": {"steps_per_epoch": options.rows}}
    write(
        "p9_resume", "P9", "from the command to the first step, at 90 % of an epoch of 100,000 steps", figures, options
    )


if __name__ == "__main__":
    main()
