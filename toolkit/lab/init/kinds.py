"""The kinds of data that a YAML can be written for, and the settings that follow from their rows."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import pstdev
from typing import Any

from toolkit.base.errors import InputError
from toolkit.config.messages import join
from toolkit.lab.init.columns import (
    COLUMN,
    LABEL_ROLE,
    TEXT_ROLE,
    Columns,
    Find,
    Role,
    column_language,
    find_answers,
    find_chats,
    find_clips,
    find_instructions,
    find_judged,
    find_named_prompts,
    find_pair,
    find_plain_text,
    find_preferences,
    find_prompts,
    find_scored,
    find_search,
    find_speech,
    find_texts,
    has_kind,
    is_chat,
    is_tags,
    is_text,
    is_tokens,
    length,
    roles,
    words_of,
)
from toolkit.lab.init.guesses import (
    Guess,
    Limits,
    answers,
    blocks,
    both_answers,
    durations,
    each_text,
    pixels,
    spans,
    truncation,
    windows,
)
from toolkit.lab.init.labels import REGRESSION, SINGLE, doubtful, is_flag, label_kind
from toolkit.lab.init.models import LANGUAGES, Model, language_named, language_of
from toolkit.lab.init.profile import FILES, TEXT, ColumnProfile, Profile


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
        return self.profile.column(self.columns[role])

    @property
    def texts(self) -> list[str]:
        """The file's columns that are read as the input."""
        return [part for role, name in self.columns.items() if role != "label" for part in self.profile.parts(name)]


Settings = Callable[[Sample], list[Guess]]
"""Returns settings of the task that follow from a sample."""


@dataclass(frozen=True)
class Kind:
    """A kind of data."""

    name: str  # key of its models in `models.CANDIDATES`
    recipe: str  # name of the recipe
    what: str  # what the rows are, for comments and messages
    find: Find  # finds its columns
    limits: Limits  # the settings that follow from the lengths of the rows
    texts: Sequence[str] = ()  # the recipe's names of the columns whose language matters to the model
    settings: Sequence[Settings] = ()  # the settings of the task that follow from the columns


def media(modality: str) -> Settings:
    """Returns a function that sets the modality of the input."""
    return lambda sample: [Guess("task.modality", modality, f"{sample.columns[modality]!r} holds {FILES[modality]}")]


def label_settings(sample: Sample) -> list[Guess]:
    """Returns what the label means; raises InputError if that needs names, or another form of the file."""
    _require_one_label(sample)
    if "task.problem_type" not in sample.given and (doubt := doubtful(sample.column("label"), sample.given)):
        raise InputError(
            f"{sample.profile.source}: {doubt}, or, if they are names of classes, pass task.problem_type={SINGLE}"
        )
    meaning = label_kind(sample.column("label"))
    found = [Guess("task.problem_type", meaning.problem_type, meaning.reason)]
    if sample.given.get("task.problem_type", meaning.problem_type) != meaning.problem_type:
        return found
    if meaning.vector and "task.labels" not in sample.given:
        raise InputError(
            f"{sample.profile.source}: {meaning.reason}, whose {meaning.vector} places have no names; name them in "
            "their order: task.labels=[NAME,NAME,...]"
        )
    values = {"task.label_separator": meaning.separator, "task.decimal": meaning.decimal}
    found += [Guess(key, value) for key, value in values.items() if value]
    numbers = sample.column("label").amounts or sample.column("label").numbers
    if meaning.problem_type == REGRESSION and numbers and not 0.3 < pstdev(numbers) < 3:
        spread = f"they spread by {pstdev(numbers):.3g}: without it, the learning rate would depend on their unit"
        found.append(Guess("task.scale_targets", True, spread))
    return found


def _require_one_label(sample: Sample) -> None:
    """Raises InputError if several columns of 0 and 1 may be the labels, and the name of none tells."""
    label, columns = sample.column("label"), sample.profile.columns
    flags = [name for name, each in columns.items() if len(each.counts) == 2 and is_flag(each.counts)]
    if len(flags) < 2 or label.name not in flags or LABEL_ROLE.named(label) == 2 or COLUMN + "label" in sample.given:
        return
    raise InputError(
        f"{sample.profile.source}: {join(flags, 'and')} hold 0 and 1, or yes and no. Name the one to predict, as "
        f"{COLUMN}label={shlex.quote(flags[0])}. To predict all, write them into one column of lists, for instance as "
        f"frame['label'] = frame[{flags}].values.tolist() and frame[{[*sample.texts, 'label']}]"
        f".to_json('labels.jsonl', orient='records', lines=True), and pass task.labels=[{','.join(flags)}]"
    )


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
        return [column_language(profile.column(columns[name])) for name in texts]
    return [_only_language([*map(_as_text, profile.column(columns[name]).values[:200])]) for name in texts]


_OWN_LANGUAGE = 0.9
"""Smallest share of the texts whose language is known that make it the only one."""


_PART = re.compile(r"[.!?;:\n]+")
_WORDS = 4
"""Words of a sentence or line whose language counts."""


def _only_language(texts: Sequence[str]) -> str | None:
    """Returns the code of the language of all texts, None if it is not recognised or they are of several."""
    texts = [re.sub(r"<[^>]*>|&#?\w+;", ". ", text) for text in texts]
    parts = [part for text in texts for part in _PART.split(text) if len(part.split()) >= _WORDS]
    found, whole = Counter(filter(None, (language_of([part]) for part in parts))), language_of(texts)
    return whole if whole and found[whole] >= _OWN_LANGUAGE * found.total() else None


