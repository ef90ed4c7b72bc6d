"""Likely wrong labels, from the predictions of models that were not trained on the rows.

Confident learning (Northcutt, Jiang and Chuang 2021, arXiv 1911.00068), by cleanlab where there are probabilities of
every class. Look at each finding: a weak model is often confident and wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.api.batch import Record
from toolkit.api.task import Task
from toolkit.base.console import counted, shorten
from toolkit.base.errors import InputError
from toolkit.base.files import read_json, read_lines
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import Config
from toolkit.data.loading import check_rows
from toolkit.deploy.trained import read_settings
from toolkit.lab.doctor.findings import Finding, Part, parts_of
from toolkit.metrics.entities import entities
from toolkit.metrics.squad import squad_scores

CROSS_VALIDATION = "cross_validation.json"


@dataclass(frozen=True)
class Predicted:
    """Predictions on rows that the models were not trained on."""

    task: Task  # the task of the runs, which knows their labels
    parts: Sequence[Part]  # the split of each row
    rows: Sequence[int]  # the place of each row in its split
    records: Sequence[Record]  # what was predicted for it, see `toolkit.api.task.Task.decode`
    models: Sequence[int]  # number of the model that predicted it, from 0


def predictions_of(folder: Path, recipe: Path) -> Predicted:
    """Reads the predictions of a finished run, or of all folds of a cross-validation."""
    runs, file = [folder], folder / CROSS_VALIDATION
    if file.is_file():
        try:
            runs = [folder / fold["folder"] for fold in read_json(file)["folds"]]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"--run: {file} is damaged ({type(error).__name__}: {error})") from error
    settings = [read_settings(run, recipe, finished=False) for run in runs]
    found = [
        (*each, number)
        for number, (run, own) in enumerate(zip(runs, settings, strict=True))
        for each in _of_run(run, *own)
    ]
    if not found:
        raise InputError(f"--run: {folder} has no predictions of validation or test rows")
    parts, rows, records, models = zip(*found, strict=True)
    return Predicted(settings[-1][1], parts, rows, records, models)


def _of_run(run: Path, cfg: Config, task: Task) -> Iterator[tuple[Part, int, Record]]:
    """Yields the predictions of a run, each with the split and the place of its row; the task learns its labels."""
    facts = read_json(RunFolder(run).facts)
    checked = check_rows(replace(cfg, data=replace(cfg.data, bad_rows="skip", max_bad_rows=1.0)), task)
    if dict(checked.fingerprints) != facts.get("data_fingerprints"):
        raise InputError(f"--run: the data files have changed since {run} was trained; train it again")
    for part in parts_of(checked):
        file = RunFolder(run).predictions(part.name)
        if part.name == "train" or not file.is_file():
            continue
        found = _lines(file)
        if len(found) != len(part.numbers):
            raise InputError(
                f"--run: {file} has {len(found):,} predictions for {len(part.numbers):,} rows; train the run again"
            )
        yield from ((part, row, record) for row, record in enumerate(found))


def _lines(file: Path) -> list[Any]:
    try:
        return read_lines(file)
    except (OSError, ValueError) as error:
        raise InputError(f"--run: {file} cannot be read: {error}") from error


REGRESSION_SHARE = 0.05
"""A number is doubtful if its quality is below this share of the median quality, as in cleanlab's Datalab."""
MOST_RANKED = 20
"""Rows that are named where errors can only be ranked."""
LETTERS = 80


def label_errors(found: Predicted) -> Iterator[Finding]:
    """Yields the rows with likely wrong labels or, for tasks where labels cannot be judged, with large errors."""
    labelled = [place for place, record in enumerate(found.records) if _label(record) is not None]
    records = [found.records[place] for place in labelled]
    if not records:
        return
    first = records[0]
    if isinstance(first.get("scores"), Mapping) and isinstance(first["label"], str | list):
        issues = _of_models(records, [found.models[place] for place in labelled])
    elif "label" in first and not isinstance(first["label"], str | list):
        issues = _of_numbers(records)
    elif "entities" in first:
        issues = _of_entities(records)
    elif "answers" in first and "score" in first:
        issues = _of_answers(records)
    else:
        yield from _ranked(found)
        return
    rows = [
        {**found.parts[place].place(found.rows[place]), **more} for issue, more in issues for place in [labelled[issue]]
    ]
    said = (
        f"{len(rows):,} of {counted(len(records), 'row')} ({len(rows) / len(records):.1%}) have a likely wrong label."
    )
    yield Finding("label_errors", len(rows), said, rows, {"examined": len(records)})


def _label(record: Mapping[str, Any]) -> Any:
    return next((record[name] for name in ("label", "tags", "answers", "reference") if name in record), "")


def _of_models(records: Sequence[Mapping[str, Any]], models: Sequence[int]) -> list[tuple[int, dict[str, Any]]]:
    """Returns the doubtful labels, each model's by themselves: not all models are equally sure."""
    issues = []
    for model in dict.fromkeys(models):
        places = [place for place, each in enumerate(models) if each == model]
        issues += [(places[issue], more) for issue, more in _of_classes([records[place] for place in places])]
    return sorted(issues, key=lambda issue: float(issue[1]["probability"]))


