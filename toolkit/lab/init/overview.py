"""`toolkit data show`: what a run will be trained on, as tables and lines for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import Omission
from toolkit.api.task import Task, limits_of
from toolkit.base.console import shorten
from toolkit.config.keys import to_yaml
from toolkit.config.paths import source_of
from toolkit.config.sections import Config
from toolkit.data.columns import roles
from toolkit.data.loading import CheckedRows, check_rows
from toolkit.data.readers.raw import Reading
from toolkit.data.sources import hub_rows, load_hub
from toolkit.lab.init.draft import draft
from toolkit.lab.init.guesses import COVERED, evenly, quantile, tokens
from toolkit.lab.init.models import local_folder
from toolkit.lab.init.profile import Profile, profile, profile_files

if TYPE_CHECKING:
    import datasets
    from rich.console import RenderableType
    from rich.table import Table

WIDTH = 80
BAR = 24
"""Characters of the longest bar."""
MOST_LABELS = 20
NAME = 20
"""Characters of a name."""
NUM_EXAMPLES = 4
EXAMPLE_CHARACTERS = 300


@dataclass(frozen=True)
class Subject:
    """What is shown."""

    cfg: Config  # the settings
    task: Task  # the recipe's task, which has learned its labels
    rows: CheckedRows  # all rows, checked and split; those that cannot be used are skipped
    profile: Profile  # the columns of the training rows

    def omissions(self) -> list[Omission]:
        """Returns what a run would not use, or not as it is; of a model elsewhere, without what it truncates."""
        name = source_of(self.cfg).name_or_path
        if name is not None and local_folder(name) is None:
            return [*self.rows.findings.omissions]
        from toolkit.prepare.inputs import omissions_of

        return omissions_of(replace(self.cfg, data=replace(self.cfg.data, **LENIENT)), self.task, self.rows)


LENIENT: dict[str, Any] = {"bad_rows": "skip", "max_bad_rows": 1.0}
"""Settings with which all rows are read that can be used."""


def subject(task_type: type[Task], cfg: Config) -> Subject:
    """Reads the rows of a run; raises DataError if a file cannot be read, or none of its rows can be used."""
    data, task = cfg.data, task_type(cfg)
    rows = check_rows(replace(cfg, data=replace(data, **LENIENT)), task)
    if data.dataset_name is None:
        return Subject(cfg, task, rows, profile_files(data.files("train_file"), Reading.of(data)))
    splits = load_hub(data.dataset_name, data.dataset_config_name, data.revision, offline_dir=cfg.offline_dir)
    return Subject(cfg, task, rows, profile(data.dataset_name, hub_rows(splits["train"])))


def subject_of_file(source: str, overrides: Sequence[str]) -> Subject:
    """Reads the rows of a file or folder as `toolkit init` would train on them; raises InputError if no recipe fits."""
    made = draft(source, None, overrides)
    return Subject(made.config, made.task, made.rows, made.sample.profile)


def overview(shown: Subject) -> Iterator[RenderableType]:
    """Yields the parts of the overview."""
    cfg, task, rows = shown.cfg, shown.task, shown.rows
    files = {"train": cfg.data.train_file, "validation": cfg.data.validation_file, "test": cfg.data.test_file}
    parts = [f"{len(part):,} {name}{'' if files.get(name) else ' (set aside)'}" for name, part in rows.splits.items()]
    yield f"{shown.profile.source}: {' + '.join(parts)} rows"
    yield _columns(cfg, task, shown.profile)
    if rows.findings.labels:
        yield _labels(rows.findings.labels)
        if renamed := getattr(cfg.task, "label_map", None):
            yield textwrap.fill(f"labels after task.label_map={to_yaml(renamed)}", WIDTH)
    elif numbers := _numbers(task, rows.splits["train"]):
        yield numbers
    if texts := _texts(task, rows):
        yield from _lengths(cfg, task, texts)
    if left := shown.omissions():
        yield "\n".join(["Not used, or not as it is:", *(_item("- ", f"{each}.") for each in left)])
    warnings = rows.findings.warnings()
    if any(rows.bad_rows.values()) and cfg.data.bad_rows == "error":
        warnings.insert(0, "A run stops at rows that cannot be used, unless data.bad_rows=skip skips them.")
    if warnings:
        yield "\n".join(["To check:", *(_item("- ", warning) for warning in warnings)])
    yield _examples(task, rows.splits["train"])


def _table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """Returns a table whose last column takes the rest of the width."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, expand=True)
    for name in columns:
        rest = 1 if name == columns[-1] else None
        table.add_column(
            name, justify="right" if name in numbers else "left", no_wrap=True, overflow="ellipsis", ratio=rest
        )
    return table


def _columns(cfg: Config, task: Task, profile: Profile) -> Table:
    used = roles(task, cfg.data.columns)
    table = _table("column", "used as", "type", "empty", "different", "example", numbers=("empty", "different"))
    for column in profile.columns.values():
        example = shorten(str(column.values[0])) if column.values else ""
        cells = shorten(column.name, NAME), shorten(used.get(column.name, ""), NAME), column.kind
        table.add_row(*map(_plain, (*cells, f"{column.empty:,}", f"{len(column.counts):,}", example)))
    if profile.sampled < profile.total:
        table.caption = f"of {profile.sampled:,} evenly spaced rows"
    return table


