"""The kinds of data that a YAML can be written for, and how their columns and labels are recognised."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from toolkit.config.sections import DataConfig
from toolkit.lab.init.guesses import Guess, Limits, answers, blocks, no_limits, spans, truncation, windows
from toolkit.lab.init.models import LANGUAGES, Model, language_named, language_of
from toolkit.lab.init.profile import (
    BOOLEAN,
    DATE,
    FILES,
    MIXED,
    NOTHING,
    NUMBER,
    NUMBERS,
    OBJECT,
    OBJECTS,
    TEXT,
    TEXTS,
    WHOLE,
    ColumnProfile,
    Profile,
)

Columns = dict[str, str]
"""The file's columns by the recipe's names for them."""
Find = Callable[[Profile, Columns], Columns | None]
"""Returns the columns of a kind of data, given those that the user named; None if the file is of another kind."""
_TAG = re.compile(r"O|[BIESLU]-\S+")
_LEAST_CHARACTERS = 15
"""Smallest mean length of a text that no name gives away."""


@dataclass(frozen=True)
class Role:
    """A column that a kind of data needs."""

    name: str  # the recipe's name for it
    usual: str  # usual names, each a lower-case word or several without anything between
    fits: Callable[[ColumnProfile], bool]  # whether a column can have this role
    # orders columns that fit and have no usual name, the best last; None if the name is required
    rank: Callable[[ColumnProfile], tuple[float, ...]] | None = None

    def named(self, column: ColumnProfile) -> int:
        """Returns how much a column's name means this role: 2 completely, 1 in part, 0 not."""
        words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column.name).lower())
        usual = {self.name, *self.usual.split()}
        return 2 if "".join(words) in usual else 1 if usual & set(words) else 0

    def choose(self, columns: Mapping[str, ColumnProfile]) -> str | None:
        """Returns the name of the column that fits best, or None."""
        fitting = [column for column in columns.values() if self.fits(column) and (self.rank or self.named(column))]
        rank = self.rank or (lambda column: ())
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


def is_answer(column: ColumnProfile) -> bool:
    """Whether a column holds SQuAD's answers, with their places in the context."""
    return column.kind == OBJECT and all({"text", "answer_start"} <= value.keys() for value in column.values)


def has_kind(kind: str) -> Callable[[ColumnProfile], bool]:
    """Returns a function that tells whether a column holds values of a kind."""
    return lambda column: column.kind == kind


def repeats(column: ColumnProfile) -> tuple[float, float]:
    """Returns whether few enough rows for a run lack a value (1 or 0), and how often a value occurs, on average."""
    rows = len(column.values) + column.empty
    return float(column.empty <= DataConfig.max_bad_rows * rows), len(column.values) / max(len(column.counts), 1)


def length(column: ColumnProfile) -> tuple[float]:
    """Returns the mean number of characters of a column's values."""
    return (column.mean_characters,)


def find_pair(profile: Profile, given: Columns) -> Columns | None:
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


def is_chat(column: ColumnProfile) -> bool:
    """Whether a column holds conversations."""
    return column.kind == OBJECTS and all(
        {"role", "content"} <= turn.keys() for turns in column.values for turn in turns
    )


def is_tokens(column: ColumnProfile) -> bool:
    """Whether a column holds lists of texts."""
    return all(isinstance(value, list) and all(isinstance(each, str) for each in value) for value in column.values)


def is_tags(column: ColumnProfile) -> bool:
    """Whether a column holds lists of tags of entities."""
    return column.kind == TEXTS and all(_TAG.fullmatch(tag) for tags in column.values for tag in tags)


def find_plain_text(profile: Profile, given: Columns) -> Columns | None:
    """Finds the lines of a text file, or the column that the user named."""
    column = given.get("text", "text")
    is_plain = Path(profile.source).suffix.lower() == ".txt" or bool(given)
    return {"text": column} if is_plain and column in profile.columns else None


MOST_WHOLE_CLASSES = 20
"""Whole numbers with at most this many values are classes."""
_SEPARATORS = (",", ";", "|")
_LEAST_SEPARATED = 0.05
"""Smallest share of values with several labels."""
_MOST_CHARACTERS = 60
_MOST_CLASSES = 500

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


