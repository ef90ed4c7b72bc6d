"""Checks the first rows of the data files: that they can be read, have the right columns, and are usable."""

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
"""Number of rows of each file that are checked."""
NUM_LISTED = 5
"""Maximum number of unusable rows of a file that are listed."""


def first_row_problems(data: DataConfig, task: Task) -> list[str]:
    """Returns one complete message for each problem with the columns and the first rows of the data files.

    Files that do not exist are reported by `toolkit.config.paths`. Nothing is cached, and the task does not learn its
    labels, so labels that do not occur in the training rows are not detected.

    Args:
        data: the YAML's `data` section.
        task: the task, which defines the columns and checks rows.
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
