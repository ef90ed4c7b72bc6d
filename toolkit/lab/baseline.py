"""Scores the answers of a task that need no training, in a separate process, and shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.api.run import Run, overall_scores
from toolkit.api.task import Task
from toolkit.base.console import counted, format_value
from toolkit.base.files import write_json, write_text
from toolkit.data.loading import check_rows
from toolkit.distributed.launch import float32_precision
from toolkit.document import render
from toolkit.document.blocks import Block, Cell, Code, Section, Table, Text
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


Found = Mapping[str, Any]
"""Contents of `baseline.json`."""
MOST_IN_TERMINAL = 3
HOW = (
    "None of these needs training. A trained model should clearly score more than the best of them. Intervals (95 %) "
    "are those of the evaluated rows. A pretrained model without a head for the task, and a new model, have random "
    "parameters: they score what chance does."
)


def main_names(found: Found) -> list[str]:
    """Returns the names of all scores, those of the main metric first."""
    names = dict.fromkeys(name for each in found["baselines"] for name in each["scores"])
    main = found["metric"].removeprefix("eval_")
    return sorted(names, key=lambda name: name.partition("_")[2] != main)


def table(found: Found, names: Sequence[str]) -> Table:
    """Returns the table of the baselines with some of their scores."""
    rows = [[each["name"], *(_cell(each, name) for name in names)] for each in found["baselines"]]
    return Table(["answer", *names], rows, sortable=True, stacked=True)


def _cell(each: Mapping[str, Any], name: str) -> Cell | None:
    value = each["scores"].get(name)
    if value is None:
        return None
    ends = each["intervals"].get(name)
    interval = f" ({format_value(ends[0])} to {format_value(ends[1])})".replace(" ", "\u00a0") if ends else ""
    return Cell(f"{format_value(value)}{interval}", value)


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    said: list[Block] = [table(found, main_names(found)), Text(HOW)]
    return [Section("Scores without training", said), Section("Command", [Code(found["command"], "bash")])]


def write(found: Found, folder: Path) -> None:
    """Writes `baseline.json`, and the page as HTML and Markdown."""
    title = f"Baselines of {found['config']}"
    lead = ", ".join(counted(count, f"{name} row") for name, count in found["rows"].items())
    write_json(folder / "baseline.json", found)
    write_text(folder / "baseline.md", render.render_markdown(title, f"{lead}.", sections(found)))
    write_text(folder / "baseline.html", render.render_html(title, f"{lead}.", sections(found)))
