"""Checked tables: rows with the toolkit's column names, each checked once and cached as Arrow."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from toolkit.api.batch import BadRow, ExcludedRow, Omission, Row
from toolkit.api.task import Task
from toolkit.base.console import say, warn
from toolkit.base.errors import DataError
from toolkit.base.files import sha256, written_whole
from toolkit.config.messages import join
from toolkit.config.templates import named, parts_of
from toolkit.data import sources
from toolkit.data.columns import (
    NO_COLUMNS,
    Beside,
    columns_in,
    file_columns,
    is_needed,
    is_ragged,
    require_present,
    value_in,
)
from toolkit.data.keys import GROUP, INPUTS, LABEL, Keys, row_keys
from toolkit.data.media.archives import reopen
from toolkit.data.media.files import content_digest, is_archive, named_as_before, reference, with_former_names
from toolkit.data.readers.arrow import python_rows
from toolkit.data.readers.raw import RECOGNISED, TAG, RawRow, Reading, preview
from toolkit.data.row_cache import code_fingerprint, decoders, from_cache
from toolkit.data.sources import hub_rows, load_hub

if TYPE_CHECKING:
    import datasets


NUMBER = "_number"
"""Column of a table: the number of the row in its file."""
FILE = "_file"
"""Column of a table: the name of the row's file, if rows of several are read together; otherwise None."""
PEEKED_ROWS = 100
IDENTIFIER = "_id"
"""Column of a table: the row's value in `data.id_column`, as text."""
SLICES = "_slices"
"""Column of a table: the row's values in `eval.slices`, as texts; None for an empty one."""
REASON, PREVIEW, EXCLUDED = "_reason", "_preview", "_excluded"
"""Columns of the cache that describe an unusable row."""


@dataclass(frozen=True)
class RowSource:
    """A stream of raw rows, and its key in the cache."""

    name: str
    fingerprint: str
    kind: str
    large: bool
    read: Callable[[], Iterator[RawRow]]
    folder: Path  # the folder that relative paths in the rows start from
    beside: Beside = NO_COLUMNS  # columns that the task does not read
    copies: Path | None = None  # the folder with copies of files (see `toolkit.data.media.files.reference`)
    digest: Callable[[], str] | None = None  # returns the fingerprint of the present content; None if it cannot change


CHECKED = [REASON, PREVIEW, EXCLUDED, INPUTS, LABEL, GROUP]
"""Columns of the cache that say what a check has found."""


def checked_features(task: Task) -> datasets.Features:
    """Returns the `datasets` feature types of the rows of `checked_rows`."""
    import datasets

    text, number = datasets.Value("string"), datasets.Value("int64")
    digests = dict.fromkeys((INPUTS, LABEL, GROUP), number)
    found = {REASON: text, PREVIEW: text, EXCLUDED: datasets.Value("bool")}
    own = {NUMBER: number, FILE: text, IDENTIFIER: text, SLICES: datasets.Sequence(text)}
    return datasets.Features({**task.schema(), **own, **found, **digests})


