"""`toolkit predict`: reads and checks files, folders and texts, and writes or shows their rows with the answers."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from toolkit.api.batch import EvalData, Predictions
from toolkit.api.task import Task
from toolkit.base.console import counted, format_value, print_lines, say, shorten
from toolkit.base.errors import DataError, InputError
from toolkit.base.files import expanded
from toolkit.config.fields import Column
from toolkit.config.messages import join
from toolkit.config.paths import sheet_of
from toolkit.config.templates import escaped, is_template, parts_of
from toolkit.data.columns import LONG_NAME, columns_of, roles
from toolkit.data.readers import RawRow, not_text
from toolkit.data.readers.delimited import DELIMITERS, recognise
from toolkit.data.readers.encodings import UTF_8
from toolkit.data.readers.raw import Reading
from toolkit.data.sources import is_files, read_rows
from toolkit.data.table import PEEKED_ROWS, Table, apply_policy, given_table, listing, load_table
from toolkit.data.writers import NESTED, OutputTable, check_excel, flat, write_table
from toolkit.deploy.trained import TrainedRun
from toolkit.distributed.collectives import on_main
from toolkit.report.scores import described
from toolkit.system.rank_order import local_main_first
from toolkit.tasks.records import LazyRecords


@dataclass(frozen=True)
class Input:
    """Rows to predict."""

    name: str
    table: Table
    read: Callable[[], Iterator[RawRow]]  # returns the rows as they are in the file, in the order of the table
    style: tuple[str, bool] = (",", False)
    """For answers as CSV: the delimiter, and whether they begin with a byte order mark, as the file or for Excel."""

    def rows(self) -> Iterator[tuple[RawRow, str | None]]:
        """Yields every row as it is in the file, and why it cannot be predicted, or None."""
        reasons = {row.number: row.reason for row in self.table.bad}
        return ((raw, reasons.get(raw.number)) for raw in self.read())


def file_inputs(run: TrainedRun, files: Sequence[str], labelled: bool = False) -> list[Input]:
    """Reads and checks files and folders. Raises DataError if one cannot be read, or lacks a column."""
    with local_main_first(run.accelerator):  # the others use its cache
        return [_file_input(run, file, labelled) for file in files]


def _file_input(run: TrainedRun, file: str, labelled: bool) -> Input:
    reading = Reading.of(run.cfg.data)
    columns = columns_for(file, run.task, run.cfg.data.columns, reading)
    table = load_table(file, run.task, columns, labelled=labelled, reading=reading)
    as_they_are = replace(reading, unescape_html=False, strip_html=False)
    return Input(file, table, partial(read_rows, file, as_they_are, labelled=labelled), _style(file, reading))


def _style(file: str, reading: Reading) -> tuple[str, bool]:
    path = expanded(sheet_of(file)[0])
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv"):
        return ",", suffix == ".xlsx"
    found = recognise(path, reading)
    with path.open("rb") as opened:
        mark = opened.read(3) == codecs.BOM_UTF8
    return (found.delimiter or "," if suffix == ".csv" else ","), mark or found.encoding != UTF_8


def columns_for(file: str, task: Task, columns: Mapping[str, str], reading: Reading) -> Mapping[str, str]:
    """Returns `data.columns` for a file without labels, whose only column is the task's only input."""
    inputs, trained = needed_columns(task), list(roles(task, columns))
    rows = list(islice(read_rows(file, reading, labelled=False), PEEKED_ROWS))
    present = columns_of(iter(rows))
    if Path(file).suffix.lower() == ".txt" and rows and rows[0].values:
        (line,) = rows[0].values.values()
        if (parts := re.split(r"\s*[,;|\t]\s*", line.strip())) and len(parts) > 1 and set(parts) & set(trained):
            raise DataError(f"{file}: its first line, {line!r}, is the header of a table; name the file .csv")
    if is_files(file) or len(present) != 1 or len(inputs) != 1 or len(present[0]) > LONG_NAME:
        return columns
    ((name, column),) = inputs.items()
    if is_template(given := columns.get(name, name)):
        return columns
    held = [each for each in trained if re.search(rf"(?<!\w){re.escape(each)}(?!\w)", present[0])]
    if present[0] not in parts_of(given) and (held or any(each in present[0] for each in DELIMITERS)):
        return columns  # a line that was not divided, or another column
    if present[0] not in (name, *parts_of(given)):
        say(f"{file}: its only column, {present[0]!r}, is read as {name!r} ({column.help})")
    return {**columns, name: escaped(present[0])}


def needed_columns(task: Task) -> dict[str, Column]:
    """Returns the columns that a row needs for a prediction; of several that may replace each other, the first."""
    given = {name: column for name, column in task.read_columns().items() if not column.label}
    required = {name: column for name, column in given.items() if column.required}
    return required or dict(islice(given.items(), 1))


