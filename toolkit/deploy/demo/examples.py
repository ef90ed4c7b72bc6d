"""Rows of a run's validation set, as examples of its inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.base.console import say
from toolkit.base.errors import ToolkitError
from toolkit.data.loading import check_rows
from toolkit.data.media.files import open_file
from toolkit.data.table import progress_bars
from toolkit.deploy.predict import needed_columns
from toolkit.deploy.trained import TrainedRun

MOST = 6
"""Number of examples."""


def validation_examples(run: TrainedRun, folder: Path) -> list[dict[str, Any]]:
    """Returns rows of the run's validation set, evenly spaced, by the task's names of the columns.

    Args:
        run: the finished run.
        folder: where the files of the rows are copied to.

    Returns:
        Values for the fields of the page; none, with a note, if the run's data cannot be read any more.
    """
    # Of its own: reading the rows learns labels, and the run's task has them already.
    task = type(run.task)(run.cfg)
    cfg = replace(run.cfg, data=replace(run.cfg.data, bad_rows="skip", max_bad_rows=1.0))
    try:
        with progress_bars(shown=False):
            rows = check_rows(cfg, task).splits.get("validation")
    except (ToolkitError, OSError) as error:
        say(f"no examples: the run's rows cannot be read ({str(error).splitlines()[0]})")
        return []
    if rows is None or not len(rows):
        say("no examples: the run has no validation rows")
        return []
    count = min(MOST, len(rows))
    chosen = [rows[place * len(rows) // count] for place in range(count)]
    return [dict(_fields(run, row, folder / str(number))) for number, row in enumerate(chosen)]


def _fields(run: TrainedRun, row: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Any]]:
    for name, column in needed_columns(run.task).items():
        yield name, _copied(row[name], folder) if column.file else as_text(row[name])


def _copied(file: Mapping[str, Any], folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / Path(file["name"]).name
    with open_file(file) as opened:
        copy.write_bytes(opened.read())
    return str(copy)


def as_text(value: Any) -> str:
    """Returns a value as it is written into a field: tokens separated by blanks, a conversation as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, Sequence) and all(isinstance(part, str) for part in value):
        return " ".join(value)
    return json.dumps(value, ensure_ascii=False, indent=1)


def from_text(text: str, messages: bool) -> Any:
    """Returns the value of a field for a row.

    Args:
        text: what was written.
        messages: whether the column holds a conversation; text that is not JSON is a message of the user.
    """
    if not messages:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, list) else [{"role": "user", "content": text}]