def _as_text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def spoken(sample: Sample) -> list[Guess]:
    """Returns the language that Whisper is told; raises InputError if neither a column nor the transcripts show it."""
    from toolkit.modalities.speech import language_code

    name, columns = sample.model.name, sample.profile.columns.values()
    if name.endswith("-960h"):
        upper = "English in upper case, without punctuation, is what this model writes already"
        english = [Guess("task.case", "upper", upper), Guess("task.punctuation", "remove")]
        other = Guess("task.vocabulary", "transcripts", "this model writes English; its encoder learns others")
        return english if sample.languages == ["en"] else [other]
    named = {"task.language", f"{COLUMN}language"} & sample.given.keys()
    if sample.model.model_type != "whisper" or name.endswith(".en") or named:
        return []
    for column in columns:
        if {"language", "locale", "lang"} & {*words_of(column.name)} and all(map(language_code, column.counts)):
            (first, _), *more = column.counts.most_common()
            why = f"{column.name!r} holds the languages of the transcripts"
            return [Guess(f"{COLUMN}language", column.name, why) if more else Guess("task.language", first, why)]
    if (found := sample.languages[0]) is None:
        problem = f"{name} is told the language, which the transcripts do not show; name it: task.language=english"
        raise InputError(f"{sample.profile.source}: {problem}")
    return [Guess("task.language", found, f"that of the transcripts: {LANGUAGES[found].names[0].capitalize()}")]


def conversations(sample: Sample) -> list[Guess]:
    """Returns the format of prompts and answers."""
    chats = [role for role in sample.columns if is_chat(sample.column(role))]
    return data_format("messages")(sample) if chats else []


def similarity(sample: Sample) -> list[Guess]:
    """Returns the loss of pairs with scores."""
    return [Guess("task.loss", "cosent", f"{sample.columns['score']!r} says how similar they are")]


_PROMPTS = partial(Kind, "prompts", "language_modeling", limits=answers)
_ANSWERED = partial(_PROMPTS, "prompts and completions", texts=("prompt",), settings=[data_format("prompt_completion")])
_PREFERENCE = partial(Kind, "preference", "preference", limits=both_answers)
_LABELLED = partial(Kind, "text", "reviews", texts=("text",), settings=[label_settings])
_SEARCH = partial(Kind, "search", "embeddings", limits=each_text)
_ANSWERS = partial(_SEARCH, "queries with texts that answer them", texts=("anchor", "positive"))

KINDS = (
    Kind(
        *("token_classification", "token_classification", "texts with a tag for each token"),
        find=roles(Role("tags", "ner_tags labels", is_tags, length), Role("tokens", "words", is_tokens, length)),
        texts=("tokens",),
        limits=spans,
    ),
    _PREFERENCE("better and worse answers", find=find_preferences, settings=[conversations]),
    _PREFERENCE(
        "good and bad completions",
        find=find_judged,
        settings=[lambda sample: [Guess("task.loss", "kto", "each completion has a label of its own")], conversations],
    ),
    Kind(
        *("chat", "language_modeling", "conversations"),
        find=find_chats,
        limits=answers,
        settings=[data_format("messages")],
    ),
    _PROMPTS("instructions with inputs and outputs", find=find_instructions, settings=[data_format("alpaca")]),
    Kind(
        *("speech", "speech_recognition", "recordings with their transcripts"),
        find=find_speech,
        texts=("text",),
        limits=durations,
        settings=[spoken],
    ),
    Kind(
        *("audio", "reviews", "audio clips with a label"),
        find=find_clips,
        limits=durations,
        settings=[media("audio"), label_settings],
    ),
    Kind(
        *("image", "reviews", "images with a label"),
        find=roles(Role("image", "file filename path", has_kind(FILES["image"]), length), LABEL_ROLE),
        limits=pixels,
        settings=[media("image"), label_settings],
    ),
    Kind(
        *("qa", "qa", "questions with answers in a context"),
        find=find_answers,
        texts=("context",),
        limits=windows,
        settings=[unanswerable],
    ),
    _ANSWERED(find=find_named_prompts),
    Kind(
        *("translation", "translation", "texts in two languages"),
        find=find_pair,
        texts=("source", "target"),
        limits=truncation(max_source_length="source", max_target_length="target"),
        settings=[translated_languages],
    ),
    _ANSWERS(find=find_search("query", "positive")),
    _LABELLED(
        "pairs of texts with a label", find=find_texts(pairs=True), limits=truncation(max_length="text text_pair")
    ),
    _LABELLED("texts in two columns with a label", find=find_texts(pairs=False), limits=truncation(max_length="text")),
    _LABELLED("texts with a label", find=roles(LABEL_ROLE, TEXT_ROLE), limits=truncation(max_length="text")),
    _ANSWERED(find=find_prompts),
    _SEARCH(
        "titles with their abstracts", find=find_search("title", "abstract", alone=True), texts=("anchor", "positive")
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
    _ANSWERS(find=find_search("query question premise", "document passage paragraph answer entailment")),
    _SEARCH("pairs of texts with a score", find=find_scored, texts=("text", "text_pair"), settings=[similarity]),
    Kind(
        *("language_modeling", "language_modeling", "plain text"),
        find=find_plain_text,
        texts=("text",),
        limits=blocks,
        settings=[objective],
    ),
)
"""All kinds; the first whose columns are found is taken."""