@dataclass(frozen=True)
class LabelKind:
    """The meaning of a label column."""

    problem_type: str  # `task.problem_type`
    reason: str  # why
    separator: str | None = None  # `task.label_separator`, or None where it does not matter


def can_be_label(column: ColumnProfile) -> bool:
    """Whether a column can be a label: numbers that are no ids, or values that repeat."""
    if column.kind in (TEXTS, NUMBERS):
        return True
    if column.kind == OBJECT:
        return all(isinstance(flag, bool | int | float | None) for value in column.values for flag in value.values())
    if column.kind in (DATE, MIXED, NOTHING, *FILES.values()) or len(column.counts) < 2:
        return False
    if column.kind in (WHOLE, NUMBER):
        return column.kind == NUMBER or not column.is_unique
    repeats = len(column.counts) <= min(_MOST_CLASSES, len(column.values) / 2)
    return repeats and column.mean_characters <= _MOST_CHARACTERS


def merged(counts: Mapping[str, int]) -> dict[str, str]:
    """Maps labels to the most frequent of those that differ from them only in case and blanks."""
    alike: dict[str, list[str]] = {}
    for label in counts:
        alike.setdefault(" ".join(label.casefold().split()), []).append(label)
    most = {label: max(group, key=lambda name: counts[name]) for group in alike.values() for label in group}
    return {label: name for label, name in most.items() if label != name}


def label_kind(column: ColumnProfile) -> LabelKind:
    """Returns what a label column most likely means."""
    if column.kind in (TEXTS, OBJECT) and not _has_numbers(column):
        return LabelKind(MULTI, f"{column.name!r} holds {column.kind}")
    if column.kind in (NUMBERS, OBJECT):
        return LabelKind(REGRESSION, f"{column.name!r} holds several numbers per row")
    different = len({float(value) for value in column.numbers}) if column.numbers else len(column.counts)
    if column.kind == WHOLE and different <= MOST_WHOLE_CLASSES:
        return LabelKind(SINGLE, f"whole numbers with at most {MOST_WHOLE_CLASSES} values are classes")
    if column.kind in (WHOLE, NUMBER):
        low, high = min(column.numbers), max(column.numbers)
        few = f"whole numbers with at most {MOST_WHOLE_CLASSES} values would be classes"
        return LabelKind(REGRESSION, f"{column.kind} from {low:g} to {high:g} with {different} values; {few}")
    for separator in _SEPARATORS if column.kind == TEXT else ():
        if share := _separated(column, separator):
            return LabelKind(
                MULTI, f"{share:.0%} of the values are several labels, separated by {separator!r}", separator
            )
    return LabelKind(SINGLE, "true or false" if column.kind == BOOLEAN else "one name per row")


def _has_numbers(column: ColumnProfile) -> bool:
    return column.kind == OBJECT and any(
        isinstance(value, float) or (isinstance(value, int) and value not in (0, 1))
        for values in column.values
        for value in values.values()
    )


def _separated(column: ColumnProfile, separator: str) -> float:
    """Returns the share of values with several labels; 0 if the separator is part of names.

    The parts are labels if they recur: there are at most as many as there are combinations of them.
    """
    several = sum(count for value, count in column.counts.items() if separator in value.strip(separator))
    combinations = {frozenset(part.strip() for part in value.split(separator)) for value in column.counts}
    parts = Counter(part for each in combinations for part in each if part)
    recurring = parts and max(parts.values()) > 1 and len(parts) <= len(combinations)
    share = several / len(column.values)
    return share if recurring and share >= _LEAST_SEPARATED else 0.0


@dataclass(frozen=True)
class Sample:
    """What is known about the data from a sample of its rows."""

    profile: Profile  # the columns of the file
    columns: Columns  # those that are used, by the recipe's names
    languages: Sequence[str | None]  # codes of the languages of the texts; None for one that is not recognised
    model: Model  # the model
    given: Mapping[str, str]  # the settings that the user named, as text by dotted key

    def column(self, role: str) -> ColumnProfile:
        """Returns the column with the recipe's name `role`."""
        return self.profile.columns[self.columns[role]]


Settings = Callable[[Sample], list[Guess]]
"""Returns settings of the task that follow from a sample."""


