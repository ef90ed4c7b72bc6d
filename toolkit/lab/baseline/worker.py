"""Scores the answers of a task that need no training; called in a separate process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.api.run import Run, overall_scores
from toolkit.api.task import SupportsBaselines, Task
from toolkit.data.loading import check_rows
from toolkit.distributed.launch import float32_precision
from toolkit.engine.evaluation import evaluate
from toolkit.recipe import load_settings, load_task_type
from toolkit.report.scores import prefix_of, quality_of

MODEL = "the model, not trained"


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Scores the evaluation sets of a run.

    Args:
        job: a mapping with `recipe` and `config` (files), `overrides`, and `model`: whether the run's model is scored.

    Returns:
        `baselines`: a mapping of `name`, `scores` and, where they are known, `intervals`, each by the names of scores
        with prefix; `rows`: number of rows of each evaluation set.
    """
    from toolkit.run import prepared_run

    task_type = load_task_type(job["recipe"])
    cfg = load_settings(task_type, job["config"], job["overrides"]).config
    task = task_type(cfg)
    sets = dict(check_rows(cfg, task).splits)
    train = sets.pop("train")
    simple = task.baselines(train, sets) if isinstance(task, SupportsBaselines) and sets else ()
    found = [{"name": name, "scores": _named(task, scores), "intervals": {}} for name, scores in simple]
    if job["model"] and sets:
        with prepared_run(cfg, task_type(cfg), Path(job["recipe"])) as run:
            found.append(_of_model(run))
    return {"baselines": found, "rows": {name: len(rows) for name, rows in sets.items()}}


def _named(task: Task, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the scores that are not of single classes, with the prefix of their set."""
    names = {score.name for score in overall_scores(task)}
    return {
        f"{prefix_of(part)}{name}": float(value)
        for part, values in scores.items()
        for name, value in values.items()
        if name in names
    }


def _of_model(run: Run) -> dict[str, Any]:
    model = run.accelerator.prepare_model(run.model, evaluation_mode=True)
    scores: dict[str, dict[str, float]] = {}
    intervals: dict[str, list[float]] = {}
    for part, data in run.data.evals.items():
        with float32_precision(run.cfg.train.tf32):
            evaluation = evaluate(run, model, data, part)
        scores[part] = evaluation.metrics
        quality = quality_of(run.task, evaluation, data)
        intervals |= {f"{prefix_of(part)}{name}": list(ends) for name, ends in quality.intervals.items()}
    return {"name": MODEL, "scores": _named(run.task, scores), "intervals": intervals}
