"""The kinds of data that a YAML can be written for, and how their columns are recognised: one entry of `KINDS` each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.lab.init.columns import (
    Columns,
    Find,
    Role,
    column_language,
    find_pair,
    find_plain_text,
    has_kind,
    is_answer,
    is_chat,
    is_tags,
    is_text,
    is_tokens,
    length,
    repeats,
    roles,
)
from toolkit.lab.init.guess import Guess
from toolkit.lab.init.guesses import Limits, answers, blocks, no_limits, spans, truncation, windows
from toolkit.lab.init.labels import can_be_label, label_kind
from toolkit.lab.init.languages import LANGUAGES, language_named, language_of
from toolkit.lab.init.models import Model
from toolkit.lab.init.profile import FILES, TEXT, ColumnProfile, Profile


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
