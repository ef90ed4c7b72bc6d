"""Tokenises checked rows; `datasets` caches the result once per node."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import EvalData, Omission, Prepared, Processor
from toolkit.api.task import Task, limits_of, reads_files
from toolkit.base.console import say
from toolkit.base.errors import DataError
from toolkit.base.files import sha256
from toolkit.config.sections import Config, DataConfig
from toolkit.data.batching.batches import mixed
from toolkit.data.loading import CheckedRows
from toolkit.data.media.cache import cache_media
from toolkit.data.row_cache import code_fingerprint, from_cache, processor_fingerprint
from toolkit.data.table import FILE, NUMBER, BadRowReport, generated, progress_bars, row_names
from toolkit.system.environment import versions
from toolkit.system.rank_order import local_main_first

if TYPE_CHECKING:
    import datasets
    from accelerate import Accelerator

PROGRESS_FROM_ROWS = 50_000
MAP_ROWS = 1000
"""Rows that `datasets` maps at once."""
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
        name: evaluated(rows.splits[name], part, task, processor, kept=kept.get(name))
        for name, part in features.items()
        if name != "train"
    }
    with local_main_first(accelerator):
        evals = {name: with_prompts(each, task, cfg) for name, each in evals.items()}
    bad_rows = dict(rows.bad_rows)
    for name, part in rows.splits.items():
        places, why = task.lost(part, features[name])
        if places:
            bad_rows[name] = bad_rows.get(name, 0) + len(places)
            table = rows.tables[name if name in rows.tables else "train"]
            for row in part.select(places):
                table.parts.get(row[FILE], table).bad.append(BadRowReport(row[NUMBER], why, {}))
    left = omissions(rows.splits, features, task, processor, cfg.data)
    notes = [f"{name}: {note}" for name, part in rows.splits.items() for note in task.notes(part, features[name])]
    for note in (*notes, *(f"{each}." for each in left)):
        say(note)
    notes = [*rows.findings.warnings(), *rows.findings.notes(), *notes]
    left = [*rows.findings.omissions, *left]
    of_train = kept.get("train"), rows.splits["train"]
    return Prepared(features["train"], evals, rows.fingerprints, bad_rows, notes, left, *of_train)


def evaluated(
    rows: datasets.Dataset, features: datasets.Dataset, task: Task, processor: Processor, **more: Any
) -> EvalData:
    """Returns an evaluation set without the rows of which nothing is left; the set of a task that regroups has all."""
    gone = set() if task.has("regroup") else set(task.lost(rows, features)[0])
    if gone:
        kept = [place for place in range(len(rows)) if place not in gone]
        new = {place: number for number, place in enumerate(kept)}
        own = [new[example] for example in features["example"][:]]
        print_ = f"{features._fingerprint[:-3]}evl"
        rows = rows.select(kept)
        features = features.remove_columns("example").add_column("example", own, new_fingerprint=print_)
    return EvalData(rows, features, processor, **more)


def with_prompts(data: EvalData, task: Task, cfg: Config) -> EvalData:
    """Returns an evaluation set with the rows whose answers are generated (`eval.generate`)."""
    if not cfg.eval.generate:
        return data
    rows = data.rows.select(range(min(cfg.eval.generate_rows, len(data.rows))))
    return replace(data, prompts=EvalData(rows, tokenise(rows, task, data.processor, labelled=False), data.processor))


def omissions(
    splits: Mapping[str, datasets.Dataset],
    features: Mapping[str, datasets.Dataset],
    task: Task,
    processor: Processor,
    data: DataConfig,
) -> list[Omission]:
    """Returns what of checked rows is not in their feature rows, or not as it is, by split.

    Raises DataError if rows of which nothing is left are not allowed by `data.bad_rows` or `data.max_bad_rows`.
    """
    found = []
    for name, rows in splits.items():
        own = features[name]
        every = [lost_rows(rows, own, task, data), *task.omissions(rows, own), *_truncated(own, task)]
        every.append(_unknown(own, processor))
        found += [replace(each, where=name) for each in every if each is not None and each.count]
    return [*found, *mixed(features["train"], data)] if data.mix and "train" in splits else found


LISTED = 10
"""Maximum number of lost rows that are named."""


def lost_rows(rows: datasets.Dataset, features: datasets.Dataset, task: Task, data: DataConfig) -> Omission | None:
    """Returns the rows of which nothing is left, or None.

    Raises DataError if `data.bad_rows` or `data.max_bad_rows` do not allow them.
    """
    places, why = task.lost(rows, features)
    if not places:
        return None
    named = ", ".join(map(str, row_names(rows[places[:LISTED]])))
    more = f" and {len(places) - LISTED} more" if len(places) > LISTED else ""
    found = f"{len(places):,} of {len(rows):,} rows {why}: {named}{more}"
    if data.bad_rows == "error":
        raise DataError(f"{found}. Raise the limit, or skip them with data.bad_rows=skip.")
    if len(places) > data.max_bad_rows * len(rows):
        share = math.ceil(1000 * len(places) / len(rows)) / 1000
        raise DataError(f"{found}. Raise the limit, or set data.max_bad_rows to at least {share:g}.")
    return Omission(f"rows {why}", len(places), len(rows), f"{named}{more}")


def _with_classes(features: datasets.Dataset, rows: datasets.Dataset, task: Task) -> datasets.Dataset:
    """Adds the column `class_id`, the class of each feature row's example."""
    column = task.class_column()
    if column is None:
        raise AssertionError("only a task whose rows have classes can be balanced")
    names = rows[column][:]
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    ids = [number[names[example]] for example in features["example"][:]]
    return features.add_column("class_id", ids, new_fingerprint=f"{features._fingerprint[:-3]}cls")


