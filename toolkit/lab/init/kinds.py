"""The kinds of data that a YAML can be written for, and how their columns are recognised: one entry of `KINDS` each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from toolkit.data.profile import FILES, OBJECT, TEXT, ColumnProfile, Profile
from toolkit.lab.init.guess import Guess
from toolkit.lab.init.labels import can_be_label, label_kind
from toolkit.lab.init.languages import LANGUAGES, language_named, language_of
from toolkit.lab.init.lengths import Limits, blocks, no_limits, truncation, windows
from toolkit.lab.init.models import Model

Columns = dict[str, str]
"""The file's columns by the recipe's names for them."""
Find = Callable[[Profile, Columns], Columns | None]
"""Returns the columns of a kind of data, given those that the user named; None if the file is of another kind."""


@dataclass(frozen=True)
class Sample:
    """What is known about the data from a sample of its rows.

    Args:
        profile: the columns of the file.
        columns: those that are used, by the recipe's names.
        languages: codes of the languages of the texts; None for one that is not recognised.
        model: the model.
        given: the settings that the user named, as text by dotted key.
    """

    profile: Profile
    columns: Columns
    languages: Sequence[str | None]
    model: Model
    given: Mapping[str, str]

    def column(self, role: str) -> ColumnProfile:
        """Returns the column with the recipe's name `role`."""
        return self.profile.columns[self.columns[role]]


Settings = Callable[[Sample], list[Guess]]
"""Returns settings of the task that follow from a sample."""

_LEAST_CHARACTERS = 15
"""Smallest mean length of a text that no name gives away."""


@dataclass(frozen=True)
class Kind:
    """A kind of data.

    Args:
        name: key of its models in `models.CANDIDATES`.
        recipe: name of the recipe.
        what: what the rows are, for comments and messages.
        find: finds its columns.
        texts: the recipe's names of the columns whose language matters to the model.
        limits: the settings that follow from the lengths of the rows.
        settings: the settings of the task that follow from the columns.
    """

    name: str
    recipe: str
    what: str
    find: Find
    texts: Sequence[str] = ()
    limits: Limits = no_limits
    settings: Sequence[Settings] = ()


@dataclass(frozen=True)
class Role:
    """A column that a kind of data needs.

    Args:
        name: the recipe's name for it.
        usual: usual names, each a lower-case word or several without anything between.
        fits: whether a column can have this role.
        rank: orders columns that fit and have no usual name, the best last; None if the name is required.
    """

    name: str
    usual: str
    fits: Callable[[ColumnProfile], bool]
    rank: Callable[[ColumnProfile], float] | None = None

    def named(self, column: ColumnProfile) -> int:
        """Returns how much a column's name means this role: 2 completely, 1 in part, 0 not."""
        words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column.name).lower())
        usual = {self.name, *self.usual.split()}
        return 2 if "".join(words) in usual else 1 if usual & set(words) else 0

    def choose(self, columns: Mapping[str, ColumnProfile]) -> str | None:
        """Returns the name of the column that fits best, or None."""
        fitting = [column for column in columns.values() if self.fits(column) and (self.rank or self.named(column))]
        rank = self.rank or (lambda column: 0.0)
        best = max(fitting, key=lambda column: (self.named(column), rank(column)), default=None)
        return best.name if best else None


def roles(*needed: Role) -> Find:
    """Returns a function that finds a column for each role."""

    def find(profile: Profile, given: Columns) -> Columns | None:
        found = dict(given)
        for role in needed:
            free = {name: column for name, column in profile.columns.items() if name not in found.values()}
            if role.name not in found:
                best = role.choose(free)
                if best is None:
                    return None
                found[role.name] = best
        return found

    return find


def is_text(column: ColumnProfile) -> bool:
    """Whether a column holds texts, not names."""
    return column.kind == TEXT and column.mean_characters >= _LEAST_CHARACTERS


def _is_answer(column: ColumnProfile) -> bool:
    return column.kind == OBJECT and all({"text", "answer_start"} <= value.keys() for value in column.values)


def _has_kind(kind: str) -> Callable[[ColumnProfile], bool]:
    return lambda column: column.kind == kind


def _repeats(column: ColumnProfile) -> float:
    return len(column.values) / max(len(column.counts), 1)


def _length(column: ColumnProfile) -> float:
    return column.mean_characters


def _pair(profile: Profile, given: Columns) -> Columns | None:
    """Finds a mapping of languages, or two columns of text in different languages."""
    mappings = [column for column in profile.columns.values() if column.kind == OBJECT]
    for column in mappings:
        languages = list(column.values[0])
        if len(languages) >= 2 and all(map(language_named, languages)):
            return {"translation": column.name}
    texts = {name: column for name, column in profile.columns.items() if column.kind == TEXT}
    if {"source", "target"} <= given.keys():
        return given
    for source, target in permutations(texts, 2):
        pair = column_language(texts[source]), column_language(texts[target])
        if None not in pair and pair[0] != pair[1]:
            found = {"source": source, "target": target} | given
            if len(set(found.values())) == len(found):
                return found
    return None