def checked_rows(
    source: RowSource, task: Task, columns: Mapping[str, str], labelled: bool, parts: Iterable[range] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields every row, usable or not, in the form of the cache; raises DataError as `load_table`.

    `parts` are the places of the rows to yield, in ascending order; others are only read. None means all.
    """
    raw = source.read()
    first = list(islice(raw, PEEKED_ROWS))
    every = source.read if is_ragged(source.name) else None
    require_present(source.name, first, every, task, columns, labelled, source.beside)
    names, no_keys = list(task.schema()), dict.fromkeys((INPUTS, LABEL, GROUP), 0)
    rows = chain(first, raw)
    for row in rows if parts is None else _chosen(rows, parts):
        values, beside = row.values or {}, source.beside
        group, *given = (each and value_in(values, each) for each in (beside.group, beside.id, *beside.slices))
        texts = [None if value is None else str(value) for value in given]
        number = {NUMBER: row.number, FILE: beside.file, IDENTIFIER: texts[0], SLICES: texts[1:]}
        try:
            checked = check_raw(row, task, columns, labelled, source.folder, source.copies)
        except BadRow as bad:
            excluded = isinstance(bad, ExcludedRow)
            found = {REASON: str(bad), PREVIEW: preview(row.values), EXCLUDED: excluded}
            yield {**dict.fromkeys(names), **number, **found, **no_keys}
        else:
            own = {name: checked[name] for name in names}
            keys = row_keys(own, task, group) if labelled else no_keys
            yield {**own, **number, REASON: None, PREVIEW: None, EXCLUDED: False, **keys}


def _chosen(rows: Iterator[RawRow], parts: Iterable[range]) -> Iterator[RawRow]:
    place = 0
    for part in parts:
        yield from islice(rows, part.start - place, part.stop - place)
        place = part.stop


def check_raw(
    raw: RawRow, task: Task, columns: Mapping[str, str], labelled: bool, folder: Path, copies: Path | None = None
) -> Row:
    """Returns a raw row as the task's checked row.

    Args:
        raw: a row of a reader.
        task: the task, which defines the columns and checks rows.
        columns: maps the toolkit's column names to the source's.
        labelled: whether label columns are needed.
        folder: the folder that relative paths in the row start from.
        copies: as for `load_table`.

    Raises:
        BadRow: with the reason, if the row cannot be used, or the task's options exclude it.
    """
    if raw.reason or raw.values is None:
        raise BadRow(raw.reason)
    row: Row = {}
    for name, column in task.read_columns().items():
        given = columns.get(name, name)
        value = value_in(raw.values, given) if labelled or not column.label else None
        if is_needed(column, labelled) and (value is None or (isinstance(value, str) and not value.strip())):
            raise BadRow(f"{named(given)} {'is' if len(parts_of(given)) == 1 else 'are'} empty")
        row[name] = reference(value, folder, raw.number, copies) if column.file and value is not None else value
    return task.check_row(row, labelled)


ENTITY = r"&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]+);"


def markup_notes(rows: Any, columns: Mapping[str, str], number: str) -> Iterator[str]:
    """Yields a note on each text column of checked rows with HTML entities or tags: their number and an example."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in rows.column_names:
        texts = rows.data.column(name)
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            continue
        found = []
        for kind, pattern, hint in (
            ("entities", ENTITY, "data.unescape_html=true decodes them"),
            ("tags", TAG, "data.strip_html=true removes them"),
        ):
            matches = pc.match_substring_regex(texts, pattern)
            if count := pc.sum(matches).as_py():
                place = pc.index(matches, True).as_py()
                example = pc.extract_regex(texts[place], f"(?P<found>{pattern})").as_py()["found"]
                row = rows.data.column(number)[place].as_py()
                total = len(texts) - texts.null_count
                found.append(f"{count} of {total} texts have HTML {kind} ({example} in row {row}; {hint})")
        if found:
            yield f"{named(columns.get(name, name))}: {' and '.join(found)}"


@contextmanager
def progress_bars(shown: bool) -> Iterator[None]:
    """Shows the progress bars of `datasets` inside the block only if `shown`."""
    import datasets

    if shown or datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


def generated(
    rows: Callable[[], Iterator[Row]],
    folder: Path,
    fingerprint: str,
    shown: bool,
    features: datasets.Features | None = None,
) -> datasets.Dataset:
    """Writes generated rows into a folder, or opens those that are there; progress bars are shown only if `shown`."""
    import datasets

    try:
        with progress_bars(shown):
            return datasets.Dataset.from_generator(
                rows, features=features, cache_dir=str(folder), fingerprint=fingerprint
            )
    except datasets.exceptions.DatasetGenerationError as error:  # wraps whatever the generator raises
        raise (error.__cause__ or error) from None


PROGRESS_FROM_BYTES = 2**26


@dataclass(frozen=True)
class BadRowReport:
    """An unusable row: its number in the source, the reason, and a short preview of its columns."""

    number: int
    reason: str
    values: dict[str, str]


@dataclass(frozen=True)
class Table:
    """The checked rows of a source."""

    rows: datasets.Dataset  # the usable rows in file order, with the columns of `Task.schema` and `_number`
    bad: list[BadRowReport]  # the unusable rows, in file order
    fingerprint: str  # sha256 of the file, or the hub dataset's id, revision and content
    source: str  # the file or hub split, for messages
    keys: Keys  # digests of the usable rows; those of rows without labels are all 0
    # number of rows that the task's options exclude, by reason
    excluded: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, Table] = field(default_factory=dict)  # tables of several files by `FILE`, with the bad rows

    @classmethod
    def of_files(cls, parts: Mapping[str, Table]) -> Table:
        """Returns the table of the usable rows of several files, in their order."""
        names, digests = zip(*((each.source, each.fingerprint) for each in parts.values()), strict=True)
        rows = reduce(cls.joined, parts.values())
        return Table(rows.rows, [], sha256("".join(digests)), join(names, "and"), rows.keys, parts=parts)

    @property
    def files(self) -> list[Table]:
        """The tables of its files: itself, unless there are several."""
        return [*self.parts.values()] or [self]

    def select(self, places: np.ndarray) -> Table:
        """Returns the table of the usable rows at the given places."""
        return replace(self, rows=self.rows.select(places), keys=self.keys.select(places))

    def joined(self, other: Table) -> Table:
        """Returns the table with the usable rows of another one behind its own."""
        from datasets import concatenate_datasets

        return replace(self, rows=concatenate_datasets([self.rows, other.rows]), keys=self.keys.joined(other.keys))

    def head(self, limit: int | None) -> Table:
        """Returns the table of the first `limit` rows, of several files in proportion; of all if None or too large."""
        if limit is None or limit >= len(self.rows):
            return self
        files, share = np.array(self.rows[FILE][:]), np.zeros(len(self.rows))
        for name in self.parts:
            share[files == name] = np.linspace(0, 1, (files == name).sum(), endpoint=False)
        return self.select(np.sort(np.argsort(share, kind="stable")[:limit]))