def _truncated(features: datasets.Dataset, task: Task) -> Iterator[Omission]:
    """Yields the inputs of each side that were truncated to a limit of the task's options."""
    for side, option in limits_of(task.options).items():
        if (name := f"truncated_{side}") in features.column_names:
            limit = f"task.{option}={getattr(task.options, option)}"
            yield Omission(f"{side}s truncated to {limit}", sum(features[name][:]), len(features))


def _unknown(features: datasets.Dataset, processor: Processor) -> Omission | None:
    """Returns the input tokens that stand for text that the tokenizer does not know."""
    import pyarrow.compute as pc

    unknown = getattr(processor, "unk_token_id", None)
    name = next((name for name in ("input_ids", "tokens") if name in features.column_names), None)
    if unknown is None or name is None or unknown in (processor.eos_token_id, processor.pad_token_id):
        return None
    ids = pc.list_flatten(features.with_format("arrow")[name].combine_chunks(), recursive=True)
    return Omission("tokens unknown to the tokenizer", pc.sum(pc.equal(ids, unknown)).as_py() or 0, len(ids))


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
        places, names = {"example": [indices[owner] for owner in owners]}, row_names(columns)
        return features | places | {NUMBER_IN_FILE: [names[owner] for owner in owners]}

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

    if in_memory and 0 < len(rows) <= MAP_ROWS and not task.has("regroup"):
        columns = batch(rows[:], [*range(len(rows))])
        if columns["length"]:  # otherwise types are unknown
            return _as_mapped(columns, fingerprint)
    features = make(None) if in_memory else from_cache(fingerprint, make)
    if task.has("regroup"):
        features = _regrouped(features, task, row_names(rows), f"{fingerprint[:-3]}grp", in_memory)
    return features.add_column("row_id", range(len(features)), new_fingerprint=f"{fingerprint[:-3]}ids")


def _as_mapped(columns: dict[str, list[Any]], fingerprint: str) -> datasets.Dataset:
    """Returns features of one batch as `map` does, whose preparations take longer than to tokenise a few rows."""
    import datasets
    import pyarrow as pa
    from datasets.arrow_writer import OptimizedTypedSequence

    columns["row_id"] = [*range(len(columns["length"]))]
    arrays = {name: pa.array(OptimizedTypedSequence(values, col=name)) for name, values in columns.items()}
    return datasets.Dataset(pa.table(arrays), fingerprint=fingerprint)


def cache_key(rows: datasets.Dataset, task: Task, processor: Processor, labelled: bool) -> str:
    """Returns a hash of all that the features of these rows follow from."""
    key = [rows._fingerprint, len(rows), processor_fingerprint(processor), type(task).__name__, asdict(task.options),
           task.state, labelled, code_fingerprint(task), [versions().get(each) for each in TOKENISERS]]  # fmt: skip
    return sha256(json.dumps(key, sort_keys=True))[:32]


def _regrouped(
    features: datasets.Dataset, task: Task, numbers: Sequence[int | str], fingerprint: str, in_memory: bool
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
