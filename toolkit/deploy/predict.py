"""`toolkit predict`: reads and checks files, folders and texts, and writes or shows their rows with the answers."""

from __future__ import annotations

import codecs
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import Any

from toolkit.api.batch import Omission, Predictions
from toolkit.api.task import Task
from toolkit.base.console import counted, format_value, print_lines, progress, say, shorten, warn
from toolkit.base.errors import DataError, InputError
from toolkit.base.files import expanded, read_json, sha256, write_json, write_text
from toolkit.config.fields import Column
from toolkit.config.messages import join
from toolkit.config.paths import sheet_of
from toolkit.config.templates import escaped, is_template, parts_of
from toolkit.data.columns import LONG_NAME, columns_in, columns_of, roles
from toolkit.data.readers import RawRow, not_text
from toolkit.data.readers.delimited import DELIMITERS, recognise
from toolkit.data.readers.encodings import UTF_8
from toolkit.data.readers.raw import Reading
from toolkit.data.row_cache import code_fingerprint
from toolkit.data.sources import is_files, read_rows
from toolkit.data.table import (
    NUMBER,
    PEEKED_ROWS,
    PREVIEW,
    REASON,
    BadRowReport,
    RowSource,
    Table,
    checked_rows,
    file_source,
    given_source,
    given_table,
    listing,
    markup_notes,
    table_of,
)
from toolkit.data.tokenise import TOKENISERS
from toolkit.data.writers import NESTED, OutputTable, check_excel, flat, write_table
from toolkit.deploy.trained import TrainedRun
from toolkit.distributed.collectives import on_main, peers_of_run
from toolkit.report.scores import described
from toolkit.system.environment import versions
from toolkit.tasks.records import LazyRecords


@dataclass(frozen=True)
class Input:
    """Rows to predict."""

    name: str
    source: RowSource
    columns: Mapping[str, str]
    read: Callable[[], Iterator[RawRow]]  # returns the rows as they are in the file, in the order of the source
    style: tuple[str, bool] = (",", False)
    """For answers as CSV: the delimiter, and whether they begin with a byte order mark, as the file or for Excel."""


def file_inputs(run: TrainedRun, files: Sequence[str], labelled: bool = False) -> list[Input]:
    """Returns the rows of files and folders, which are not read yet. Raises DataError if one cannot be opened."""
    return [_file_input(run, file, labelled) for file in files]


def _file_input(run: TrainedRun, file: str, labelled: bool) -> Input:
    reading = Reading.of(run.cfg.data)
    columns = columns_for(file, run.task, run.cfg.data.columns, reading)
    source = file_source(file, run.task, columns, labelled, reading=reading)
    as_they_are = replace(reading, unescape_html=False, strip_html=False)
    read = partial(read_rows, file, as_they_are, labelled=labelled)
    return Input(file, source, columns_in(file, run.task, columns), read, _style(file, reading))


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
    reading = Reading.of(run.cfg.data)
    given_table(rows, run.task, columns, labelled, reading)
    return Input("--input-text", given_source(rows, reading), columns, partial(map, RawRow, count(1), rows))


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


Line = list[dict[str, Any]] | dict[str, str]
"""The answers to a row, or why it has none, as `{error: reason}`."""