@dataclass(frozen=True)
class HubSplit:
    """One split of a hub dataset; the other values are those of `toolkit.data.sources.load_hub`."""

    name: str
    config: str | None
    revision: str | None
    split: str
    offline_dir: str | None = None


def load_table(
    source: sources.Source | HubSplit,
    task: Task,
    columns: Mapping[str, str],
    labelled: bool,
    cache_dir: str | Path | None = None,
    sample: int | None = None,
    reading: Reading = RECOGNISED,
    beside: Beside = NO_COLUMNS,
    copies: Path | None = None,
) -> Table:
    """Reads and checks a source; a second call with the same content, task and settings reads the cache.

    Args:
        source: what `toolkit.data.sources.read_rows` reads, or a split of a hub dataset.
        task: the task, which defines the columns and checks rows.
        columns: `data.columns`, see `toolkit.data.columns.columns_in`.
        labelled: whether label columns are needed; otherwise they are None.
        cache_dir: folder of the Arrow cache; None means that of `datasets`.
        sample: keep only this many rows, evenly spaced; None keeps all.
        reading: how to read files; recognised settings are logged.
        beside: columns that the task does not read.
        copies: a folder that stands for the root of the file system, with copies of the files; None if there are none.

    Raises:
        DataError: if the source cannot be read, or lacks a column or split.
    """
    if isinstance(source, HubSplit):
        of_hub = _hub_source(source, cache_dir, sample, reading, beside)
        return _build(of_hub, task, columns, labelled, cache_dir)
    with named_as_before(copies):
        from_file = file_source(source, task, columns, labelled, sample, reading, beside, copies)
        return _build(from_file, task, columns_in(source, task, columns), labelled, cache_dir)