def _of_classes(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Returns the places of doubtful labels, the most doubtful first, with what was predicted."""
    names = list(records[0]["scores"])
    scores = np.array([[record["scores"][name] for name in names] for record in records])
    several = isinstance(records[0]["label"], list)
    number = {name: place for place, name in enumerate(names)}
    labels: Any = (
        [[number[name] for name in record["label"]] for record in records]
        if several
        else np.array([number[record["label"]] for record in records])
    )
    if not several:
        scores = scores / scores.sum(axis=1, keepdims=True)
    with warnings.catch_warnings(action="ignore"):  # about classes without a row
        from cleanlab.filter import find_label_issues

        ranked = find_label_issues(
            labels, scores, return_indices_ranked_by="self_confidence", n_jobs=1, multi_label=several
        )
    return [
        (int(place), {
            "label": records[place]["label"], "prediction": records[place]["prediction"],
            "probability": _probability(records[place]),
        })
        for place in ranked
    ]  # fmt: skip


def _probability(record: Mapping[str, Any]) -> float:
    """Returns the predicted probability of a label; of several labels, that of the least likely one."""
    scores, label = record["scores"], record["label"]
    if isinstance(label, str):
        return round(float(scores[label]), 6)
    return round(min(score if name in label else 1 - score for name, score in scores.items()), 6)


def _of_numbers(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    from cleanlab.regression.rank import get_label_quality_scores

    named = isinstance(records[0]["label"], Mapping)
    issues: list[tuple[float, int, dict[str, Any]]] = []
    for name in records[0]["label"] if named else [None]:
        values = [(each["label"], each["prediction"]) for each in records]
        pairs = values if name is None else [(label[name], prediction[name]) for label, prediction in values]
        there = [place for place, (label, _) in enumerate(pairs) if label is not None]
        if len(there) < 2:
            continue
        labels, predictions = (np.array([pairs[place][side] for place in there]) for side in (0, 1))
        quality = get_label_quality_scores(labels, predictions)
        for issue in np.flatnonzero(quality < REGRESSION_SHARE * np.median(quality)):
            more = {"label": float(labels[issue]), "prediction": float(predictions[issue])}
            more |= {} if name is None else {"number": name}
            issues.append((float(quality[issue]), there[issue], more))
    return [(place, more) for _, place, more in sorted(issues, key=lambda issue: issue[:2])]


def _of_entities(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Finds unlabelled entities at least as probable as the mean of right ones of their type."""
    predicted: list[tuple[float, int, Mapping[str, Any]]] = []
    right: dict[str, list[float]] = {}
    for place, record in enumerate(records):
        labelled = set(entities(record["tags"]))
        for each in record["entities"]:
            if (each["type"], each["start"], each["end"]) in labelled:
                right.setdefault(each["type"], []).append(each["score"])
            else:
                predicted.append((each["score"], place, each))
    issues = [
        (place, {"prediction": f"{each['text']} ({each['type']})", "probability": round(score, 6)})
        for score, place, each in sorted(predicted, key=lambda issue: (-issue[0], issue[1]))
        if each["type"] in right and score >= float(np.mean(right[each["type"]]))
    ]
    return list({place: (place, more) for place, more in reversed(issues)}.values())[::-1]


def _of_answers(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Finds answers whose probability is as high as that of correct ones, but that share no word with the label."""
    overlap = [squad_scores([each["prediction_text"]], [each["answers"]])["f1"] for each in records]
    scored = [*zip(records, overlap, strict=True)]
    right = [record["score"] for record, f1 in scored if f1 == max(overlap) > 0]
    if not right:
        return []
    wrong = [(record["score"], place) for place, (record, f1) in enumerate(scored) if f1 == 0]
    return [
        (place, {
            "label": records[place]["answers"], "prediction": records[place]["prediction_text"],
            "probability": round(score, 6),
        })
        for score, place in sorted(wrong, key=lambda issue: (-issue[0], issue[1]))
        if score >= float(np.mean(right))
    ]  # fmt: skip


def _ranked(found: Predicted) -> Iterator[Finding]:
    """Yields the rows with the largest errors: generated texts have no probabilities of other labels."""
    if not found.task.has("error"):
        return
    errors = [(error, place) for place, record in enumerate(found.records) if (error := found.task.error(record))]
    worst = sorted(errors, key=lambda each: [-number for number in each[0]])[:MOST_RANKED]
    rows = [
        {**found.parts[place].place(found.rows[place]), "error": error[0],
         "prediction": shorten(str(found.records[place].get("prediction", "")), LETTERS)}
        for error, place in worst
    ]  # fmt: skip
    if rows:
        said = (
            f"The {counted(len(rows), 'row')} with the largest {found.task.error_name}, to look at: for this task, "
            "wrong labels cannot be told from hard rows."
        )
        yield Finding("large_errors", len(rows), said, rows)
