"""Trains and evaluates with one fold as validation rows; called in a separate process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.api.run import overall_scores
from toolkit.base.files import read_json
from toolkit.base.run_folder import RunFolder
from toolkit.distributed.collectives import on_main
from toolkit.lab.jobs.training import trained
from toolkit.report.scores import prefix_of

if TYPE_CHECKING:
    from toolkit.api.run import FitResult, Run


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains, writes the run's results, and returns the measurements.

    Args:
        job: as for `toolkit.lab.jobs.training.trained`.
    """
    with trained({**job, "keep_model": True}) as (run, result):
        return on_main(run.accelerator, _measurement, run, result)


def _measurement(run: Run, result: FitResult) -> dict[str, Any]:
    names = {score.name: score.greater_is_better for score in overall_scores(run.task)}
    scores = {
        f"{prefix_of(part)}{name}": greater
        for part, evaluation in result.evaluations.items()
        for name, greater in names.items()
        if name in evaluation.metrics
    }
    return {
        "scores": {
            name: {"value": result.figures[name], "greater_is_better": greater} for name, greater in scores.items()
        },
        "figures": dict(result.figures),
        "rows": read_json(RunFolder(run.output_dir).facts)["num_rows"],
    }