def file_source(
    source: sources.Source,
    task: Task,
    columns: Mapping[str, str],
    labelled: bool,
    sample: int | None = None,
    reading: Reading = RECOGNISED,
    beside: Beside = NO_COLUMNS,
    copies: Path | None = None,
) -> RowSource:
    """Returns the raw rows of a file or folder, and logs how it is read; arguments and errors as for `load_table`."""
    sampled = "" if sample is None else f":{sample}"
    place, how = sources.place_of(source, copies), reading.fingerprint
    columns = columns_in(source, task, columns)
    if is_archive(folder := sources.folder_of(place)):
        reopen(folder)
    else:
        folder = sources.folder_of(source)

    def rows() -> Iterator[RawRow]:
        return sources.spread(sources.read_rows(place, reading, labelled), sample)

    def digest() -> str:
        key = sources.fingerprint(source if how == "stat" else place, how) + sampled
        files = file_columns(source, task, columns)
        return content_digest(key, rows(), files, folder, copies, how) if files else key

    for note in sources.reading_notes(place, reading):
        say(with_former_names(note, copies))
    key, name = digest(), sources.name_of(source)
    kind = f"{Path(name).suffix.lower()} {reading}"  # the same bytes are other rows under another suffix
    large = sources.num_bytes(source) >= PROGRESS_FROM_BYTES
    return RowSource(name, key, kind, large, rows, folder, beside, copies, digest)


def _hub_source(
    hub: HubSplit, cache_dir: str | Path | None, sample: int | None, reading: Reading, beside: Beside
) -> RowSource:
    sampled = "" if sample is None else f":{sample}"
    splits = load_hub(hub.name, hub.config, hub.revision, cache_dir, hub.offline_dir)
    if hub.split not in splits:
        raise DataError(f"data.dataset_name: {hub.name!r} has no split {hub.split!r}; it has {', '.join(splits)}.")
    rows = splits[hub.split]
    key = f"{hub.name}@{hub.revision or 'main'}:{hub.split}:{rows._fingerprint}{sampled}"

    def read() -> Iterator[RawRow]:
        return sources.spread(hub_rows(rows, reading), sample)

    large = (rows.dataset_size or 0) >= PROGRESS_FROM_BYTES
    return RowSource(f"{hub.name} ({hub.split})", key, f"hub {reading}", large, read, Path(), beside)


def _build(
    source: RowSource, task: Task, columns: Mapping[str, str], labelled: bool, cache_dir: str | Path | None
) -> Table:
    features = checked_features(task)
    key = _cache_key(source, task, columns, labelled, features)

    def rows() -> Iterator[Row]:
        return _unchanged(source, checked_rows(source, task, columns, labelled))

    built = from_cache(key, lambda folder: generated(rows, folder, key, source.large, features), cache_dir)
    table = split_bad(built, source)
    for note in markup_notes(table.rows, columns, NUMBER):
        warn(f"{source.name}, {note}")
    return table


def _unchanged(source: RowSource, rows: Iterator[Row]) -> Iterator[Row]:
    """Yields rows; raises DataError at the end if their source has changed, since the cache's key is of its content."""
    yield from rows
    if source.digest is not None and source.digest() != source.fingerprint:
        raise DataError(
            f"{source.name}, or a file that its rows refer to, changed while it was read. Start again when it is whole."
        )


def split_bad(built: datasets.Dataset, source: RowSource) -> Table:
    """Returns a table of the rows of `checked_rows`: the usable rows, and reports of the others."""
    good = built.data.column(REASON).is_null().to_numpy()
    rows = built if good.all() else built.select(np.flatnonzero(good))
    others = list(built.select_columns([NUMBER, REASON, PREVIEW, EXCLUDED]).select(np.flatnonzero(~good)))
    return _split(rows.remove_columns(CHECKED), others, Keys.of_columns(rows), source)


def _split(rows: datasets.Dataset, others: list[dict[str, Any]], keys: Keys, source: RowSource) -> Table:
    bad = [BadRowReport(row[NUMBER], row[REASON], json.loads(row[PREVIEW])) for row in others if not row[EXCLUDED]]
    excluded = Counter(row[REASON] for row in others if row[EXCLUDED])
    return Table(rows, bad, source.fingerprint, source.name, keys, excluded)


def _cache_key(
    source: RowSource, task: Task, columns: Mapping[str, str], labelled: bool, features: datasets.Features
) -> str:
    with_files = any(each.file for each in task.read_columns().values())
    # Rows that refer to files hold absolute paths, so the same table in another folder needs another key.
    folder = str((source.folder, source.copies)) if with_files else None
    tools = decoders() if with_files else None
    parts = [code_fingerprint(task), source.fingerprint, source.kind, folder, tools, dict(columns), labelled,
             str(source.beside), type(task).__qualname__, repr(getattr(task, "options", None)), task.state,
             features.to_dict()]  # fmt: skip
    return sha256(json.dumps(parts, sort_keys=True, default=str))


