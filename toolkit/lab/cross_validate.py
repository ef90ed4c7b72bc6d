"""Cross-validation: one training for each fold, not repeated once finished; the summary and its page."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.run import overall_scores
from toolkit.base.console import counted, format_duration, format_value
from toolkit.base.errors import RunError
from toolkit.base.files import read_json, write_json, write_text
from toolkit.base.run_folder import RunFolder
from toolkit.config.keys import written
from toolkit.config.sections import Config
from toolkit.distributed.collectives import on_main
from toolkit.document import render
from toolkit.document.blocks import Cell, Code, Highlights, Section, Table, Text
from toolkit.lab.jobs.jobs import Launch, job_name, measured_in, run_job, training_job
from toolkit.lab.jobs.training import QUIET, trained
from toolkit.metrics.intervals import t_interval
from toolkit.report.scores import prefix_of

if TYPE_CHECKING:
    from toolkit.api.run import FitResult, Run


FOLDER = "folds"


@dataclass(frozen=True)
class Validation:
    """A cross-validation.

    Args:
        recipe: the recipe's file.
        config: the YAML file.
        overrides: the user's overrides.
        configs: the configuration of each fold.
        launch: how processes are started.
        code: digest of the toolkit's and the recipe's code.
        folder: output folder.
        keep_models: whether the model of each fold is kept.
    """

    recipe: Path
    config: Path
    overrides: Sequence[str]
    configs: Sequence[Config]
    launch: Launch
    code: str
    folder: Path
    keep_models: bool


@dataclass(frozen=True)
class Fold:
    """A finished fold.

    Args:
        number: its number, from 1.
        run: output folder of its training.
        measured: what `toolkit.lab.cross_validate` measured, and the `seconds` of its process.
        kept: whether an earlier call of the command finished it.
    """

    number: int
    run: Path
    measured: dict[str, Any]
    kept: bool


def fold_settings(overrides: Sequence[str], folds: int, fold: int) -> list[str]:
    """Returns the overrides of the training whose validation rows are fold `fold` of `folds`."""
    own = {"data.validation_file": None, "data.validation_split": None, "data.folds": folds, "data.fold": fold}
    return [*overrides, *written({**QUIET, **own})]


def trained_folds(validation: Validation) -> Iterator[Fold]:
    """Yields each fold as soon as it is finished, in order.

    Raises:
        RunError: if the training of a fold fails.
    """
    total = len(validation.configs)
    for number, cfg in enumerate(validation.configs, start=1):
        # Checkpoints are needed only to load the best model at the end.
        saving = [] if cfg.checkpoint.load_best_model_at_end else ["checkpoint.save_steps=null"]
        overrides = [*fold_settings(validation.overrides, total, number), *saving]
        job = training_job(validation.recipe, validation.config, overrides, cfg, validation.launch, validation.code)
        folder = validation.folder / FOLDER / job_name(f"fold-{number}", job)
        run, measured = RunFolder(folder / "run"), measured_in(folder)
        if measured is not None and (run.model.is_dir() or not validation.keep_models):
            yield Fold(number, run.path, measured, kept=True)
            continue
        error = run_job("cross_validate", job, folder, validation.launch, {}, _clock())
        if error is not None:
            raise RunError(f"fold {number} of {total}: {error}\nrerun the same command to continue with the rest")
        if not validation.keep_models:
            for place in (run.model, run.base, run.processor, run.snapshots):
                shutil.rmtree(place, ignore_errors=True)
        yield Fold(number, run.path, measured_in(folder) or {}, kept=False)


def _clock() -> Callable[[], dict[str, float]]:
    """Returns a function that returns the `seconds` since this call."""
    began = time.monotonic()
    return lambda: {"seconds": time.monotonic() - began}


Found = Mapping[str, Any]
"""Contents of `cross_validation.json`."""
HOW = (
    "Each training row is a validation row in exactly one fold, and a training row in the others. The 95 % interval of "
    "the mean is that of a t test with the variance of Nadeau and Bengio (2003), because folds share most of their "
    "training rows. It describes another model of this kind, trained on as many rows."
)
TEST = " Scores that begin with test_ are of the same test rows in every fold, which no fold was trained on."


def summary(found: Found) -> Table:
    """Returns the table of all scores, the main one first."""
    main = found["metric"]
    names = sorted(found["metrics"], key=lambda name: name != main)
    rows = [[name, *_figures(found["metrics"][name])] for name in names]
    return Table(["score", "mean", "95 % interval", "sd"], rows, stacked=True)


def _figures(metric: Mapping[str, Any]) -> list[Any]:
    if metric["mean"] is None:
        return [None, "not finite in every fold", None]
    ends = f"{format_value(metric['low'])} to {format_value(metric['high'])}"
    return [metric["mean"], ends.replace(" ", "\u00a0"), metric["deviation"]]


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    main, folds = found["metrics"].get(found["metric"]), found["folds"]
    first: list[Any] = []
    if main is not None and main["mean"] is not None:
        value, ends, _ = _figures(main)
        first = [Highlights([(found["metric"], format_value(value)), ("95 % interval", ends)])]
    names = list(found["metrics"])
    rows = [
        [fold["fold"], *(found["metrics"][name]["values"][place] for name in names)] for place, fold in enumerate(folds)
    ]
    parts = list(dict.fromkeys(name for fold in folds for name in fold["rows"]))
    about = [
        [fold["fold"], *(fold["rows"].get(part) for part in parts),
         Cell(format_duration(fold["seconds"]), fold["seconds"]), fold["folder"]]
        for fold in folds
    ]  # fmt: skip
    how = HOW + (TEST if any(name.startswith("test_") for name in names) else "")
    return [
        Section("Scores", [*first, summary(found), Text(how)]),
        Section("Folds", [
            Table(["fold", *names], rows, sortable=True),
            Table(["fold", *(f"{part} rows" for part in parts), "time", "run"], about, stacked=True),
        ]),
        Section("Command", [Code(found["command"], "bash")]),
    ]  # fmt: skip


def write(found: Found, folder: Path) -> None:
    """Writes `cross_validation.json`, and the page as HTML and Markdown."""
    title = f"Cross-validation of {found['config']}"
    lead = f"{counted(len(found['folds']), 'fold')}, seed {found['seed']}."
    write_json(folder / "cross_validation.json", found)
    write_text(folder / "cross_validation.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "cross_validation.html", render.render_html(title, lead, sections(found)))


def summarised(folds: Sequence[Fold]) -> dict[str, dict[str, Any]]:
    """Returns mean, standard deviation and interval of each score, by its name with prefix.

    A score that is not finite in a fold has no interval.
    """
    names = folds[0].measured["scores"]
    return {
        name: {
            "greater_is_better": score["greater_is_better"],
            **interval([fold.measured["scores"].get(name, {}).get("value", math.nan) for fold in folds]),
        }
        for name, score in names.items()
    }


def interval(values: Sequence[float]) -> Mapping[str, Any]:
    """Returns `mean`, `deviation`, `low`, `high` and `values` of a score over folds.

    The interval is that of a t test with the variance of Nadeau and Bengio (2003, Inference for the Generalization
    Error, Machine Learning 52): folds share most of their training rows, so their scores are not independent, and the
    variance of their mean is larger than a K-th of their variance by the ratio of validation to training rows.

    Args:
        values: `[K]` the score of each fold, at least 2.
    """
    known = [None if value is None or not math.isfinite(value) else value for value in values]
    finite = [value for value in known if value is not None]
    if len(finite) < len(values):
        return {"mean": None, "deviation": None, "low": None, "high": None, "values": known}
    count, mean, deviation = len(finite), statistics.fmean(finite), statistics.stdev(finite)
    variance = (1 / count + 1 / (count - 1)) * deviation**2
    return {"mean": mean, "deviation": deviation, **t_interval(mean, variance, count - 1)._asdict(), "values": known}


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