def text_input(run: TrainedRun, texts: Sequence[str], labelled: bool = False) -> Input:
    """Returns the rows of `--input-text`: texts for one input column, otherwise `column=text` or JSON objects.

    A repeated column begins a new row. Raises InputError if the task reads files, or a column is unknown or missing;
    DataError if a text cannot be used.
    """
    columns = run.cfg.data.columns
    inputs = run.task.read_columns() if labelled else needed_columns(run.task)
    if any(column.file for column in inputs.values()):
        raise InputError("--input-text: this run reads files; name them with --input")
    own = {name: parts_of(columns.get(name, name)) for name in inputs}
    names = list(dict.fromkeys(chain.from_iterable(own.values())))
    # The task's own names of columns will do, too.
    meant = {name: parts[0] for name, parts in own.items() if not is_template(columns.get(name, ""))}
    if len(names) == 1 and meant:
        names, columns = list(own), {}
    rows = [{names[0]: text} for text in texts] if len(names) == 1 else _several(texts, names, meant)
    table = given_table(rows, run.task, columns, labelled=labelled, reading=Reading.of(run.cfg.data))
    return Input("--input-text", table, lambda: (RawRow(number, row) for number, row in enumerate(rows, start=1)))


def _several(texts: Sequence[str], names: list[str], meant: Mapping[str, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for given in texts:
        name, equals, text = given.partition("=")
        values: Any = {name: text} if equals else {}
        is_row = given.lstrip().startswith("{")
        if is_row:
            with suppress(ValueError, RecursionError):
                values = json.loads(given)
        read = {each if each in names else meant.get(each, ""): value for each, value in values.items()}
        if not read or len(read) < len(values) or not read.keys() <= {*names}:
            example = " ".join(f'--input-text {each}="..."' for each in names)
            raise InputError(f"--input-text: received {given!r}, but a row has {join(names, 'and')}: {example}")
        if is_row or not rows or read.keys() & rows[-1].keys():
            rows.append({})
        rows[-1] |= read
    for row in rows:
        if missing := [name for name in names if name not in row]:
            raise InputError(f"--input-text: {join(list(row), 'and')} without {join(missing, 'and')}")
    return rows


def _joined(run: TrainedRun, inputs: Sequence[Input], labelled: bool) -> EvalData:
    """Returns the usable rows of all inputs, preprocessed."""
    import datasets

    parts = [each.table.rows for each in inputs if len(each.table.rows)]
    if not parts:
        bad = [(each.name, row) for each in inputs for row in each.table.bad]
        raise DataError(f"none of the {len(bad)} rows can be used:\n{listing(bad)}")
    rows = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    with local_main_first(run.accelerator):
        return run.preprocessed(rows, labelled=labelled)


CONSIDERED = {"scores": "score", "n_best": "n_best"}
"""Columns of `Task.answer_columns` that tables have only with `all_scores`, and their names there."""
FILE, UNSURE, ERROR = "file", "unsure", "error"


@dataclass(frozen=True)
class AnswerOptions:
    """The contents of the answers."""

    threshold: float | None = None  # adds the column `unsure`, whether the score is below; None adds none
    all_scores: bool = False  # whether tables have a column for every class
    # returns the rows of answers, several per row, from predictions of all; None for the task's answers
    ranking: Callable[[Predictions], Iterable[list[dict[str, Any]]]] | None = None
    labelled: bool = False  # whether given answers are scored instead

    def check(self, task: Task) -> None:
        """Raises InputError if the task's predictions have no scores and these options need them."""
        if self.labelled and not task.scorable:
            raise InputError(f"--score: {type(task).__name__} has no score of given answers; use toolkit evaluate")
        columns = task.answer_columns
        if (
            self.threshold is not None
            and "score" not in columns
            and not task.state.get("decision", {}).get("thresholds")
        ):
            raise InputError("--threshold: the predictions of this run have no score")
        if self.all_scores and not set(columns) & CONSIDERED.keys():
            raise InputError("--all-scores: the predictions of this run have a single result and no other scores")


class Answers:
    """The rows of all inputs with their answers, for an output whose suffix decides which values are columns."""

    def __init__(self, task: Task, inputs: Sequence[Input], output: Path, options: AnswerOptions) -> None:
        self._task, self._inputs, self._options = task, inputs, options
        self._nested = output.suffix.lower() in NESTED
        self.given = list(dict.fromkeys(chain.from_iterable(columns_of(each.read()) for each in inputs)))
        if output.suffix.lower() == ".xlsx":
            check_excel(raw.values or {} for each in inputs for raw in each.read())

    def table(self, answers: Iterable[Sequence[dict[str, Any]]]) -> OutputTable:
        """Returns the table of all rows; the answers to the usable ones, in order, are iterated over in every pass."""
        file = [FILE] if len(self._inputs) > 1 else []
        unsure = [] if self._options.threshold is None else [UNSURE]
        names = _free_names([*file, *self._added(next(iter(answers))[0]), *unsure, ERROR], self.given)
        style = self._inputs[0].style
        return OutputTable([*self.given, *names.values()], lambda: self._rows(answers, names), *style)

    def _rows(self, answers: Iterable[Sequence[dict[str, Any]]], names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        left = iter(answers)
        shown = (lambda value: value) if self._nested else _rounded
        for each in self._inputs:
            for raw, reason in each.rows():
                own = [{ERROR: reason}] if reason is not None else [*map(self._decided, self._next(left, each.name))]
                for found in own:
                    found[FILE] = each.name
                    yield carried(raw) | {name: shown(found.get(column)) for column, name in names.items()}
        if next(left, None) is not None:
            raise _changed("an input")

    def _next(self, answers: Iterator[Sequence[dict[str, Any]]], name: str) -> Sequence[dict[str, Any]]:
        found = next(answers, None)
        if found is None:
            raise _changed(name)
        return found

    def _decided(self, answer: dict[str, Any]) -> dict[str, Any]:
        added, threshold = self._added(answer), self._options.threshold
        return added if threshold is None or "score" not in added else added | {UNSURE: added["score"] < threshold}

    def _added(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Returns the task's columns, with columns of their own for the parts of mappings if the format is flat."""
        added: dict[str, Any] = {}
        for name, value in answer.items():
            if self._nested or (name not in CONSIDERED and not isinstance(value, Mapping)):
                added[name] = value
            elif name not in CONSIDERED or self._options.all_scores:
                short = CONSIDERED.get(name, name)
                parts = value.items() if isinstance(value, Mapping) else [("", value)]
                added |= {f"{short}_{part}".removesuffix("_"): number for part, number in parts}
        return added


def _rounded(value: Any) -> Any:
    """Returns a value whose numbers, at any depth, have six significant digits, or six decimals if they are large."""
    if isinstance(value, float):
        return round(value, 6) if abs(value) >= 1 else float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _rounded(part) for name, part in value.items()}
    return [*map(_rounded, value)] if isinstance(value, list) else value


def carried(raw: RawRow) -> dict[str, Any]:
    """Returns a row's values unchanged, but bytes that are not text as escapes."""
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


SHOWN = 3
"""Number of predictions, and of unusable rows, that are shown."""


def answer(
    run: TrainedRun, inputs: Sequence[Input], output: Path | None, options: AnswerOptions, skips_rows: bool
) -> None:
    """Writes the rows of the inputs with their answers to `output` (None: the terminal), and shows the first ones.

    With `skips_rows`, unusable rows have the column `error` instead of a prediction. Raises DataError if no row can be
    used, or any cannot and may not be skipped, or an input has changed.
    """
    if output is None or not skips_rows:
        apply_policy({each.name: each.table for each in inputs}, "error")
    data = _joined(run, inputs, options.labelled)
    if options.threshold is not None and (limits := run.task.state.get("decision", {}).get("thresholds")):
        limits.update(dict.fromkeys(limits, options.threshold))
    answers = Answers(run.task, inputs, output or Path("terminal.csv"), options)
    for each in run.omissions("input", data):
        say(f"{each}.")
    predictions = run.predictions(data)

    def found() -> Iterable[Sequence[dict[str, Any]]]:
        if options.ranking is not None:
            return [*options.ranking(predictions)]
        records = run.task.decode(predictions, data)
        return LazyRecords(lambda: ([run.task.answer(record)] for record in records))

    if output is None:
        if run.accelerator.is_main_process:
            _show(answers.table(found()), answers.given)
        return

    def write() -> list[str]:
        write_table(output, answers.table(found()))
        shown = options.ranking is None and "prediction" in run.task.answer_columns
        records = islice(run.task.decode(predictions, data), SHOWN) if shown else ()
        return [described(run.task.describe(record)) for record in records]

    if lines := on_main(run.accelerator, write):
        print_lines("The first predictions", lines)
    bad = [(each.name, row) for each in inputs for row in each.table.bad]
    total = len(data.rows) + len(bad)
    if bad:
        say(f"{len(bad)} of {total} rows have no prediction, see the column `error`:", blank_line_before=True)
        say(listing(bad, SHOWN))
    say(f"the predictions of {counted(total, 'row')} are in {output}", blank_line_before=True)


def _show(table: OutputTable, given: Sequence[str]) -> None:
    for row in table.rows():
        say("")
        for name in table.columns:
            value = row[name]
            text = format_value(value) if isinstance(value, float) else flat(value)
            if text:
                say(f"{name}: {shorten(text) if name in given else text}")
