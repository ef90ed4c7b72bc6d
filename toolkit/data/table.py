"""Checked tables: rows with the toolkit's column names, each checked once and cached as Arrow."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from toolkit.api.batch import Row
from toolkit.api.task import Task, state_of
from toolkit.base.console import say, warn
from toolkit.base.errors import DataError
from toolkit.data import sources
from toolkit.data.bars import progress_bars
from toolkit.data.checking import EXCLUDED, NUMBER, PREVIEW, REASON, RowSource, checked_features, checked_rows
from toolkit.data.columns import columns_in, file_columns, used_columns
from toolkit.data.copies import named_as_before, with_former_names
from toolkit.data.fingerprints import code_fingerprint, decoders
from toolkit.data.hub import hub_rows, load_hub
from toolkit.data.keys import GROUP, INPUTS, LABEL, Keys
from toolkit.data.markup import markup_notes
from toolkit.data.media.archives import reopen
from toolkit.data.media.files import content_digest, is_archive
from toolkit.data.readers.raw import RawRow
from toolkit.data.reading import RECOGNISED, Reading
from toolkit.data.row_cache import from_cache

if TYPE_CHECKING:
    import datasets

PROGRESS_FROM_BYTES = 2**26


@dataclass(frozen=True)
class BadRowReport:
    """An unusable row: its number in the source, the reason, and a short preview of its columns."""

    number: int
    reason: str
    values: dict[str, str]


@dataclass(frozen=True)
class Table:
    """The checked rows of a source.

    Args:
        rows: the usable rows in file order, with the columns of `Task.schema` and `_number`.
        bad: the unusable rows, in file order.
        fingerprint: sha256 of the file, or the hub dataset's id, revision and content.
        source: the file or hub split, for messages.
        keys: digests of the usable rows; those of rows without labels are all 0.
        excluded: number of rows that the task's options exclude, by reason.
    """

    rows: datasets.Dataset
    bad: list[BadRowReport]
    fingerprint: str
    source: str
    keys: Keys
    excluded: Mapping[str, int] = field(default_factory=dict)

    def select(self, places: np.ndarray) -> Table:
        """Returns the table of the usable rows at the given places."""
        return replace(self, rows=self.rows.select(places), keys=self.keys.select(places))

    def head(self, limit: int | None) -> Table:
        """Returns the table of the first `limit` rows, or of all if there are fewer or `limit` is None."""
        return self if limit is None or limit >= len(self.rows) else self.select(np.arange(limit))


def load_table(
    source: sources.Source,
    task: Task,
    columns: Mapping[str, str],
    labelled: bool,
    cache_dir: str | Path | None = None,
    sample: int | None = None,
    reading: Reading = RECOGNISED,
    group: str | None = None,
    copies: Path | None = None,
) -> Table:
    """Reads and checks local files; a second call with the same files, task and settings reads the cache.

    Args:
        source: what `toolkit.data.sources.read_rows` reads.
        task: the task, which defines the columns and checks rows.
        columns: `data.columns`, see `toolkit.data.columns.columns_in`.
        labelled: whether label columns are needed; otherwise they are None.
        cache_dir: folder of the Arrow cache; None means that of `datasets`.
        sample: keep only this many rows, evenly spaced; None keeps all.
        reading: how to read the files; what is recognised is logged.
        group: the column, by its name in the file, whose equal values make a group; None if there are no groups.
        copies: a folder that stands for the root of the file system, with copies of the files; None if there are none.

    Raises:
        DataError: if the file cannot be read or lacks a column.
    """
    place, how = sources.place_of(source, copies), reading.fingerprint
    columns = columns_in(source, task, columns)
    if is_archive(folder := sources.folder_of(place)):
        reopen(folder)
    else:
        folder = sources.folder_of(source)

    def rows() -> Iterator[RawRow]:
        return sources.spread(sources.read_rows(place, reading, labelled), sample)

    def digest() -> str:
        key = sources.fingerprint(source if how == "stat" else place, how) + ("" if sample is None else f":{sample}")
        files = file_columns(source, task, columns)
        return content_digest(key, rows(), files, folder, copies, how) if files else key

    with named_as_before(copies):
        for note in sources.reading_notes(place, reading):
            say(with_former_names(note, copies))
        key, name = digest(), sources.name_of(source)
        kind = f"{Path(name).suffix.lower()} {reading}"  # the same bytes are other rows under another suffix
        large = sources.is_files(source) or sources.num_bytes(source) >= PROGRESS_FROM_BYTES
        from_file = RowSource(name, key, kind, large, rows, folder, group, copies, digest)
        return _build(from_file, task, columns, labelled, cache_dir)


def load_hub_table(
    dataset_name: str,
    config: str | None,
    revision: str | None,
    split: str,
    task: Task,
    columns: Mapping[str, str],
    labelled: bool,
    cache_dir: str | Path | None = None,
    sample: int | None = None,
    reading: Reading = RECOGNISED,
    group: str | None = None,
    offline_dir: str | None = None,
) -> Table:
    """Loads and checks one split of a hub dataset; arguments are those of `load_hub` and `load_table`.

    Raises:
        DataError: if the dataset cannot be loaded, has no such split, or lacks a column.
    """
    splits = load_hub(dataset_name, config, revision, cache_dir, offline_dir)
    if split not in splits:
        raise DataError(f"data.dataset_name: {dataset_name!r} has no split {split!r}; it has {', '.join(splits)}.")
    rows = splits[split]
    name = f"{dataset_name} ({split})"
    key = f"{dataset_name}@{revision or 'main'}:{split}:{rows._fingerprint}" + ("" if sample is None else f":{sample}")

    def read() -> Iterator[RawRow]:
        return sources.spread(hub_rows(rows, reading.unescape_html), sample)

    large = (rows.dataset_size or 0) >= PROGRESS_FROM_BYTES
    return _build(
        RowSource(name, key, f"hub {reading}", large, read, Path(), group), task, columns, labelled, cache_dir
    )


def _build(
    source: RowSource, task: Task, columns: Mapping[str, str], labelled: bool, cache_dir: str | Path | None
) -> Table:
    import datasets

    features = checked_features(task)
    key = _cache_key(source, task, columns, labelled, features)

    def make(folder: Path) -> datasets.Dataset:
        try:
            with progress_bars(source.large):
                return datasets.Dataset.from_generator(
                    lambda: _unchanged(source, checked_rows(source, task, columns, labelled)),
                    features=features,
                    cache_dir=str(folder),
                    fingerprint=key,
                )
        except datasets.exceptions.DatasetGenerationError as error:
            # The library wraps whatever the generator raises.
            raise (error.__cause__ or error) from None

    built = from_cache(key, make, cache_dir)
    table = split_bad(built, source)
    for note in markup_notes(table.rows, columns, NUMBER):
        warn(f"{source.name}, {note}")
    return table


def _unchanged(source: RowSource, rows: Iterator[Row]) -> Iterator[Row]:
    """Yields rows; raises DataError at the end if their source has changed, for whose content they would be cached."""
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
    bad = [BadRowReport(row[NUMBER], row[REASON], json.loads(row[PREVIEW])) for row in others if not row[EXCLUDED]]
    excluded = Counter(row[REASON] for row in others if row[EXCLUDED])
    own = rows.remove_columns([REASON, PREVIEW, EXCLUDED, INPUTS, LABEL, GROUP])
    return Table(own, bad, source.fingerprint, source.name, Keys.of_columns(rows), excluded)


def _cache_key(
    source: RowSource, task: Task, columns: Mapping[str, str], labelled: bool, features: datasets.Features
) -> str:
    with_files = any(each.file for each in used_columns(task).values())
    # Rows that refer to files hold absolute paths, so the same table in another folder needs another key.
    folder = str((source.folder, source.copies)) if with_files else None
    tools = decoders() if with_files else None
    parts = [code_fingerprint(task), source.fingerprint, source.kind, folder, tools, dict(columns), labelled,
             source.group, type(task).__qualname__, repr(getattr(task, "options", None)), state_of(task),
             features.to_dict()]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