@dataclass(frozen=True)
class Kind:
    """A kind of data."""

    name: str  # key of its models in `models.CANDIDATES`
    recipe: str  # name of the recipe
    what: str  # what the rows are, for comments and messages
    find: Find  # finds its columns
    texts: Sequence[str] = ()  # the recipe's names of the columns whose language matters to the model
    limits: Limits = no_limits  # the settings that follow from the lengths of the rows
    settings: Sequence[Settings] = ()  # the settings of the task that follow from the columns


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


def data_format(name: str) -> Settings:
    """Returns a function that sets the format of conversations or prompts."""
    return lambda sample: [Guess("task.data_format", name, "only answers are trained and scored")]


def summary_prefix(sample: Sample) -> list[Guess]:
    """Returns the text that T5 needs before a document."""
    why = "T5 was trained with such a text before the document"
    return [Guess("task.source_prefix", "summarize: ", why)] if sample.model.model_type == "t5" else []


def languages_of(profile: Profile, columns: Columns, texts: Sequence[str]) -> list[str | None]:
    """Returns the codes of the languages of columns; those of a mapping of languages are its keys."""
    if "translation" in columns:
        return [language_named(key) for key in profile.columns[columns["translation"]].values[0]][:2]
    if len(texts) > 1:
        return [column_language(profile.columns[columns[name]]) for name in texts]
    return [language_of(map(_as_text, profile.columns[columns[name]].values[:200])) for name in texts]


def _as_text(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


_LABEL = Role(
    "label",
    "labels class classes category categories target sentiment rating ratings stars score intent topic tags tag genre "
    "kategorie klasse bewertung note sterne stimmung y",
    can_be_label,
    repeats,
)
_TEXT = Role(
    "text",
    "review reviews comment comments body message content sentence tweet post description feedback kommentar",
    is_text,
    length,
)

KINDS = (
    Kind(
        *("token_classification", "token_classification", "texts with a tag for each token"),
        find=roles(Role("tags", "ner_tags labels", is_tags, length), Role("tokens", "words", is_tokens, length)),
        texts=("tokens",),
        limits=spans,
    ),
    Kind(
        *("chat", "language_modeling", "conversations"),
        find=roles(Role("messages", "conversation conversations chat", is_chat, length)),
        limits=answers,
        settings=[data_format("messages")],
    ),
    Kind(
        *("audio", "reviews", "audio clips with a label"),
        find=roles(Role("audio", "file filename path", has_kind(FILES["audio"]), length), _LABEL),
        settings=[media("audio"), label_settings],
    ),
    Kind(
        *("image", "reviews", "images with a label"),
        find=roles(Role("image", "file filename path", has_kind(FILES["image"]), length), _LABEL),
        settings=[media("image"), label_settings],
    ),
    Kind(
        *("qa", "qa", "questions with answers in a context"),
        find=roles(
            Role("question", "query", has_kind(TEXT)),
            Role("context", "passage paragraph document text", has_kind(TEXT)),
            Role("answers", "answer", is_answer),
        ),
        texts=("context",),
        limits=windows,
        settings=[unanswerable],
    ),
    Kind(
        *("translation", "translation", "texts in two languages"),
        find=find_pair,
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
        *("chat", "language_modeling", "prompts and completions"),
        find=roles(
            Role("prompt", "instruction question input user", has_kind(TEXT)),
            Role("completion", "response output answer assistant reply", has_kind(TEXT)),
        ),
        texts=("prompt",),
        limits=answers,
        settings=[data_format("prompt_completion")],
    ),
    Kind(
        *("summarization", "summarization", "texts with summaries"),
        find=roles(
            Role("summary", "highlights abstract tldr zusammenfassung", has_kind(TEXT)),
            Role("document", "article text content body dialogue story", is_text, length),
        ),
        texts=("document",),
        limits=truncation(max_source_length="document", max_target_length="summary"),
        settings=[summary_prefix],
    ),
    Kind(
        *("language_modeling", "language_modeling", "plain text"),
        find=find_plain_text,
        texts=("text",),
        limits=blocks,
        settings=[objective],
    ),
)
"""All kinds; the first whose columns are found is taken."""