def _labels(labels: Mapping[str, Mapping[str, int]]) -> Table:
    names = list(dict.fromkeys(name for counts in labels.values() for name in counts))
    table = _table("label", *labels, "share", "", numbers=(*labels, "share"))
    train = labels["train"]
    total, most = sum(train.values()), max(train.values(), default=1)
    for name in names[:MOST_LABELS]:
        count = train.get(name, 0)
        numbers = [f"{counts.get(name, 0):,}" for counts in labels.values()]
        table.add_row(
            _plain(shorten(name, NAME)),
            *numbers,
            f"{count / max(total, 1):.1%}",
            "█" * round(BAR * count / max(most, 1)),
        )
    if len(names) > MOST_LABELS:
        table.add_row(f"and {len(names) - MOST_LABELS} more")
    return table


def _numbers(task: Task, rows: datasets.Dataset) -> str | None:
    """Returns the range of a numeric target column, or None if there is none."""
    for name, column in task.read_columns().items():
        values = rows[name][:] if column.label and name in rows.column_names else []
        found = [number for value in values if isinstance(value, list) for number in value if isinstance(number, float)]
        if found:
            return f"{name}: numbers from {min(found):g} to {max(found):g}, median {median(found):g}"
    return None


def _texts(task: Task, rows: CheckedRows) -> dict[str, list[str]]:
    """Returns the texts of each column that holds texts of several words."""
    import datasets

    train, schema = rows.splits["train"], task.schema()
    found = {}
    for name, column in task.read_columns().items():
        is_name = column.file or (column.label and rows.findings.labels)
        if not is_name and schema.get(name) == datasets.Value("string"):
            texts = [text for text in train[name][:] if text]
            if texts and median(len(text.split()) for text in texts) > 1:
                found[name] = texts
    return found | pairs_of(train, found)


def pairs_of(rows: datasets.Dataset, columns: Collection[str]) -> dict[str, list[str]]:
    """Returns the texts of pairs, which one limit truncates, by a name for both; nothing if rows have one text."""
    if not {*PAIR} <= {*columns}:
        return {}
    return {" and ".join(PAIR): [" ".join(texts) for texts in zip(*(rows[name][:] for name in PAIR), strict=True)]}


def _lengths(cfg: Config, task: Task, texts: Mapping[str, Sequence[str]]) -> Iterator[RenderableType]:
    numbers = ("median", f"{COVERED:.0%} up to", "longest")
    table, notes = _table("length", *numbers, "", numbers=numbers), []
    name = source_of(cfg).name_or_path
    folder = local_folder(name) if name else None
    for name, values in texts.items():
        found = tokens(values, folder)
        table.add_row(f"{name}: characters", *_summary([len(text) for text in values]))
        table.add_row(f"{name}: words", *_summary([len(text.split()) for text in values]))
        table.add_row(f"{name}: tokens", *_summary(found.counts))
        notes.append(f"{name}: tokens are {found.how}")
        if option := limit_of(task, name, list(texts)):
            limit = getattr(task.options, option)
            notes[-1] += f"; {found.share_above(limit):.1%} of the texts are truncated at task.{option}={limit}"
    yield table
    yield "\n".join(textwrap.fill(note, WIDTH) for note in notes)


def _summary(lengths: Sequence[int]) -> list[str]:
    return [f"{number:,.0f}" for number in (median(lengths), quantile(lengths, COVERED), max(lengths))]


PAIR = ("text", "text_pair")
"""The columns of a pair of texts, by the tokenizers' names."""


def limit_of(task: Task, column: str, texts: Sequence[str]) -> str | None:
    """Returns the option that truncates one of the columns of `texts`; None if there is none."""
    limits = limits_of(task.options)
    sides = {getattr(task, side, None): side for side in ("source", "target")}  # of sequence-to-sequence tasks
    alone = (len(texts) == 1 or column == " and ".join(PAIR)) and not task.has("regroup")
    return limits.get(column) or limits.get(sides.get(column, "input" if alone else ""))


def _examples(task: Task, rows: datasets.Dataset) -> str:
    """Returns a few evenly spaced rows."""
    names = [name for name in task.schema() if name in task.read_columns()]
    lines = ["Examples:"]
    for place in evenly(range(len(rows)), NUM_EXAMPLES):
        row = rows[place]
        for number, name in enumerate(name for name in names if row[name] is not None):
            value = row[name]["name"] if task.columns[name].file else _value(row[name])
            lines.append(_item("  " if number else "- ", f"{name}: {shorten(str(value), EXAMPLE_CHARACTERS)}"))
    return "\n".join(lines)


def _value(value: Any) -> Any:
    """Returns the labels or numbers of a row in their shortest form, and any other value as it is."""
    if isinstance(value, list) and all(isinstance(part, Mapping) and "name" in part for part in value):
        return ", ".join(part["name"] for part in value if part["value"]) or "none"
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        value = [{name: each for name, each in part.items() if each is not None} for part in value]
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _item(mark: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"  {mark}", subsequent_indent="      ")


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(text)
