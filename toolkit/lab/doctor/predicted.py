"""The out-of-sample predictions of a finished run, or of the folds of a cross-validation, with their rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.api.batch import Record
from toolkit.api.task import Task
from toolkit.base.errors import InputError
from toolkit.base.files import read_json
from toolkit.base.run_folder import RunFolder
from toolkit.data.loading import check_rows
from toolkit.deploy.trained import read_settings
from toolkit.lab.doctor.findings import Part, parts_of

CROSS_VALIDATION = "cross_validation.json"


@dataclass(frozen=True)
class Predicted:
    """Predictions on rows that the models were not trained on.

    Args:
        task: the task of the runs, which knows their labels.
        parts: the split of each row.
        rows: the place of each row in its split.
        records: what was predicted for it, see `toolkit.api.task.Task.decode`.
        models: number of the model that predicted it, from 0.
    """

    task: Task
    parts: Sequence[Part]
    rows: Sequence[int]
    records: Sequence[Record]
    models: Sequence[int]


def predictions_of(folder: Path, recipe: Path) -> Predicted:
    """Reads the predictions of a run, or of all folds of a cross-validation.

    Args:
        folder: the output folder of a finished run or of `toolkit cross-validate`.
        recipe: the recipe's file.

    Raises:
        InputError: if the folder is neither, or has no predictions, or its rows have changed since.
        DataError: if the rows can no longer be read.
    """
    runs = [folder]
    if (folder / CROSS_VALIDATION).is_file():
        try:
            runs = [folder / fold["folder"] for fold in read_json(folder / CROSS_VALIDATION)["folds"]]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"--run: {folder / CROSS_VALIDATION} is damaged ({type(error).__name__}: {error})"
            ) from error
    parts: list[Part] = []
    rows: list[int] = []
    records: list[Record] = []
    models: list[int] = []
    task: Task | None = None
    for number, run in enumerate(runs):
        task = _add(run, recipe, parts, rows, records)
        models += [number] * (len(records) - len(models))
    if task is None or not records:
        raise InputError(f"--run: {folder} has no predictions of validation or test rows")
    return Predicted(task, parts, rows, records, models)


def _add(run: Path, recipe: Path, parts: list[Part], rows: list[int], records: list[Record]) -> Task:
    """Adds the predictions of a run, and returns its task."""
    cfg, task = read_settings(run, recipe, finished=False)
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
        parts += [part] * len(found)
        rows += range(len(found))
        records += found
    return task


def _lines(file: Path) -> list[Any]:
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(f"--run: {file} cannot be read: {error}") from error