def row_names(columns: Any) -> list[int | str]:
    """Returns what messages call rows, given their columns: their numbers, after the file if there are several."""
    pairs = zip(columns[FILE][:], columns[NUMBER][:], strict=True)
    return [number if file is None else f"{file}:{number}" for file, number in pairs]


LISTED_ROWS, LISTED_NUMBERS = 20, 5
LISTED_REASONS = 3
_VALUES = re.compile(r"(?<!column )(?:'[^']*'|\"[^\"]*\")|0x[0-9a-f]+|\d+")
"""What may differ between rows with the same reason: numbers, and quoted values other than names of columns."""


def apply_policy(tables: Mapping[str, Table], policy: str, most: float = 1.0) -> dict[str, int]:
    """Applies `data.bad_rows` and `data.max_bad_rows` to tables and returns the number of bad rows of each.

    Args:
        tables: tables by split.
        policy: `error` or `skip`.
        most: with `skip`, the largest fraction of bad rows in a table.

    Raises:
        DataError: with policy `error` if any row is bad (lists the first reasons); with `skip` if more than a fraction
            `most` of a table's rows are, or all of them.
    """
    files = [file for table in tables.values() for file in table.files]
    bad = [(table.source, row) for table in files for row in table.bad]
    total = sum(len(table.rows) + len(table.bad) for table in files)
    if bad and policy == "error":
        raise DataError(
            f"{len(bad)} of {total} rows cannot be used:\n{listing(bad)}\n"
            "Correct them, or skip them with data.bad_rows=skip, which lists them all in bad_rows.jsonl."
        )
    for table in files:
        count, everything = len(table.bad), len(table.rows) + len(table.bad)
        if not len(table.rows):
            bad_ones = listing([(table.source, row) for row in table.bad])
            everything += sum(table.excluded.values())
            reasons = "\n".join([*([bad_ones] if count else []), *(f"  {line}" for line in exclusions(table))])
            raise DataError(f"{table.source}: none of its {everything} rows can be used:\n{reasons}")
        if count > most * everything:
            raise DataError(
                f"{skipped(table)}; data.max_bad_rows={most:g} allows {most:.0%}. Correct them, or set "
                f"data.max_bad_rows to at least {math.ceil(1000 * count / everything) / 1000:g}."
            )
    return {split: sum(len(file.bad) for file in table.files) for split, table in tables.items()}


def skipped(table: Table) -> Omission:
    """Returns the rows of a table that cannot be used, and the reasons, most frequent first.

    Reasons that differ only in numbers and quoted values are counted together.
    """
    reasons: dict[str, list[BadRowReport]] = {}
    for row in table.bad:
        reasons.setdefault(_VALUES.sub("…", _problem_of_file(row) or row.reason), []).append(row)
    most = sorted(reasons.values(), key=len, reverse=True)
    shown = [f"{rows[0].reason} ({len(rows):,}, first in row {rows[0].number})" for rows in most[:LISTED_REASONS]]
    more = [f"{len(most) - LISTED_REASONS} other reasons"] if len(most) > LISTED_REASONS else []
    total = len(table.rows) + len(table.bad)
    return Omission("rows cannot be used", len(table.bad), total, "; ".join([*shown, *more]), table.source)


def exclusions(table: Table) -> list[Omission]:
    """Returns the rows of a table that the task's options exclude, by reason."""
    total = len(table.rows) + len(table.bad) + sum(table.excluded.values())
    return [Omission("rows excluded", count, total, reason, table.source) for reason, count in table.excluded.items()]


