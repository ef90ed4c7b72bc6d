"""Measures a few real steps in this process: `python -m toolkit.lab.plan.worker JOB.json`.

The job names recipe, YAML, overrides and the file to write, which gets what was measured and, from the same rows,
what would have been predicted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from toolkit.api.task import Batch
from toolkit.base.exits import leave_group
from toolkit.footprint.simulate import Subject, simulate
from toolkit.recipe import load_settings, load_task_type


class _Watch:
    """Looks at each step: when it ended, and the micro-batch with the most in it. See `toolkit.api.run.Observer`."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []
        self.largest: Batch | None = None
        self._most = -1

    def gradient(self, step: int, model: nn.Module) -> None:
        """Nothing to see."""

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Notes the size and the time of a step, and the largest micro-batch."""
        (batch,) = batches  # nothing is accumulated here
        size = sum(value.numel() for value in batch["inputs"].values() if hasattr(value, "numel"))
        self.steps.append((size, record["seconds"]))
        if size > self._most:
            self._most, self.largest = size, batch

    @property
    def seconds(self) -> float | None:
        """Time of a step of the largest micro-batch; None of one step, which starts everything.

        Steps of smaller ones count as much longer as they are smaller; the shortest time is taken, since others may use
        the machine.
        """
        return min((seconds * self._most / size for size, seconds in self.steps[1:]), default=None)


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains as the job says; returns `memory`, `footprint`, `seconds` of a step (or None) and the device's kind."""
    from toolkit.engine import fit
    from toolkit.run import prepared_run

    task_type, watch = load_task_type(job["recipe"]), _Watch()
    cfg = load_settings(task_type, job["config"], job["overrides"]).config
    with prepared_run(cfg, task_type(cfg), Path(job["recipe"]), watch) as run:
        result = fit(run)
        assert watch.largest is not None  # there was a step
        subject = Subject(cfg, run.task, run.model.config, watch.largest, run.accelerator.device)
        return {
            "memory": asdict(result.memory),
            "footprint": asdict(simulate(subject)),
            "seconds": watch.seconds,
            "device": run.accelerator.device.type,
        }


def main(file: str) -> None:
    """Measures a job's run and writes what was found."""
    job = json.loads(Path(file).read_text(encoding="utf-8"))
    Path(job["result"]).write_text(json.dumps(measure(job)), encoding="utf-8")
    leave_group()


if __name__ == "__main__":
    main(sys.argv[1])
