"""A new YAML: a sample shows the kind of data, and all rows, checked as in a run, the remaining settings."""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from typing import Any

from toolkit.api.task import Task
from toolkit.base.console import LOGGER, shorten
from toolkit.base.errors import ConfigError, DataError, InputError
from toolkit.config import Loaded
from toolkit.config.fields import STRICT
from toolkit.config.keys import flatten
from toolkit.config.load import load_config
from toolkit.config.messages import did_you_mean, join
from toolkit.config.paths import DATA_FILES, data_file_problems
from toolkit.config.sections import Config, DataConfig
from toolkit.config.templates import escaped
from toolkit.data.columns import Beside, unused_columns
from toolkit.data.findings import listed
from toolkit.data.loading import CheckedRows, check_rows
from toolkit.data.readers.raw import Reading
from toolkit.data.table import skipped
from toolkit.lab.init.columns import COLUMN, Columns, is_text
from toolkit.lab.init.files import entity_guesses, file_guesses, name_of, split_files
from toolkit.lab.init.guesses import Guess, evaluation, groups, speed, to_text, training, validation
from toolkit.lab.init.kinds import KINDS, Kind, Sample, languages_of
from toolkit.lab.init.labels import SINGLE, can_be_label, merged
from toolkit.lab.init.models import choose, from_scratch
from toolkit.lab.init.profile import ColumnProfile, Profile, profile_files
from toolkit.recipe import load_settings, load_task_type

TEXT_ROLES = ("text", "source", "target", "context")
LABEL_MAP = "task.label_map"
AS_GIVEN = "as given"
"""The reason of settings that the user named."""


@dataclass(frozen=True)
class Draft:
    """A new YAML."""

    kind: Kind  # the kind of data
    sample: Sample  # what is known from a sample
    guesses: Sequence[Guess]  # its settings, with their reasons
    config: Config  # the settings
    task: Task  # the recipe's task
    rows: CheckedRows  # all rows, checked and split
    unused: Sequence[str]  # columns of the file that nothing reads

    @property
    def summary(self) -> str:
        """What the data is, for a message."""
        return f"{sum(map(len, self.rows.splits.values())):,} rows: {self.kind.what}"

    def yaml(self, command: str) -> str:
        """Returns the text of the YAML, whose first line names the command that uses it."""
        title = [f"Written by `toolkit init` for {self.summary}. Comments give the reasons.", f"Run: {command}"]
        title += [f"Not used: {shorten(name)}" for name in self.unused]
        return to_text(title, self.guesses)


@dataclass(frozen=True)
class _NoTask:
    """Options of no task, to read settings of the data before the recipe is known."""

    __pydantic_config__ = STRICT


def draft(source: str, recipe: str | None = None, overrides: Sequence[str] = (), *, scratch: bool = False) -> Draft:
    """Guesses the settings for a file or folder, except for `overrides`, and the recipe, unless it is named.

    The model is a pretrained one or, with `scratch`, a small new one.

    Raises:
        InputError: if the data fits no recipe; the message says which columns there are, and what to do.
        ConfigError: if an override is wrong.
        DataError: if the file cannot be read, or too many rows cannot be used.
    """
    given = {key: value for key, _, value in (text.partition("=") for text in overrides)}
    files = split_files(source)
    data = _data_settings(files, overrides)
    reading = list(file_guesses(data))
    data = replace(data, **{guess.key.removeprefix("data."): guess.value for guess in reading})
    profile = profile_files(data.files("train_file"), Reading.of(data))
    kind, columns = recognise(profile, recipe, given)
    languages, named = languages_of(profile, columns, kind.texts), given.get("model.name_or_path")
    if scratch and named:
        raise InputError(f"--from-scratch: a model is named, too, {named}; remove one of them")
    model = from_scratch(kind.name, kind.what) if scratch else choose(kind.name, languages, named)
    sample = Sample(profile, columns, languages, model, given)
    guesses = [
        Guess("output_dir", f"outputs/{name_of(source)}", "everything that the run writes"),
        *([] if model.settings else [Guess("model.name_or_path", model.name, model.reason)]),
        *files,
        *reading,
        *entity_guesses(profile, sample.texts),
        *_column_guesses(sample),
        *(guess for settings in kind.settings for guess in settings(sample)),
        *starmap(Guess, model.settings.items()),
        *_split_guesses(kind, sample, files),
    ]
    task_type = load_task_type(kind.recipe)
    first, rows = _rows(task_type, sample, guesses, overrides)
    if labels := _label_map(sample, first, rows):
        guesses.append(labels)
        first, rows = _rows(task_type, sample, guesses, overrides)
    guesses = [*map(partial(_counted, rows=rows), guesses), *_from_rows(kind, sample, first, rows)]
    loaded = load_settings(task_type, _nested(guesses), overrides, {})
    task, read = task_type(loaded.config), loaded.config.data
    rows = check_rows(loaded.config, task)  # what a run will read
    unused = unused_columns(profile.columns, task, read.columns, Beside.of(read, task))
    return Draft(kind, sample, _as_given(guesses, loaded), loaded.config, task, rows, unused)


