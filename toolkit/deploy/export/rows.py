"""The labelled rows on which an export is compared with its run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from toolkit.api.batch import EvalData
from toolkit.api.task import Task
from toolkit.base.errors import InputError
from toolkit.base.files import read_json
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import Config
from toolkit.data.loading import check_rows
from toolkit.data.readers.raw import Reading
from toolkit.data.table import apply_policy, load_table
from toolkit.data.tokenise import tokenise
from toolkit.deploy.trained import TrainedRun

if TYPE_CHECKING:
    import datasets

GIVE = "give a labelled file with the columns of the run's files as --data"


def labelled_rows(cfg: Config, task: Task, run_folder: Path, file: str | None, most: int) -> datasets.Dataset:
    """Returns checked rows: those of a file, or the run's own; evenly spaced if there are many.

    Args:
        cfg: the run's settings.
        task: its task.
        run_folder: its output folder.
        file: the file; None for the run's own rows.
        most: largest number of rows.

    Raises:
        InputError: if the run's own rows are not there any more, or not as they were.
        DataError: if the file cannot be used.
    """
    if file is not None:
        tables = {"--data": load_table(file, task, cfg.data.columns, labelled=True, reading=Reading.of(cfg.data))}
        apply_policy(tables, "skip", 1.0)
        rows = tables["--data"].rows
    else:
        rows = _own_rows(cfg, type(task)(cfg), run_folder)
    if not len(rows):
        raise InputError(f"there are no rows to compare the export with the run; {GIVE}")
    places = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)
    return rows.select(places)


def _own_rows(cfg: Config, task: Task, run_folder: Path) -> datasets.Dataset:
    """Returns a run's validation rows, or its training rows if it had no others.

    `task` learns its labels again, as it did before the run.
    """
    expected = read_json(RunFolder(run_folder).facts).get("data_fingerprints")
    data = replace(cfg.data, bad_rows="skip", max_bad_rows=1.0, stage_to=None)  # needs no copy on a fast disk
    try:
        checked = check_rows(replace(cfg, data=data), task)
    except InputError as error:
        raise InputError(f"the run's own rows cannot be read again; {GIVE}.\n  Reason: {error}") from error
    if dict(checked.fingerprints) != expected:
        raise InputError(f"the data files have changed since {run_folder} was trained; {GIVE}")
    return checked.splits["validation" if "validation" in checked.splits else "train"]


def prepared(run: TrainedRun, rows: datasets.Dataset) -> EvalData:
    """Returns checked rows with their features."""
    return EvalData(rows, tokenise(rows, run.task, run.processor, labelled=True), run.processor)