class Answers:
    """The rows of all inputs with their answers, for an output whose suffix decides which values are columns."""

    def __init__(self, inputs: Sequence[Input], given: Sequence[str], output: Path, options: AnswerOptions) -> None:
        self.inputs, self.given, self._options = inputs, given, options
        self._nested = output.suffix.lower() in NESTED

    def table(self, lines: Iterable[Line]) -> OutputTable:
        """Returns the table of all rows; their answers, in order, are iterated over in every pass."""
        first = next(line for line in lines if isinstance(line, list))
        file = [FILE] if len(self.inputs) > 1 else []
        unsure = [] if self._options.threshold is None else [UNSURE]
        names = _free_names([*file, *self._added(first[0]), *unsure, ERROR], self.given)
        style = self.inputs[0].style
        return OutputTable([*self.given, *names.values()], lambda: self._rows(lines, names), *style)

    def _rows(self, lines: Iterable[Line], names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        left = iter(lines)
        shown = (lambda value: value) if self._nested else _rounded
        for each in self.inputs:
            for raw in each.read():
                line = next(left, None)
                if line is None:
                    raise _changed(each.name)
                own = [*map(self._decided, line)] if isinstance(line, list) else [line]
                for found in own:
                    found[FILE] = each.name
                    yield carried(raw) | {name: shown(found.get(column)) for column, name in names.items()}
        if next(left, None) is not None:
            raise _changed("an input")

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
PARTS, PART_ROWS, PART_BATCHES = 16, 4096, 8
"""Parts of the rows (at least), rows of a part (at most, unless its batches are larger) and its batches (at least).

They do not follow from the number of processes, since the rows of a batch have an effect on the last digits.
"""
PARTIAL = ".partial"
IDENTITY = "identity.json"


def answer(
    run: TrainedRun,
    inputs: Sequence[Input],
    output: Path | None,
    options: AnswerOptions,
    skips_rows: bool,
    identity: Mapping[str, Any],
) -> None:
    """Writes the rows of the inputs with their answers to `output` (None: the terminal), and shows the first ones.

    Rows are read, prepared and predicted in parts, which processes share. Their answers are in `OUTPUT.partial` until
    all are there; a call with the same `identity` (of the model and the options), rows and software goes on with them.
    With `skips_rows`, unusable rows have the column `error` instead of a prediction. Raises DataError if no row can be
    used, or any cannot and may not be skipped, or an input has changed.
    """
    if options.threshold is not None and (limits := run.task.state.get("decision", {}).get("thresholds")):
        limits.update(dict.fromkeys(limits, options.threshold))
    labelled = options.labelled
    given, counts = on_main(run.accelerator, _survey, run, inputs, output, output is None or not skips_rows, labelled)
    plan = _plan(run, counts, labelled)
    if output is None:
        if run.accelerator.is_main_process:
            found = _answered(run, inputs, dict(enumerate(plan)), options)
            lines = [line for _, (_, lines) in found for line in lines]
            _show(Answers(inputs, given, Path("terminal.csv"), options).table(lines), given)
        return
    peers, parts = peers_of_run(), Parts(output.with_name(output.name + PARTIAL), plan)
    software = [code_fingerprint(run.task), {name: versions().get(name) for name in ("torch", *TOKENISERS)}]
    rows = [[each.source.fingerprint, each.source.kind, dict(each.columns)] for each in inputs]
    on_main(run.accelerator, parts.begin, {**identity, "set of rows": rows, "version of the software": software})
    missing = parts.missing()
    peers.objects(None)  # all have seen what is missing
    total = _size(plan)
    if done := total - _size(missing.values()):
        say(f"going on with {parts.folder}, which has the answers to {done:,} of {counted(total, 'row')}")
    own = dict(islice(missing.items(), peers.rank, None, peers.size))
    with progress(total, "predict", initial=done, unit="row") as bar:
        for number, part in _answered(run, inputs, own, options):
            parts.write(number, part)
            if run.accelerator.is_main_process:
                bar.update(total - _size(parts.missing().values()) - bar.n)
    peers.objects(None)  # all parts are there
    on_main(run.accelerator, _finish, Answers(inputs, given, output, options), output, parts)


def _survey(
    run: TrainedRun, inputs: Sequence[Input], output: Path | None, rejects: bool, labelled: bool
) -> tuple[list[str], list[int]]:
    """Returns the columns of all inputs, and the number of rows of each, after the checks that need all rows."""
    given, counts = dict[str, None](), list[int]()
    for each in inputs:
        numbers = count()
        given |= dict.fromkeys(columns_of(raw for raw, _ in zip(each.read(), numbers, strict=False)))
        counts.append(next(numbers))
    if output is not None and output.suffix.lower() == ".xlsx":
        check_excel(raw.values or {} for each in inputs for raw in each.read())
    if rejects:
        every = ((each, checked_rows(each.source, run.task, each.columns, labelled)) for each in inputs)
        if bad := [(each.name, _report(row)) for each, rows in every for row in rows if row[REASON] is not None]:
            raise DataError(f"{len(bad)} of {sum(counts)} rows cannot be used:\n{listing(bad)}")
    return [*given], counts


Piece = tuple[int, range]
"""The place of an input, and places of rows in it."""
Part = tuple[Mapping[str, Any], Iterable[Line]]
"""The answers to the rows of a piece, after what is said at the end: bad rows, omissions and the first predictions."""


def _size(pieces: Iterable[Piece]) -> int:
    return sum(len(places) for _, places in pieces)


def _plan(run: TrainedRun, counts: Sequence[int], labelled: bool) -> list[Piece]:
    """Returns the parts that all rows are divided into, in order."""
    least = PART_BATCHES * run.cfg.eval.per_device_eval_batch_size
    size = max(least, min(PART_ROWS, -(-sum(counts) // PARTS)))
    if run.task.has("regroup") and (labelled or not run.bare_model.can_generate()):  # joined rows have an effect
        size = sum(counts)
    starts = [(place, start) for place, rows in enumerate(counts) for start in range(0, rows, size)]
    return [(place, range(start, min(start + size, counts[place]))) for place, start in starts]


class Parts:
    """The folder of the parts: each is a file, which is whole or not there."""

    def __init__(self, folder: Path, plan: Sequence[Piece]) -> None:
        self.folder, self.plan = folder, plan

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Keeps the parts that were made for the same identity, and removes others."""
        file = self.folder / IDENTITY
        if self.folder.exists():
            known: Any = None
            if not self.folder.is_dir() or (not file.exists() and any(self.folder.iterdir())):
                raise InputError(f"{self.folder} is not a folder of this command; rename it, or use another --output")
            with suppress(OSError, ValueError):
                known = read_json(file)
            if known == identity:
                return
            other = [f"another {name}" for name in identity if (known or {}).get(name) != identity[name]]
            say(f"{self.folder} was made with {join(other, 'and')}: all rows are predicted again")
            shutil.rmtree(self.folder)
        self.folder.mkdir()
        write_json(file, identity)

    def missing(self) -> dict[int, Piece]:
        """Returns the parts that are not there, by number."""
        there = {path.name for path in self.folder.iterdir()}
        return {number: piece for number, piece in enumerate(self.plan) if self._file(number).name not in there}

    def write(self, number: int, part: Part) -> None:
        """Writes a part: a line for each row, after one with their checksum and the rest."""
        body = "".join(json.dumps(line) + "\n" for line in part[1])
        write_text(self._file(number), json.dumps({**part[0], "sha256": sha256(body)}) + "\n" + body)

    def __iter__(self) -> Iterator[Part]:
        """Yields the parts in order; raises DataError, after removing it, if one is not as it was written."""
        for file in map(self._file, range(len(self.plan))):
            head, _, body = file.read_bytes().decode("utf-8", "replace").partition("\n")
            facts: dict[str, Any] = {}
            with suppress(ValueError):
                facts = json.loads(head)
            if facts.get("sha256") != sha256(body):
                file.unlink()
                raise DataError(f"{file} is damaged, and was removed: start the same command again to make it anew")
            yield facts, map(json.loads, body.splitlines())

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06}.jsonl"


def _answered(
    run: TrainedRun, inputs: Sequence[Input], pieces: Mapping[int, Piece], options: AnswerOptions
) -> Iterator[tuple[int, Part]]:
    """Reads, prepares and predicts the rows of parts, one after the other; yields each with its number."""
    for place, group in groupby(pieces.items(), lambda item: item[1][0]):
        each, own = inputs[place], {number: places for number, (_, places) in group}
        rows = checked_rows(each.source, run.task, each.columns, options.labelled, own.values())
        for number, places in own.items():
            found = [*islice(rows, len(places))]
            if len(found) < len(places):
                raise _changed(each.name)
            table = table_of(found, each.source, run.task)
            if not places.start:
                for note in markup_notes(table.rows, each.columns, NUMBER):
                    warn(f"{each.name}, {note}")
            yield number, _part(run.alone(places.start), table, found, options)


def _part(run: TrainedRun, table: Table, rows: Sequence[Mapping[str, Any]], options: AnswerOptions) -> Part:
    """Predicts the usable rows of a part; `rows` are all of them as they were checked."""
    lines, omissions, first = dict[int, Line](), list[Omission](), list[str]()
    if len(table.rows):
        data = run.preprocessed(table.rows, labelled=options.labelled)
        omissions, predictions = run.omissions("input", data), run.predictions(data, inner=True)
        records = run.task.decode(predictions, data)
        found = options.ranking(predictions) if options.ranking else ([run.task.answer(each)] for each in records)
        lines = dict(zip(data.rows[NUMBER][:], found, strict=True))
        if not options.ranking and "prediction" in run.task.answer_columns:
            shown = islice(run.task.decode(predictions, data), SHOWN)
            first = [described(run.task.describe(each)) for each in shown]
    bad = [_report(row) for row in rows if row[NUMBER] not in lines]
    lines |= {each.number: {ERROR: each.reason} for each in bad}
    every = [lines[row[NUMBER]] for row in rows]
    return {"bad": [*map(asdict, bad)], "omissions": [*map(asdict, omissions)], "first": first}, every


def _report(row: Mapping[str, Any]) -> BadRowReport:
    reason = row[REASON] or "nothing of it is left within the limits of the task"
    return BadRowReport(row[NUMBER], reason, json.loads(row[PREVIEW] or "{}"))


def _finish(answers: Answers, output: Path, parts: Parts) -> None:
    """Writes the file from all parts, removes them, and says what is in it."""
    bad, first, found = list[tuple[str, BadRowReport]](), list[str](), dict[str, Omission]()
    for (place, _), (facts, _) in zip(parts.plan, parts, strict=True):
        bad += [(answers.inputs[place].name, BadRowReport(**row)) for row in facts["bad"]]
        first = first or facts["first"]
        for each in (Omission(**fields) for fields in facts["omissions"]):
            before = found.get(each.what, replace(each, count=0, total=0))
            found[each.what] = replace(before, count=before.count + each.count, total=before.total + each.total)
    for source in (each.source for each in answers.inputs):
        if source.digest is not None and source.digest() != source.fingerprint:
            raise _changed(source.name)
    total = _size(parts.plan)
    if len(bad) == total:
        shutil.rmtree(parts.folder)
        raise DataError(f"none of the {total} rows can be used:\n{listing(bad)}")
    write_table(output, answers.table(LazyRecords(lambda: chain.from_iterable(lines for _, lines in parts))))
    shutil.rmtree(parts.folder)
    for omission in found.values():
        say(f"{omission}.")
    if first:
        print_lines("The first predictions", first)
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