def column_language(column: ColumnProfile) -> str | None:
    """Returns the code of a column's language: that of its texts or, if they are too short, that in its name."""
    return language_of(map(str, column.values[:200])) or language_named(column.name)


def _plain_text(profile: Profile, given: Columns) -> Columns | None:
    column = given.get("text", "text")
    is_plain = Path(profile.source).suffix.lower() == ".txt" or bool(given)
    return {"text": column} if is_plain and column in profile.columns else None


def media(modality: str) -> Settings:
    """Returns a function that sets the modality of the input."""
    return lambda sample: [Guess("task.modality", modality, f"{sample.columns[modality]!r} holds {FILES[modality]}")]


def label_settings(sample: Sample) -> list[Guess]:
    """Returns what the label means."""
    meaning = label_kind(sample.column("label"))
    found = [Guess("task.problem_type", meaning.problem_type, meaning.reason)]
    changed = sample.given.get("task.problem_type", meaning.problem_type) != meaning.problem_type
    return found + ([Guess("task.label_separator", meaning.separator)] if meaning.separator and not changed else [])


def unanswerable(sample: Sample) -> list[Guess]:
    """Returns whether questions may have no answer."""
    answers = sample.column("answers").values
    without = sum(not each["text"] for each in answers)
    why = f"{without:,} of {len(answers):,} questions have no answer"
    return [Guess("task.version_2_with_negative", True, why)] if without else []


def translated_languages(sample: Sample) -> list[Guess]:
    """Returns the languages, as the model wants them."""
    source, target = sample.languages
    if source is None or target is None:
        return []
    names = [LANGUAGES[code].names[0].capitalize() for code in (source, target)]
    codes = [LANGUAGES[code].code if sample.model.model_type == "mbart" else code for code in (source, target)]
    found = [
        Guess(f"task.{side}_lang", code, name)
        for side, code, name in zip(("source", "target"), codes, names, strict=True)
    ]
    if sample.model.model_type == "t5":
        prefix = f"translate {names[0]} to {names[1]}: "
        found.append(Guess("task.source_prefix", prefix, "T5 was trained with such a text before the source"))
    return found


def objective(sample: Sample) -> list[Guess]:
    """Returns whether the model predicts the next token or masked ones."""
    masked = Guess("task.objective", "masked", "this model predicts masked tokens")
    return [masked] if sample.model.masked else [Guess("task.objective", "causal", "predicts the next token")]


def languages_of(profile: Profile, columns: Columns, texts: Sequence[str]) -> list[str | None]:
    """Returns the codes of the languages of columns; those of a mapping of languages are its keys."""
    if "translation" in columns:
        return [language_named(key) for key in profile.columns[columns["translation"]].values[0]][:2]
    if len(texts) > 1:
        return [column_language(profile.columns[columns[name]]) for name in texts]
    return [language_of(map(str, profile.columns[columns[name]].values[:200])) for name in texts]


_LABEL = Role(
    "label",
    "labels class classes category categories target sentiment rating ratings stars score intent topic tags tag genre "
    "kategorie klasse bewertung note sterne y",
    can_be_label,
    _repeats,
)
_TEXT = Role(
    "text",
    "review reviews comment comments body message content sentence tweet post description feedback kommentar",
    is_text,
    _length,
)

KINDS = (
    Kind(
        *("audio", "reviews", "audio clips with a label"),
        find=roles(Role("audio", "file filename path", _has_kind(FILES["audio"]), _length), _LABEL),
        settings=[media("audio"), label_settings],
    ),
    Kind(
        *("image", "reviews", "images with a label"),
        find=roles(Role("image", "file filename path", _has_kind(FILES["image"]), _length), _LABEL),
        settings=[media("image"), label_settings],
    ),
    Kind(
        *("qa", "qa", "questions with answers in a context"),
        find=roles(
            Role("question", "query", _has_kind(TEXT)),
            Role("context", "passage paragraph document text", _has_kind(TEXT)),
            Role("answers", "answer", _is_answer),
        ),
        texts=("context",),
        limits=windows,
        settings=[unanswerable],
    ),
    Kind(
        *("translation", "translation", "texts in two languages"),
        find=_pair,
        texts=("source", "target"),
        limits=truncation(max_source_length="source", max_target_length="target"),
        settings=[translated_languages],
    ),
    Kind(
        *("text", "reviews", "texts with a label"),
        find=roles(_LABEL, _TEXT),
        texts=("text",),
        limits=truncation(max_length="text"),
        settings=[label_settings],
    ),
    Kind(
        *("language_modeling", "language_modeling", "plain text"),
        find=_plain_text,
        texts=("text",),
        limits=blocks,
        settings=[objective],
    ),
)
"""All kinds; the first whose columns are found is taken."""
