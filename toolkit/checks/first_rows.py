"""Checks the first rows of the data files: that they can be read, have the right columns, and are usable."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice

from toolkit.api.batch import BadRow, ExcludedRow, Processor, Row
from toolkit.api.task import Task
from toolkit.base.errors import DataError, problems_of
from toolkit.base.files import expanded, kind_of
from toolkit.config.paths import DATA_FILES, files_of
from toolkit.config.sections import DataConfig
from toolkit.data.columns import Beside, columns_in, is_ragged, require_present
from toolkit.data.readers.raw import RawRow, Reading
from toolkit.data.sources import folder_of, read_rows
from toolkit.data.table import FILE, NUMBER, check_raw

NUM_ROWS = 100
"""Number of rows of each file that are checked."""
NUM_LISTED = 5
"""Maximum number of unusable rows of a file that are listed."""


def first_row_problems(data: DataConfig, task: Task, slices: Sequence[str] = ()) -> list[str]:
    """Returns one complete message for each problem with the columns and the first rows of the data files.

    Missing files are reported by `toolkit.config.paths`. Nothing is cached. Labels that do not occur in the training
    rows are detected if these rows are the complete training file, from which the task may learn.
    """
    problems, complete = _unused_columns(data, task), list[list[Row]]()
    for name, file in ((key, each) for key in DATA_FILES for each in data.files(key)):
        if not all(kind_of(expanded(part)) for part in files_of(file)):
            continue
        try:
            rows = list(islice(read_rows(file, Reading.of(data)), NUM_ROWS + 1))
            beside = Beside.of(data, task, slices, name.removesuffix("_file"))
            good, found = _check(file, rows[:NUM_ROWS], data, task, beside)
            if name == "train_file" and good and not found and len(rows) <= NUM_ROWS:
                complete.append(good)
                if len(complete) == len(data.files(name)):
                    _learn(task, list(chain(*complete)))
        except DataError as error:
            found = [line.removeprefix("data: ") for line in str(error).splitlines()]
        problems += [f"data.{name}: {problem}" for problem in found]
    return problems


def lost_row_problems(data: DataConfig, task: Task, processor: Processor) -> list[str]:
    """Returns which of the first training rows would be lost in tokenising, unless they are skipped.

    Raises InputError if the processor cannot tokenise them.
    """
    if not task.has("lost") or not data.train_file or first_row_problems(data, task):
        return []
    from datasets import Dataset

    from toolkit.data.tokenise import lost_rows, tokenise

    good = []
    for file in data.files("train_file"):
        columns, folder, name = columns_in(file, task, data.columns), folder_of(file), data.file_names.get(file)
        for row in islice(read_rows(file, Reading.of(data)), NUM_ROWS):
            with suppress(BadRow, ExcludedRow):
                good.append(check_raw(row, task, columns, True, folder) | {NUMBER: row.number, FILE: name})
    table = Dataset.from_list(good)
    found = problems_of(lambda: lost_rows(table, tokenise(table, task, processor, labelled=True), task, data))
    return [f"data.train_file: of the first {len(good)} usable rows, {each}" for each in found]


def _unused_columns(data: DataConfig, task: Task) -> list[str]:
    files = data.files()
    if not data.columns or not files or any(columns_in(file, task, data.columns) == data.columns for file in files):
        return []
    fixed = "the columns of folders, archives and .txt files have fixed names"
    return [f"data.columns: has no effect, because {fixed}; remove it"]


def _check(file: str, rows: list[RawRow], data: DataConfig, task: Task, beside: Beside) -> tuple[list[Row], list[str]]:
    """Returns the usable rows, and what is wrong with the others unless they are skipped.

    Raises DataError if columns are missing.
    """
    columns, folder = columns_in(file, task, data.columns), folder_of(file)
    every = partial(read_rows, file, Reading.of(data)) if is_ragged(file) else None
    require_present(file, rows, every, task, columns, labelled=True, beside=beside)
    good, bad = [], []
    for row in rows:
        try:
            good.append(check_raw(row, task, columns, True, folder))
        except ExcludedRow:
            continue
        except BadRow as reason:
            bad.append(f"row {row.number}: {reason}")
    if not bad or data.bad_rows == "skip":
        return good, []
    more = [f"{len(bad) - NUM_LISTED} more"] if len(bad) > NUM_LISTED else []
    return good, [
        f"{len(bad)} of the first {len(rows)} rows of {file} cannot be used: {'; '.join(bad[:NUM_LISTED] + more)}. "
        "Correct them, or skip them with data.bad_rows=skip"
    ]


def _learn(task: Task, rows: Sequence[Row]) -> None:
    if task.has("learn"):
        from datasets import Dataset

        schema = task.schema()
        task.learn(Dataset.from_list([{name: row[name] for name in schema} for row in rows], features=schema))
