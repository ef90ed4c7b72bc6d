"""Tokenises checked rows; `datasets` caches the result once per node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import EvalData, Prepared, Processor
from toolkit.api.task import Task, limits_of, reads_files
from toolkit.base.console import say
from toolkit.base.errors import DataError
from toolkit.base.files import sha256
from toolkit.config.sections import Config
from toolkit.data.loading import CheckedRows
from toolkit.data.media.cache import cache_media
from toolkit.data.row_cache import code_fingerprint, from_cache, processor_fingerprint
from toolkit.data.table import NUMBER, generated, progress_bars
from toolkit.system.environment import versions
from toolkit.system.rank_order import local_main_first

if TYPE_CHECKING:
    import datasets
    from accelerate import Accelerator

PROGRESS_FROM_ROWS = 50_000
FEATURES = "features.arrow"
TOKENISERS = ("tokenizers", "transformers")
"""Packages whose version may change the tokens of the same text and files."""
NUMBER_IN_FILE = "number"
"""Column of feature rows: the number of the source row in its file."""


def prepare(rows: CheckedRows, task: Task, processor: Processor, cfg: Config, accelerator: Accelerator) -> Prepared:
    """Tokenises checked rows once per node, and logs notes about them, for instance how many were truncated."""
    with local_main_first(accelerator):
        features = {
            name: tokenise(part, task, processor, labelled=True, num_proc=cfg.data.preprocessing_num_workers)
            for name, part in rows.splits.items()
        }
    if cfg.train.train_sampling_strategy == "balanced":
        features["train"] = _with_classes(features["train"], rows.splits["train"], task)
    kept = {}
    if reads_files(task):
        kept = cache_media({name: len(part) for name, part in features.items()}, cfg.data.media_cache, accelerator)
    evals = {
        name: EvalData(rows.splits[name], part, processor, kept=kept.get(name))
        for name, part in features.items()
        if name != "train"
    }
    notes: list[str] = []
    for name, part in rows.splits.items():
        notes += [f"{name}: {note}" for note in task.notes(part, features[name])]
    notes += [f"{name}: {note}" for name, part in features.items() for note in _truncated(part, task)]
    for note in notes:
        say(note)
    found = [*rows.findings.warnings(), *rows.findings.notes(), *notes]
    return Prepared(features["train"], evals, rows.fingerprints, rows.bad_rows, found, kept.get("train"))


def _with_classes(features: datasets.Dataset, rows: datasets.Dataset, task: Task) -> datasets.Dataset:
    """Adds the column `class_id`, the class of each feature row's example."""
    column = task.class_column()
    if column is None:
        raise AssertionError("only a task whose rows have classes can be balanced")
    names = rows[column][:]
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    ids = [number[names[example]] for example in features["example"][:]]
    return features.add_column("class_id", ids, new_fingerprint=f"{features._fingerprint[:-3]}cls")


def _truncated(features: datasets.Dataset, task: Task) -> list[str]:
    """Returns one note for each side that was truncated to a limit of the task's options."""
    notes = []
    for side, option in limits_of(task.options).items():
        name = f"truncated_{side}"
        if name in features.column_names and (count := sum(features[name][:])):
            notes.append(f"{count} of {len(features)} {side}s are longer than task.{option} and were truncated.")
    return notes


def tokenise(
    rows: datasets.Dataset, task: Task, processor: Processor, *, labelled: bool, num_proc: int | None = None
) -> datasets.Dataset:
    """Converts checked rows to feature rows with `row_id` (position) and `number` (of the source row in its file).

    The cache key covers the rows, the processor, the task's options and state, the toolkit's code and the versions of
    the libraries that tokenise. `num_proc` is the number of processes; None uses this one. Raises DataError if a task
    that regroups rows finds all of them too short.
    """

    def batch(columns: dict[str, list[Any]], indices: list[int]) -> dict[str, list[Any]]:
        features = task.preprocess(columns, processor, labelled)
        owners = features.pop("example", range(len(indices)))
        if len(owners) != len(features["length"]):
            raise AssertionError(
                f"{type(task).__name__}.preprocess returned {len(features['length'])} feature rows for {len(indices)} "
                "rows; unless it returns one per row, it must return the column `example`"
            )
        places = {"example": [indices[owner] for owner in owners]}
        return features | places | {NUMBER_IN_FILE: [columns[NUMBER][owner] for owner in owners]}

    in_memory = not rows.cache_files  # rows that were given in memory are not cached, and need no key
    fingerprint = rows._fingerprint if in_memory else cache_key(rows, task, processor, labelled)

    def make(folder: Path | None) -> datasets.Dataset:
        if folder is not None:
            folder.mkdir(exist_ok=True)
        with progress_bars(len(rows) >= PROGRESS_FROM_ROWS):
            return rows.map(
                batch, batched=True, with_indices=True, remove_columns=rows.column_names, num_proc=num_proc,
                new_fingerprint=fingerprint, cache_file_name=None if folder is None else str(folder / FEATURES),
                desc="preprocess",
            )  # fmt: skip

    features = make(None) if in_memory else from_cache(fingerprint, make)
    if task.has("regroup"):
        features = _regrouped(features, task, rows[NUMBER][:], f"{fingerprint[:-3]}grp", in_memory)
    return features.add_column("row_id", range(len(features)), new_fingerprint=f"{fingerprint[:-3]}ids")


def cache_key(rows: datasets.Dataset, task: Task, processor: Processor, labelled: bool) -> str:
    """Returns a hash of all that the features of these rows follow from."""
    key = [rows._fingerprint, len(rows), processor_fingerprint(processor), type(task).__name__, asdict(task.options),
           task.state, labelled, code_fingerprint(task), [versions().get(each) for each in TOKENISERS]]  # fmt: skip
    return sha256(json.dumps(key, sort_keys=True))[:32]


def _regrouped(
    features: datasets.Dataset, task: Task, numbers: Sequence[int], fingerprint: str, in_memory: bool
) -> datasets.Dataset:
    """Regroups all feature rows; `map` cannot do this, because its batches would split what the task joins."""
    import datasets

    def rows() -> Iterator[dict[str, Any]]:
        count = 0
        for count, row in enumerate(task.regroup(features), start=1):  # noqa: B007 - used after the loop
            yield row | {NUMBER_IN_FILE: numbers[row["example"]]}
        if not count:
            raise DataError(f"none of the {len(numbers)} rows is long enough for training or evaluation.")

    if in_memory:
        return datasets.Dataset.from_list(list(rows()))
    shown = len(features) >= PROGRESS_FROM_ROWS
    return from_cache(fingerprint, lambda folder: generated(rows, folder, fingerprint, shown))