def write_bad_rows(tables: Mapping[str, Table], path: str | Path) -> None:
    """Writes each bad row as a JSON line `{file, row, reason, values}`; the file is written atomically."""
    with written_whole(Path(path)) as file:
        for table in chain.from_iterable(each.files for each in tables.values()):
            for row in table.bad:
                record = {"file": table.source, "row": row.number, "reason": row.reason, "values": row.values}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def listing(bad: list[tuple[str, BadRowReport]], most: int = LISTED_ROWS) -> str:
    """Returns bad rows with their sources, in at most `most` lines and one for the rest.

    Rows with the same problem share a line; a reason that begins with a file's name has that of the first row.
    """
    alike: dict[tuple[str, str], list[BadRowReport]] = {}
    for source, row in bad:
        alike.setdefault((source, _problem_of_file(row) or row.reason), []).append(row)
    shown = list(alike.items())[:most]
    lines = [f"  {source}, {_numbers(rows)}: {rows[0].reason}" for (source, _), rows in shown]
    more = len(bad) - sum(len(rows) for _, rows in shown)
    return "\n".join([*lines, *([f"  and {more} more"] if more else [])])


def _numbers(rows: Sequence[BadRowReport]) -> str:
    first, more = [str(row.number) for row in rows[:LISTED_NUMBERS]], len(rows) - LISTED_NUMBERS
    listed = join([*first, f"{more:,} more"] if more > 0 else first, "and")
    return f"row{'s' * (len(rows) > 1)} {listed}"


def _problem_of_file(row: BadRowReport) -> str | None:
    """Returns the reason without the file's name if it begins with that, or None."""
    return next((row.reason[len(name) :] for name in row.values.values() if row.reason.startswith(f"{name}: ")), None)


NAME = "rows"
"""The name of these rows in messages."""


def given_table(
    rows: Any, task: Task, columns: Mapping[str, str], labelled: bool, reading: Reading = RECOGNISED
) -> Table:
    """Checks rows that are passed as Python objects.

    Args:
        rows: a list of dictionaries, a `datasets.Dataset`, or a pandas data frame, whose missing values become None
            and whose index is ignored.
        task: the task, which defines the columns and checks rows.
        columns: maps the toolkit's column names to those of the rows; columns not listed keep their names.
        labelled: whether label columns are needed; otherwise they are None.
        reading: whether HTML entities are decoded.

    Raises:
        DataError: if any row cannot be used (rows are numbered from 1), the task's options exclude all of them, or a
            column is missing.
    """
    table = read_given(rows, task, columns, labelled, reading)
    if table.bad:
        reasons = listing([(NAME, row) for row in table.bad])
        total = len(table.rows) + len(table.bad) + sum(table.excluded.values())
        raise DataError(f"{len(table.bad)} of {total} rows cannot be used:\n{reasons}")
    if table.excluded and not len(table.rows):
        raise DataError(f"no row can be used: {'; '.join(map(str, exclusions(table)))}")
    return table


def read_given(
    rows: Any, task: Task, columns: Mapping[str, str], labelled: bool, reading: Reading = RECOGNISED
) -> Table:
    """Checks rows as `given_table` does, and returns those that cannot be used in `Table.bad`."""
    source = given_source(rows, reading)
    return table_of(list(checked_rows(source, task, columns, labelled)), source, task)


def given_source(rows: Any, reading: Reading = RECOGNISED) -> RowSource:
    """Returns the raw rows of Python objects as `given_table` takes them."""
    return RowSource(NAME, "", "python", False, lambda: python_rows(rows, NAME, reading), Path().absolute())


def table_of(rows: list[dict[str, Any]], source: RowSource, task: Task) -> Table:
    """Returns the table of rows that `checked_rows` has yielded, in memory."""
    import datasets
    import pyarrow as pa

    features = datasets.Features({n: kind for n, kind in checked_features(task).items() if n not in CHECKED})
    good, others = ([row for row in rows if (row[REASON] is None) is usable] for usable in (True, False))
    own = [features.encode_example({name: row[name] for name in features}) for row in good]
    keys = Keys(*(np.array([row[name] for row in good], dtype=np.int64) for name in (INPUTS, LABEL, GROUP)))
    # With a fingerprint of its own: `datasets` would pickle all rows for one, which takes longer than to check a few.
    built = datasets.Dataset(pa.Table.from_pylist(own, features.arrow_schema), fingerprint=uuid4().hex)
    return _split(built, others, keys, source)
