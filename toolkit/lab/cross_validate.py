"""Cross-validation: one training for each fold, not repeated once finished, and the scores over all folds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.api.run import FitResult, Run, best_metric, overall_scores
from toolkit.base.console import counted, format_duration, format_value, say
from toolkit.base.errors import RunError
from toolkit.base.files import read_json
from toolkit.base.run_folder import RunFolder
from toolkit.checkpoint.lock import OutputLock
from toolkit.data.row_cache import code_fingerprint
from toolkit.distributed.collectives import on_main
from toolkit.document.blocks import Block, Cell, Highlights, Page, Section, Table, Text
from toolkit.lab.jobs.jobs import job_name, measured_in, remove_model, run_job, training_job, without_checkpoints
from toolkit.lab.jobs.training import QUIET, trained
from toolkit.lab.tool import Report, Request
from toolkit.metrics.intervals import t_interval
from toolkit.report.scores import prefix_of

FOLDER = "folds"
HOW = (
    "Each training row is a validation row in exactly one fold, and a training row in the others. The 95 % interval of "
    "the mean is that of a t test with the variance of Nadeau and Bengio (2003), because folds share most of their "
    "training rows. It describes another model of this kind, trained on as many rows."
)
TEST = " Scores that begin with test_ are of the same test rows in every fold, which no fold was trained on."


@dataclass(frozen=True, kw_only=True)
class CrossValidation(Report):
    """The scores over all folds."""

    FILE = "cross_validation"
    metric: str
    metrics: Mapping[str, Mapping[str, Any]]  # by name with prefix: `greater_is_better`, and what `interval` returns
    folds: Sequence[Mapping[str, Any]]  # `fold`, `folder`, `rows`, `seconds` and `figures` of each
    seed: int
    processes: int
    config: str
    command: str

    def page(self) -> Page:
        """Returns the scores over all folds, and those of each."""
        first: list[Block] = []
        if self.metrics.get(self.metric, {}).get("mean") is not None:
            value, ends, _ = _figures(self.metrics[self.metric])
            first = [Highlights([(self.metric, format_value(value)), ("95 % interval", ends)])]
        how = HOW + (TEST if any(name.startswith("test_") for name in self.metrics) else "")
        sections = [Section("Scores", [*first, *self.on_terminal(), Text(how)]), Section("Folds", self._folds())]
        lead = f"{counted(len(self.folds), 'fold')}, seed {self.seed}."
        return Page(f"Cross-validation of {self.config}", lead, sections)

    def on_terminal(self) -> list[Table]:
        """Returns the table of all scores, the main one first."""
        names = sorted(self.metrics, key=lambda name: name != self.metric)
        rows = [[name, *_figures(self.metrics[name])] for name in names]
        return [Table(["score", "mean", "95 % interval", "sd"], rows, stacked=True)]

    def _folds(self) -> list[Table]:
        parts = list(dict.fromkeys(name for fold in self.folds for name in fold["rows"]))
        scores, runs = [], []
        for place, fold in enumerate(self.folds):
            scores.append([fold["fold"], *(metric["values"][place] for metric in self.metrics.values())])
            seconds = Cell(format_duration(fold["seconds"]), fold["seconds"])
            runs.append([fold["fold"], *(fold["rows"].get(part) for part in parts), seconds, fold["folder"]])
        return [
            Table(["fold", *self.metrics], scores, sortable=True),
            Table(["fold", *(f"{part} rows" for part in parts), "time", "run"], runs, stacked=True),
        ]


def _figures(metric: Mapping[str, Any]) -> list[Any]:
    if metric["mean"] is None:
        return [None, "not finite in every fold", None]
    ends = f"{format_value(metric['low'])} to {format_value(metric['high'])}"
    return [metric["mean"], ends.replace(" ", "\u00a0"), metric["deviation"]]


def cross_validate(request: Request, folds: int, keep_models: bool) -> CrossValidation:
    """Trains the folds that are not finished, keeps their models if asked to, and summarises all scores.

    Raises ConfigError if settings are invalid; InputError if the folder cannot be made; RunError if a training fails.
    """
    settings = {**QUIET, "data.validation_file": None, "data.validation_split": None, "data.folds": folds}
    trainings = [request.override(settings, {"data.fold": fold}, starts=fold == 1) for fold in range(1, folds + 1)]
    if request.cfg.data.validation_file is not None:
        say(f"{request.cfg.data.validation_file} is not read: the validation rows are folds of the training rows")
    metric = best_metric(trainings[0].cfg, trainings[0].task).name
    with OutputLock(request.make_output(again=True)):
        measured = [_trained(each, number, metric, keep_models) for number, each in enumerate(trainings, start=1)]
    return CrossValidation(
        metric=metric,
        metrics=_summarised([each["scores"] for _, each in measured]),
        folds=[
            {"fold": number, "folder": str(run.path.relative_to(request.output)),
             **{name: each[name] for name in ("rows", "seconds", "figures")}}
            for number, (run, each) in enumerate(measured, start=1)
        ],
        seed=request.cfg.seed, processes=request.launch.processes, config=str(request.config), command=request.command,
    )  # fmt: skip


def _trained(request: Request, number: int, metric: str, keep_models: bool) -> tuple[RunFolder, dict[str, Any]]:
    """Trains a fold unless it is finished, and returns the folder of its run and its measurements."""
    cfg, launch, total = request.cfg, request.launch, request.cfg.data.folds
    overrides = [*request.overrides, *without_checkpoints(cfg)]
    job = training_job(request.recipe, request.config, overrides, cfg, launch, code_fingerprint(request.task))
    folder = request.output / FOLDER / job_name(f"fold-{number}", job)
    run, measured, how = RunFolder(folder / "run"), measured_in(folder), "done before"
    if measured is None or (keep_models and not run.model.is_dir()):
        began = time.monotonic()
        error = run_job("cross_validate", job, folder, launch, {}, lambda: {"seconds": time.monotonic() - began})
        if error is not None:
            raise RunError(f"fold {number} of {total}: {error}\nrerun the same command to continue with the rest")
        if not keep_models:
            remove_model(run)
        measured = measured_in(folder) or {}
        how = format_duration(measured["seconds"])
    score = measured["scores"].get(metric)
    value = f"{metric} {format_value(score['value'])}" if score else "no validation score"
    say(f"fold {number} of {total}: {value} ({how})")
    return run, measured


def _summarised(scores: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Returns the interval of each score, given those of each fold by name with prefix."""
    return {
        name: {
            "greater_is_better": score["greater_is_better"],
            **interval([fold.get(name, {}).get("value", math.nan) for fold in scores]),
        }
        for name, score in scores[0].items()
    }


def interval(values: Sequence[float]) -> Mapping[str, Any]:
    """Returns `mean`, `deviation`, `low`, `high` and `values` of a score, `[K]`, over at least 2 folds.

    The interval is that of a t test with the variance of Nadeau and Bengio (2003, Inference for the Generalization
    Error, Machine Learning 52): folds share most of their training rows, so their scores are not independent, and the
    variance of their mean is larger than a K-th of their variance by the ratio of validation to training rows. A score
    that is not finite in a fold has no interval.
    """
    known = [None if value is None or not math.isfinite(value) else value for value in values]
    finite = [value for value in known if value is not None]
    if len(finite) < len(values):
        return {"mean": None, "deviation": None, "low": None, "high": None, "values": known}
    count, mean, deviation = len(finite), statistics.fmean(finite), statistics.stdev(finite)
    variance = (1 / count + 1 / (count - 1)) * deviation**2
    return {"mean": mean, "deviation": deviation, **t_interval(mean, variance, count - 1)._asdict(), "values": known}


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains, writes the run's results, and returns the measurements."""
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
