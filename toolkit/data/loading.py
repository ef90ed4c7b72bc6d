"""Reads, checks and splits the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.batch import Omission
from toolkit.api.task import Task
from toolkit.base.console import say
from toolkit.base.errors import DataError
from toolkit.base.files import read_lines
from toolkit.base.run_folder import RunFolder
from toolkit.config.paths import former_run
from toolkit.config.sections import DEFAULT_SPLIT, Config, DataConfig
from toolkit.config.source import read_file
from toolkit.data.columns import Beside, columns_in, columns_of, unused_columns
from toolkit.data.findings import EARLIER, RowFindings, find, some
from toolkit.data.keys import first_like, units
from toolkit.data.readers.raw import Reading
from toolkit.data.sources import is_files, load_hub, read_rows
from toolkit.data.splits import fold_numbers, set_aside, share_of
from toolkit.data.staging import Stage, staged
from toolkit.data.table import FILE, NUMBER, PEEKED_ROWS, HubSplit, Table, apply_policy, exclusions, load_table, skipped
from toolkit.system.rank_order import local_main_first

if TYPE_CHECKING:
    import datasets
    from accelerate import Accelerator

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class CheckedRows:
    """Checked rows of a run, after the limits on their number."""

    splits: Mapping[str, datasets.Dataset]  # rows by split (`train`, `validation`, `test`)
    fingerprints: Mapping[str, str]  # sha256 of each source file (or hub id and revision) by split
    bad_rows: Mapping[str, int]  # number of skipped rows by split
    # what is known about the rows; empty on all processes but the main one, and for a sample
    findings: RowFindings = field(default_factory=RowFindings)
    tables: Mapping[str, Table] = field(default_factory=dict)  # what was read from each source, with its bad rows
    # copies of the data files that the rows refer to, which stay as long as this object does
    stage: Stage | None = None


def load_rows(cfg: Config, task: Task, accelerator: Accelerator, sample: int | None = None) -> CheckedRows:
    """Reads, checks and splits the run's rows, and lets the task learn its labels from the training rows.

    The first process of each node reads, the others use its cache. With `sample`, only so many training rows are read.

    Raises:
        DataError: for files or rows that cannot be used.
    """
    stage = None if cfg.data.stage_to is None or sample is not None else staged(cfg.data, task, accelerator)
    with local_main_first(accelerator):
        tables = _tables(cfg, task, sample, stage)
    rows = _checked(cfg, task, tables, sampled=sample is not None, examined=accelerator.is_main_process)
    rows.findings.tell()
    return replace(rows, stage=stage)


def check_rows(cfg: Config, task: Task) -> CheckedRows:
    """Reads, checks, splits and examines the rows of a run as `load_rows` does, without starting it."""
    return _checked(cfg, task, _tables(cfg, task, None), sampled=False, examined=True)


def _checked(cfg: Config, task: Task, tables: Mapping[str, Table], sampled: bool, examined: bool) -> CheckedRows:
    data, tables = cfg.data, dict(tables)
    earlier = tables.pop(EARLIER, None)
    bad = apply_policy(tables, data.bad_rows, data.max_bad_rows)
    left = [each for table in tables.values() for file in table.files for each in (skipped(file), *exclusions(file))]
    if data.drop_duplicates:
        train = tables["train"]
        first = np.flatnonzero(first_like(train.keys.inputs, train.keys.labels) == np.arange(len(train.rows)))
        tables = {**tables, "train": train.select(first)}
        left.append(_left("train", train, tables["train"], "rows skipped as exact duplicates (data.drop_duplicates)"))
    splits = dict(tables) if sampled else _split(cfg, task, tables)
    for name, part in splits.items():
        option = "max_train_samples" if name == "train" else "max_eval_samples"
        splits[name] = part.head(limit := getattr(data, option))
        left.append(_left(name, part, splits[name], f"rows after the first data.{option}={limit} not used"))
    if data.train_fraction < 1 and not sampled:
        train, share = splits["train"], data.train_fraction
        splits["train"] = train.select(share_of(len(train.rows), share, cfg.seed, _classes(train, task)))
        left.append(_left("train", train, splits["train"], f"rows not used (data.train_fraction={share})"))
    if data.join_validation and "validation" in splits:
        splits["train"] = splits["train"].joined(splits.pop("validation"))
    if earlier is not None:
        splits[EARLIER] = earlier
    task.learn(splits["train"].rows)
    findings = RowFindings()
    if examined and not sampled:
        findings = find(task, tables, splits, Beside.of(data, task).group, chosen=data.group_column is not None)
        left += _unused(cfg, task)
        findings = replace(findings, omissions=[each for each in left if each.count])
    rows = {name: part.rows for name, part in splits.items()}
    return CheckedRows(rows, {name: table.fingerprint for name, table in tables.items()}, bad, findings, tables)


def _left(name: str, before: Table, after: Table, what: str) -> Omission:
    return Omission(what, len(before.rows) - len(after.rows), len(before.rows), where=name)


def _unused(cfg: Config, task: Task) -> Iterator[Omission]:
    """Yields the columns of each data file that the run does not read."""
    data = cfg.data
    for file in data.files():
        columns = columns_in(file, task, data.columns)
        if not is_files(file) and (columns or columns == data.columns):
            present = columns_of(islice(read_rows(file, Reading.of(data)), PEEKED_ROWS))
            unused = unused_columns(present, task, columns, Beside.of(data, task, cfg.eval.slices))
            yield Omission("columns not used", len(unused), len(present), some(unused), str(file))


def _split(cfg: Config, task: Task, tables: Mapping[str, Table]) -> dict[str, Table]:
    """Sets aside validation and test rows, unless there are any; the validation rows do not depend on the test rows."""
    data, train = cfg.data, tables["train"]
    if data.folds is not None:
        return _with_fold(cfg, task, tables)
    fractions = {
        "validation": DEFAULT_SPLIT if data.validation_split is None else data.validation_split,
        "test": data.test_split,
    }
    aside = {}
    for name, fraction in fractions.items():
        if name in tables or not fraction:
            continue
        held = round(len(tables["train"].rows) * fraction)
        train, aside[name] = _divided(train, held, cfg.seed, task, f"data.{name}_split")
    return _in_order({**tables, **aside, "train": train})


def _with_fold(cfg: Config, task: Task, tables: Mapping[str, Table]) -> dict[str, Table]:
    """Sets test rows aside, unless there are any, and one fold of the others as validation rows."""
    data, train, aside = cfg.data, tables["train"], {}
    assert data.folds is not None
    if "test" not in tables and data.test_split:
        held = round(len(train.rows) * data.test_split)
        train, aside["test"] = _divided(train, held, cfg.seed, task, "data.test_split")
    numbers = fold_numbers(len(train.rows), data.folds, cfg.seed, _classes(train, task), units(train.keys))
    inside = numbers == data.fold - 1
    aside["validation"] = train.select(np.flatnonzero(inside))
    return _in_order({**tables, **aside, "train": train.select(np.flatnonzero(~inside))})


def _divided(train: Table, held: int, seed: int, task: Task, setting: str) -> tuple[Table, Table]:
    """Returns the rows that stay and those that are set aside; the arguments are those of `set_aside`."""
    chosen = set_aside(len(train.rows), held, seed, _classes(train, task), units(train.keys), setting)
    return train.select(np.flatnonzero(~chosen)), train.select(np.flatnonzero(chosen))


def _classes(table: Table, task: Task) -> list[Any] | None:
    column = task.class_column()
    return None if column is None else table.rows[column][:]


def _in_order(tables: Mapping[str, Table]) -> dict[str, Table]:
    return {name: tables[name] for name in SPLITS if name in tables}


def _tables(cfg: Config, task: Task, sample: int | None, stage: Stage | None = None) -> dict[str, Table]:
    data = cfg.data
    splits = SPLITS if sample is None else SPLITS[:1]
    sources: dict[str, Any] = {}
    if data.dataset_name is not None:
        hub = (data.dataset_name, data.dataset_config_name, data.revision)
        present = load_hub(*hub, offline_dir=cfg.offline_dir)
        for split in splits:
            if split in present and not (split == "validation" and data.folds):
                sources[split] = HubSplit(*hub, split, cfg.offline_dir)
    else:
        sources = {split: file for split in splits if (file := getattr(data, f"{split}_file"))}
    if "train" not in sources:
        raise DataError("data: there are no training rows.")

    def load(split: str, source: Any) -> Table:
        if isinstance(source, list):
            return Table.of_files({data.file_names[each]: load(split, each) for each in source})
        copies = stage.copies(source) if stage and isinstance(source, str) else None
        beside = replace(Beside.of(data, task, cfg.eval.slices, split), file=data.file_names.get(source))
        return load_table(source, task, data.columns, True, None, sample, Reading.of(data), beside, copies)

    tables = {"train": load("train", sources.pop("train"))}
    # Labels are learned before the other splits are checked, so that a label unknown to training is a bad row there.
    if len(tables["train"].rows):
        try:
            task.learn(tables["train"].rows)
        except DataError:  # more likely because of unusable rows, which are named first
            apply_policy(tables, data.bad_rows, data.max_bad_rows)
            raise
    tables |= {split: load(split, source) for split, source in sources.items()}
    former = former_run(cfg.model.name_or_path or "")
    if former is None or sample is not None or not task.label_counts(tables["train"].rows):
        return tables
    return tables | _earlier(former, task)


def _earlier(former: RunFolder, task: Task) -> dict[str, Table]:
    """Returns the rows on which a run was validated, if their file is still there and the task can read it."""
    fields = read_file(former.config).values["data"]
    data = DataConfig(**{name: value for name, value in fields.items() if name in vars(DataConfig())})
    files, predictions = data.validation_file or data.train_file, former.predictions("validation")
    if files is None or not predictions.is_file():
        return {}

    def load(file: str) -> Table:
        beside = Beside(file=data.file_names.get(file))
        return load_table(file, task, data.columns, True, reading=Reading.of(data), beside=beside)

    try:
        several = {data.file_names[file]: load(file) for file in files} if isinstance(files, list) else {}
        table = load(files) if isinstance(files, str) else Table.of_files(several)
    except (DataError, OSError) as error:
        say(f"No scores on the validation rows of {former.path}, before and after: {error}")
        return {}
    known = {(line.get("file"), line["row"]) for line in read_lines(predictions)}
    pairs = zip(table.rows[FILE][:], table.rows[NUMBER][:], strict=True)
    table = table.select(np.flatnonzero([pair in known for pair in pairs]))
    return {EARLIER: table} if len(table.rows) else {}
