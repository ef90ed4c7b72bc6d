"""Scores the answers of a task that need no training, in a separate process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from toolkit.api.run import Run, best_metric, overall_scores
from toolkit.api.task import Task
from toolkit.base.console import counted, format_value
from toolkit.base.errors import InputError
from toolkit.config.train import ParallelConfig
from toolkit.data.loading import check_rows
from toolkit.distributed.launch import float32_precision
from toolkit.document.blocks import Cell, Page, Section, Table, Text
from toolkit.engine.evaluation import evaluate
from toolkit.lab.jobs.training import STEPS_ONLY
from toolkit.lab.tool import Report, Request
from toolkit.recipe import load_settings, load_task_type
from toolkit.report.scores import prefix_of, quality_of

MODEL = "the model, not trained"


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Scores the evaluation sets of a run, with its model too if `model` says so: the fields of `Baselines`."""
    from toolkit.run import prepared_run

    task_type = load_task_type(job["recipe"])
    cfg = load_settings(task_type, job["config"], job["overrides"]).config
    task = task_type(cfg)
    sets = dict(check_rows(cfg, task).splits)
    train = sets.pop("train")
    simple = task.baselines(train, sets) if sets else ()
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


MOST_IN_TERMINAL = 3
"""Scores that the terminal shows."""
HOW = (
    "None of these needs training. A trained model should clearly score more than the best of them. Intervals (95 %) "
    "are those of the evaluated rows. A pretrained model without a head for the task, and a new model, have random "
    "parameters: they score what chance does."
)


@dataclass(frozen=True, kw_only=True)
class Baselines(Report):
    """The scores of all answers."""

    FILE = "baseline"
    baselines: Sequence[Mapping[str, Any]]
    """`name`, `scores`, and the `intervals` that are known, both by the names of scores with prefix."""
    rows: Mapping[str, int]  # rows of each evaluation set
    metric: str
    config: str
    command: str

    def page(self) -> Page:
        """Returns all scores."""
        lead = ", ".join(counted(count, f"{name} row") for name, count in self.rows.items())
        sections = [Section("Scores without training", [self._table(), Text(HOW)])]
        return Page(f"Baselines of {self.config}", f"{lead}.", sections)

    def on_terminal(self) -> list[Table]:
        """Returns the main scores."""
        return [self._table(MOST_IN_TERMINAL)]

    def _table(self, most: int | None = None) -> Table:
        """Returns the scores, those of the main metric first."""
        every = dict.fromkeys(name for each in self.baselines for name in each["scores"])
        main = self.metric.removeprefix("eval_")
        names = sorted(every, key=lambda name: name.partition("_")[2] != main)[:most]
        rows = [[each["name"], *(_cell(each, name) for name in names)] for each in self.baselines]
        return Table(["answer", *names], rows, sortable=True, stacked=True)


def _cell(each: Mapping[str, Any], name: str) -> Cell | None:
    value = each["scores"].get(name)
    if value is None:
        return None
    ends = each["intervals"].get(name)
    interval = f" ({format_value(ends[0])} to {format_value(ends[1])})".replace(" ", "\u00a0") if ends else ""
    return Cell(f"{format_value(value)}{interval}", value)


def score(request: Request, with_model: bool) -> Baselines:
    """Scores the answers of a run's task, and its model if asked to.

    Raises ConfigError if a setting is invalid; InputError if there is nothing to score, or the output folder is not
    empty; RunError if the model cannot be evaluated.
    """
    if not with_model and not request.task.has("baselines"):
        raise InputError("--no-model: this task has no baseline but its model; remove the option")
    kept = {key: value for key, value in STEPS_ONLY.items() if key != "eval.metric_for_best_model"}
    one_process = {f"parallel.{field.name}": field.default for field in fields(ParallelConfig)}
    untrained = {"train.max_steps": 1, "train.warmup_steps": 0, "model.unfreeze": {}}
    evaluated = request.override(kept, one_process, untrained, starts=False)
    request.make_output()
    measured = evaluated.measured("baseline", model=with_model)
    if not measured["rows"]:
        raise InputError("data: there are no validation or test rows to score")
    return Baselines(
        **measured, metric=best_metric(request.cfg, request.task).name, config=str(request.config),
        command=request.command,
    )  # fmt: skip
