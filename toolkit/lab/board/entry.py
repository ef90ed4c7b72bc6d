"""What is known of a run, by the names of `--where` and `--columns`; of unfinished runs, from their last lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.base.errors import InputError
from toolkit.base.run_folder import RunFolder
from toolkit.config.messages import did_you_mean
from toolkit.report.runs import Record
from toolkit.tracking.jsonl import readable_lines

OF_A_LINE = ("step", "epoch", "num_items")
"""Numbers of a line of `metrics.jsonl` that describe the line itself."""


@dataclass(frozen=True)
class Entry:
    """A run in a table of runs.

    Args:
        name: path of its folder, relative to the folder of all runs.
        record: its record.
        lines: the lines of its `metrics.jsonl` that can be read.
        values: every setting, fact, and result by name.
    """

    name: str
    record: Record
    lines: Sequence[Mapping[str, Any]]
    values: Mapping[str, Any]

    @property
    def state(self) -> str:
        """Whether the run is finished, in words."""
        if self.record.finished:
            return "finished"
        planned = self.record.facts.get("total_steps")
        of_all = f" of {planned:,}" if isinstance(planned, int) else ""
        return f"step {self.values['steps']:,}{of_all}"


def entry_of(record: Record, folder: Path) -> Entry:
    """Returns what is known of a run.

    Args:
        record: its record.
        folder: the folder of all runs.

    Raises:
        InputError: if its `metrics.jsonl` cannot be read.
    """
    file = RunFolder(record.folder).metrics
    try:
        lines = readable_lines(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error
    name = record.folder.name if record.folder == folder else record.folder.relative_to(folder).as_posix()
    facts = {
        "run": name,
        "recipe": Path(record.facts["recipe"]).stem,
        "processes": record.facts["num_processes"],
        "finished": record.finished,
    }
    results = record.part("result") if record.finished else _so_far(lines)
    return Entry(name, record, lines, {**record.part("setting"), **facts, **results})


def _so_far(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the last value of each number of an unfinished run."""
    found: dict[str, Any] = {"steps": 0}
    for line in lines:
        found |= {name: value for name, value in line.items() if name not in OF_A_LINE}
        found["steps"] = int(line["step"])
    return found


def text_of(value: Any) -> str:
    """Returns a value as text: numbers exactly, lists and mappings as JSON, nothing for a missing one."""
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def refuse_unknown(names: Iterable[str], entries: Sequence[Entry], option: str) -> None:
    """Refuses names that no run has.

    Args:
        names: the names to check.
        entries: the runs.
        option: the option that received the names, for the error.

    Raises:
        InputError: if there is no such setting or result; suggests similar names.
    """
    known = dict.fromkeys(name for entry in entries for name in entry.values)
    for name in names:
        if name not in known:
            near = did_you_mean(name, known, 3) or "; settings have dotted keys, such as train.learning_rate"
            raise InputError(f"{option}: received {name!r}, no setting or result of these runs{near}")
