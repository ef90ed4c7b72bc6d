"""Answers to rows: the input's columns as they are, and the prediction, one line per row of the input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from toolkit.api.batch import Record
from toolkit.api.task import Task, answer, answer_columns
from toolkit.base.errors import DataError, InputError
from toolkit.data.columns import columns_of
from toolkit.data.readers import RawRow, not_text
from toolkit.data.writers import NESTED, OutputTable, check_excel, flat
from toolkit.deploy.predict import Input

CONSIDERED = {"scores": "score", "n_best": "n_best"}
"""Columns of `SupportsAnswers` that tables leave out unless asked for, and the names of their columns there."""
FILE, UNSURE, ERROR = "file", "unsure", "error"


@dataclass(frozen=True)
class AnswerOptions:
    """What the answers contain.

    Args:
        threshold: adds the column `unsure`, whether the score is below; None adds none.
        all_scores: whether tables have a column for every class.
    """

    threshold: float | None = None
    all_scores: bool = False

    def check(self, task: Task) -> None:
        """Checks that the task's predictions have what is asked for.

        Raises:
            InputError: if they have no score.
        """
        columns = answer_columns(task)
        if self.threshold is not None and "score" not in columns:
            raise InputError("--threshold: the predictions of this run have no score")
        if self.all_scores and not set(columns) & CONSIDERED.keys():
            raise InputError("--all-scores: the predictions of this run have a single result and no other scores")


class Answers:
    """The rows of all inputs with their answers.

    Args:
        task: the run's task.
        inputs: the inputs.
        output: the file to write, whose suffix decides which values are columns of their own.
        options: what the answers contain.

    Raises:
        DataError: if an input cannot be read, or is too large for the output's format.
    """

    def __init__(self, task: Task, inputs: Sequence[Input], output: Path, options: AnswerOptions) -> None:
        self._task, self._inputs, self._options = task, inputs, options
        self._nested = output.suffix.lower() in NESTED
        self.given = list(dict.fromkeys(chain.from_iterable(columns_of(each.read()) for each in inputs)))
        if output.suffix.lower() == ".xlsx":
            check_excel(raw.values or {} for each in inputs for raw in each.read())

    def table(self, records: Iterable[Record]) -> OutputTable:
        """Returns the table of all rows.

        Args:
            records: the records of the usable rows, in order; iterated over in every pass.
        """
        file = [FILE] if len(self._inputs) > 1 else []
        unsure = [] if self._options.threshold is None else [UNSURE]
        names = _free_names([*file, *self._added(next(iter(records))), *unsure, ERROR], self.given)
        style = self._inputs[0].style
        return OutputTable([*self.given, *names.values()], lambda: self._rows(records, names), *style)

    def _rows(self, records: Iterable[Record], names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        answers = iter(records)
        for each in self._inputs:
            for raw, reason in each.rows():
                found = {FILE: each.name, ERROR: reason}
                if reason is None:
                    found |= self._answer(answers, each.name)
                own = {column: found.get(column) for column in names}
                yield carried(raw) | {names[column]: value for column, value in own.items()}
        if next(answers, None) is not None:
            raise _changed("an input")

    def _answer(self, records: Iterator[Record], name: str) -> dict[str, Any]:
        record = next(records, None)
        if record is None:
            raise _changed(name)
        added = self._added(record)
        threshold = self._options.threshold
        return added if threshold is None else added | {UNSURE: added["score"] < threshold}

    def _added(self, record: Record) -> dict[str, Any]:
        """Returns the task's columns, with columns of their own for the parts of mappings if the format is flat."""
        added: dict[str, Any] = {}
        for name, value in answer(self._task, record).items():
            if self._nested or (name not in CONSIDERED and not isinstance(value, Mapping)):
                added[name] = value
            elif name not in CONSIDERED or self._options.all_scores:
                short = CONSIDERED.get(name, name)
                parts = value.items() if isinstance(value, Mapping) else [("", value)]
                added |= {f"{short}_{part}".removesuffix("_"): number for part, number in parts}
        return added


def carried(raw: RawRow) -> dict[str, Any]:
    """Returns a row's values as they are in the input; bytes that are not text are written as escapes."""
    if raw.reason is None:
        return dict(raw.values or {})
    return {
        name: flat(value).encode("utf-8", "backslashreplace").decode() if not_text(value) else value
        for name, value in (raw.values or {}).items()
    }


def _free_names(wanted: Sequence[str], taken: Sequence[str]) -> dict[str, str]:
    """Returns a name for every new column that the input does not have: `prediction`, else `prediction_2` and so on."""
    return {
        name: next(free for n in count(1) if (free := name if n == 1 else f"{name}_{n}") not in taken)
        for name in wanted
    }


def _changed(name: str) -> DataError:
    return DataError(f"{name} was changed while its rows were predicted; predict it again")