def _rows(
    task_type: type[Task], sample: Sample, guesses: Sequence[Guess], overrides: Sequence[str]
) -> tuple[Config, CheckedRows]:
    """Returns the settings so far, and the rows, checked and split; a DataError names the guessed columns."""
    cfg = load_settings(task_type, _nested(guesses), overrides, {}).config
    try:
        with ExitStack() as after:  # notes on the files are for the last time that they are read
            after.callback(LOGGER.setLevel, LOGGER.level)
            LOGGER.setLevel(logging.ERROR)
            return cfg, check_rows(replace(cfg, data=replace(cfg.data, bad_rows="skip")), task_type(cfg))
    except DataError as error:
        guessed = {role: name for role, name in sample.columns.items() if COLUMN + role not in sample.given}
        if not guessed:
            raise
        listed = ", ".join(f"{COLUMN}{role}={shlex.quote(name)}" for role, name in guessed.items())
        raise DataError(
            f"{error}\nThese columns were guessed; if one is wrong, name the right one: {listed}"
        ) from error


def _label_map(sample: Sample, cfg: Config, rows: CheckedRows) -> Guess | None:
    """Returns how to merge labels that differ only in case and blanks; None if there are none, or a map is given."""
    if not hasattr(cfg.task, "label_map") or any(key.startswith(LABEL_MAP) for key in sample.given):
        return None
    labels = merged(rows.findings.labels.get("train", {}))
    return Guess(LABEL_MAP, labels, "these labels differ only in case or blanks") if labels else None


def recognise(profile: Profile, recipe: str | None, given: Mapping[str, str]) -> tuple[Kind, Columns]:
    """Returns the first kind of data that fits, of `recipe` if it is named, and its columns by the recipe's names.

    Raises InputError if the data fits no recipe, or not this one.
    """
    recipes = list(dict.fromkeys(kind.recipe for kind in KINDS))
    if recipe is not None and recipe not in recipes:
        raise InputError(f"--recipe: received {recipe!r}, expected {join(recipes)}{did_you_mean(recipe, recipes)}")
    chosen = {key.removeprefix(COLUMN): value for key, value in given.items() if key.startswith(COLUMN)}
    missing = [repr(part) for name in chosen.values() for part in profile.parts(name) if part not in profile.columns]
    if not missing:
        for kind in KINDS:
            if recipe in (None, kind.recipe) and (columns := kind.find(profile, chosen)):
                return kind, columns
    listed = "\n".join(f"  {column.name}: {_described(column)}" for column in profile.columns.values())
    wanted = f"the recipe {recipe}" if recipe else "any recipe"
    problem = f"there is no column {join(missing)}" if missing else f"the columns do not fit {wanted}"
    raise InputError("\n".join([f"{profile.source}: {problem}. Its columns:", listed, *_advice(profile, recipe)]))


def _advice(profile: Profile, recipe: str | None) -> Iterator[str]:
    """Yields what to do with columns that do not fit."""
    if recipe is not None:
        columns = {name: column for name, column in load_task_type(recipe).columns.items() if column.required}
        yield "\n".join([f"{recipe} reads:", *(f"  {name}: {column.help}" for name, column in columns.items())])
        yield f"Name your columns: {' '.join(f'{COLUMN}{name}=COLUMN' for name in columns)}, as far as they are there."
        return
    yield (
        "Classification and regression need a column of labels that repeat, or of numbers, beside the text, image or "
        f"audio file; name it with {COLUMN}label=COLUMN (and the text with {COLUMN}text=COLUMN).\n"
        f"Speech recognition needs a column of transcripts beside the audio file; name it with {COLUMN}text=COLUMN.\n"
        f"To train a language model on a column: --recipe language_modeling {COLUMN}text=COLUMN."
    )


