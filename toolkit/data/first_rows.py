"""Looks at the beginning of the data files: can they be read, are their columns there, are their first rows usable?"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from toolkit.api.task import BadRow, Task
from toolkit.base.errors import DataError
from toolkit.config.paths import aligned_files
from toolkit.config.sections import DataConfig
from toolkit.data.columns import require_columns
from toolkit.data.rows import check_raw, columns_of
from toolkit.data.sources import read_rows

NUM_ROWS = 100
"""Rows of each file that are looked at."""
NUM_LISTED = 5
"""Unusable rows of a file that are named."""


def first_row_problems(data: DataConfig, task: Task) -> list[str]:
    """Returns what is wrong with the columns and the first rows of each data file, as full messages.

    A file that does not exist is left to `toolkit.config.paths`. Nothing is cached, and the task learns nothing, so
    that a label which is unknown to the training rows is not found here.

    Args:
        data: the YAML's `data` section.
        task: says which columns there are and which rows are good.
    """
    problems = []
    for name in ("train_file", "validation_file", "test_file"):
        file = getattr(data, name)
        if file and (aligned_files(file) or Path(file).expanduser().exists()):
            problems += [f"data.{name}: {problem}" for problem in _problems_of_file(file, data, task)]
    return problems


def _problems_of_file(file: str, data: DataConfig, task: Task) -> list[str]:
    try:
        rows = list(islice(read_rows(file), NUM_ROWS))
        if present := columns_of(rows):
            require_columns(file, present, task, data.columns, labelled=True)
    except DataError as error:
        return str(error).splitlines()
    path = Path(file).expanduser()
    folder = (path if path.is_dir() else path.parent).absolute()
    bad = []
    for row in rows:
        try:
            check_raw(row, task, data.columns, True, folder)
        except BadRow as reason:
            bad.append(f"row {row.number}: {reason}")
    if not bad or data.bad_rows == "skip":
        return []
    more = [f"{len(bad) - NUM_LISTED} more"] if len(bad) > NUM_LISTED else []
    return [
        f"{len(bad)} of the first {len(rows)} rows of {file} cannot be used: {'; '.join(bad[:NUM_LISTED] + more)}. "
        "Correct them, or leave them out with data.bad_rows=skip"
    ]