def _data_settings(files: Sequence[Guess], overrides: Sequence[str]) -> DataConfig:
    """Returns the section `data` of the files and the overrides, which may say how to read them."""
    values = _nested([Guess("output_dir", "unused"), Guess("model.name_or_path", "unused"), *files])
    config = load_config(_NoTask, values, [text for text in overrides if text.startswith("data.")], {}).config
    if problems := [each for key in DATA_FILES for each in data_file_problems(config, f"data.{key}")]:
        raise ConfigError(problems)
    return config.data


def _described(column: ColumnProfile) -> str:
    different = f"{len(column.counts):,} different" if not column.is_unique else "all different"
    return f"{column.kind}, {different}" if column.values else "empty"


def _column_guesses(sample: Sample) -> Iterator[Guess]:
    """Yields the columns whose name is not the recipe's."""
    profile = sample.profile
    used = [part for name in sample.columns.values() for part in profile.parts(name)]
    for role, name in sorted(sample.columns.items(), key=lambda item: item[0] == "label"):
        if name not in profile.columns:
            yield Guess(f"{COLUMN}{role}", name, f"{join(profile.parts(name), 'and')} are read as one text")
            continue
        column = profile.columns[name]
        fits = can_be_label if role == "label" else is_text if role in TEXT_ROLES else None
        free = [each for each in profile.columns.values() if each.name not in used]
        others = [repr(each.name) for each in free if fits and fits(each)]
        why = _described(column) + (f"; or is it {join(others)}?" if others else "")
        if role == "text_pair":
            why = f"the second text of a pair with {sample.columns['text']}: {why}"
        if name != role:
            yield Guess(f"{COLUMN}{role}", escaped(name), why)


def _split_guesses(kind: Kind, sample: Sample, files: Sequence[Guess]) -> Iterator[Guess]:
    """Yields how rows are set aside for validation."""
    if all(guess.key != "data.validation_file" for guess in files):
        yield validation(sample.profile.total)
        if kind.recipe != "qa":  # which keeps the questions about a context together by itself
            used = {part for name in sample.columns.values() for part in sample.profile.parts(name)}
            yield from (guess for guess in groups(sample.profile) if guess.value not in used)


def _from_rows(kind: Kind, sample: Sample, cfg: Config, rows: CheckedRows) -> Iterator[Guess]:
    """Yields the settings that follow from all rows."""
    train, findings = rows.splits["train"], rows.findings
    limits = kind.limits(train, sample.model, cfg.task)
    yield from limits
    if any(rows.bad_rows.values()):
        reasons = [str(skipped(table)) for table in rows.tables["train"].files if table.bad]
        yield Guess("data.bad_rows", "skip", "; ".join(reasons))
    longest = max((guess.value for guess in limits if "length" in guess.key or "block" in guess.key), default=0)
    adapters = sample.given.get("model.peft.method", "none") != "none"
    yield from training(len(train), longest, sample.model, adapters)
    blocks = kind.recipe == "language_modeling" and kind.name not in ("chat", "prompts")
    texts = [] if blocks or not kind.texts else list(map(str, train[kind.texts[0]][:]))
    yield from speed(texts, convolutions=kind.name in ("audio", "image", "speech"))
    if cfg.data.validation_file or cfg.data.validation_split != 0:
        single = getattr(cfg.task, "problem_type", None) == SINGLE
        yield from evaluation(findings.labels.get("train", {}), single, sum(map(len, rows.splits.values())))


def _counted(guess: Guess, rows: CheckedRows) -> Guess:
    """Adds the number of rows with each label to the reason of the type of label."""
    labels = rows.findings.labels
    if guess.key != "task.problem_type" or not labels:
        return guess
    total = Counter[str]()
    for counts in labels.values():
        total.update(counts)
    what = "classes" if guess.value == SINGLE else "labels"
    return replace(guess, reason=f"{len(total)} {what}: {listed(total)}; {guess.reason}")


def _as_given(guesses: Sequence[Guess], loaded: Loaded) -> list[Guess]:
    """Returns the guesses with the values that were given instead, and everything else that was given."""
    values = flatten(loaded.config)
    given = {key: Guess(key, values[key], AS_GIVEN) for key, origin in loaded.origins.items() if origin == "override"}
    # Naming a new model's type clears `model.name_or_path`.
    kept = [given.pop(each.key, each) for each in guesses if each.key in given or values.get(each.key, "") is not None]
    return kept + list(given.values())


def _nested(guesses: Iterable[Guess]) -> dict[str, Any]:
    """Returns settings as nested sections."""
    values: dict[str, Any] = {}
    for guess in guesses:
        *groups, name = guess.key.split(".")
        section = values
        for group in groups:
            section = section.setdefault(group, {})
        section[name] = guess.value
    return values
