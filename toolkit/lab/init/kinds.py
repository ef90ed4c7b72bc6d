"""The kinds of data that a YAML can be written for, and how their columns and labels are recognised."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import pstdev
from typing import Any

from toolkit.base.errors import InputError
from toolkit.config.messages import join
from toolkit.config.sections import DataConfig
from toolkit.data.media.transcripts import TEXT_NAMES
from toolkit.data.sources import is_files
from toolkit.lab.init.guesses import (
    Guess,
    Limits,
    answers,
    blocks,
    durations,
    each_text,
    pixels,
    spans,
    truncation,
    windows,
)
from toolkit.lab.init.labels import MOST_WHOLE_CLASSES, REGRESSION, SINGLE, can_be_label, doubtful, is_flag, label_kind
from toolkit.lab.init.models import LANGUAGES, Model, language_named, language_of
from toolkit.lab.init.profile import FILES, OBJECT, OBJECTS, PRINTED, TEXT, TEXTS, ColumnProfile, Profile

Columns = dict[str, str]
"""The file's columns by the recipe's names for them."""
Find = Callable[[Profile, Columns], Columns | None]
"""Returns the columns of a kind of data, given those that the user named; None if the file is of another kind."""
COLUMN = "data.columns."
"""The beginning of the keys of columns."""
_TAG = re.compile(r"O|[BIESLU]-\S+")
_LEAST_CHARACTERS = 15
"""Smallest mean length of a text that no name gives away."""
_NAMES_OF_TEXTS = (
    "review reviews comment comments body message content sentence tweet post description feedback kommentar"
)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())


@dataclass(frozen=True)
class Role:
    """A column that a kind of data needs."""

    name: str  # the recipe's name for it
    usual: str  # usual names, each a lower-case word or several without anything between
    fits: Callable[[ColumnProfile], bool]  # whether a column can have this role
    # orders columns that fit and have no usual name, the best last; None if the name is required
    rank: Callable[[ColumnProfile], tuple[float, ...]] | None = None
    free: bool = False  # whether a column that the user names need not fit

    def named(self, column: ColumnProfile) -> int:
        """Returns how much a column's name means this role: 2 completely, 1 in part, 0 not."""
        words = _words(column.name)
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
            used = [part for name in found.values() for part in profile.parts(name)]
            free = {name: column for name, column in profile.columns.items() if name not in used}
            best = found.get(role.name) or role.choose(free)
            if best is None or not (role.free or role.fits(profile.column(best))):
                return None
            found[role.name] = best
        return found

    return find


def is_text(column: ColumnProfile) -> bool:
    """Whether a column holds texts, not names: long ones, or different ones below a usual name."""
    named = {"text", *_NAMES_OF_TEXTS.split()} & {*_words(column.name)}
    different = not can_be_label(column) or len(column.counts) > MOST_WHOLE_CLASSES
    return column.kind == TEXT and bool((named and different) or column.mean_characters >= _LEAST_CHARACTERS)


def is_answer(column: ColumnProfile) -> bool:
    """Whether a column holds SQuAD's answers, with their places in the context."""
    return column.kind == OBJECT and all({"text", "answer_start"} <= value.keys() for value in column.values)


def has_kind(*kinds: str) -> Callable[[ColumnProfile], bool]:
    """Returns a function that tells whether a column holds values of one of the kinds."""
    return lambda column: column.kind in kinds


_QUESTION = Role("question", "query", has_kind(TEXT))
_CONTEXT = Role("context", "passage paragraph document text note notes", has_kind(TEXT))


def find_answers(profile: Profile, given: Columns) -> Columns | None:
    """Finds questions, contexts and SQuAD's answers; raises InputError if the answers are without their places."""
    if found := roles(_QUESTION, _CONTEXT, Role("answers", "answer", is_answer))(profile, given):
        return found
    if (found := roles(_QUESTION, _CONTEXT, Role("answers", "answer", has_kind(*PRINTED)))(profile, given)) is None:
        return None
    without = f"{COLUMN}prompt={shlex.quote(found['question'])} {COLUMN}completion={shlex.quote(found['answers'])}"
    raise InputError(
        f"{profile.source}: {found['answers']} holds answers alone, and the recipe qa also reads where an answer is, "
        'for instance from .jsonl: {"text": [answer], "answer_start": [context.index(answer)]}. To train a model that '
        f"writes answers, without {found['context']}: --recipe language_modeling {without}"
    )


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
    # Values that repeat are labels before they are a language.
    texts = {
        name: each
        for name, each in profile.columns.items()
        if each.kind == TEXT and 2 * len(each.counts) > len(each.values) and not can_be_label(each)
    }
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
    """Whether a column holds conversations, also as ShareGPT writes them."""
    return column.kind == OBJECTS and all(
        {"role", "content"} <= turn.keys() or {"from", "value"} <= turn.keys()
        for turns in column.values
        for turn in turns
    )


def is_tokens(column: ColumnProfile) -> bool:
    """Whether a column holds tokens: lists of texts, or text with blanks between them."""
    return column.kind in (TEXT, TEXTS)


def is_tags(column: ColumnProfile) -> bool:
    """Whether a column holds tags of entities, in the same form."""
    lists = column.lists or [value if isinstance(value, list) else str(value).split() for value in column.values]
    return is_tokens(column) and all(_TAG.fullmatch(str(tag)) for tags in lists for tag in tags)


def find_prompts(profile: Profile, given: Columns) -> Columns | None:
    """Finds prompts and completions; raises InputError for a prompt in two parts, as Alpaca's, and for preferences."""
    completion = Role("completion", "response output answer assistant reply", has_kind(TEXT), free=True)
    found = roles(Role("prompt", "instruction question input user", has_kind(TEXT)), completion)(profile, given)
    if not given and {"chosen", "rejected"} <= profile.columns.keys():
        prompt = "prompt" if "prompt" in profile.columns else "COLUMN"
        raise InputError(
            f"{profile.source}: chosen and rejected are a preference, which no recipe learns. To train on the chosen "
            f"answers alone: --recipe language_modeling {COLUMN}prompt={prompt} {COLUMN}completion=chosen"
        )
    if found is None or "prompt" in given:
        return found
    texts = [name for name, column in profile.columns.items() if column.kind == TEXT and name not in found.values()]
    if part := next((name for name in texts if name.lower() in ("input", "context", "instruction", "system")), None):
        prompt = found["prompt"]
        raise InputError(
            f"{profile.source}: {prompt} and {part} are parts of one prompt. Write them into one column, as in "
            f"frame['prompt'] = frame[{prompt!r}] + '\\n\\n' + frame[{part!r}].fillna(''); to leave {part} out, pass "
            f"{COLUMN}prompt={shlex.quote(prompt)}"
        )
    return found


def find_chats(profile: Profile, given: Columns) -> Columns | None:
    """Finds conversations; raises InputError if their messages have other keys."""
    names = "conversation conversations chat"
    if found := roles(Role("messages", names, is_chat, length))(profile, given):
        return found
    chats = [name for name in profile.columns if name.lower() in (*names.split(), "messages")]
    name = next((name for name in chats if profile.columns[name].kind == OBJECTS), None)
    if name is None:
        return None
    keys = join(sorted({str(key) for turn in profile.columns[name].values[0] for key in turn}), "and")
    raise InputError(
        f"{profile.source}: the messages of {name} have {keys}; they need role and content, or from and value, for "
        'instance {"role": "user", "content": "..."}'
    )


def find_plain_text(profile: Profile, given: Columns) -> Columns | None:
    """Finds the lines of a text file, or the column that the user named."""
    column = given.get("text", "text")
    is_plain = Path(profile.source).suffix.lower() == ".txt" or "text" in given
    return {"text": column} if is_plain and column in profile.columns else None


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
    if len(flags) < 2 or label.name not in flags or _LABEL.named(label) == 2 or COLUMN + "label" in sample.given:
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


_LABEL = Role(
    "label",
    "labels class classes category categories target sentiment rating ratings stars score intent topic tags tag genre "
    "kategorie klasse bewertung note sterne stimmung y",
    can_be_label,
    repeats,
    free=True,
)
_TEXT = Role("text", _NAMES_OF_TEXTS, is_text, length, free=True)

_PAIRS = (("premise", "hypothesis"), ("question", "answer"), ("query", "document"))
_JOINED = (("subject", "body"), ("title", "text"))
"""Names of two columns that are parts of one text."""
_NUMBERED = re.compile(r"(.+?)[\W_]*([12ab])")


def _is_pair(first: str, second: str) -> bool:
    """Whether names are those of a pair: usual ones, or one name with 1 and 2, or A and B."""
    one, other = (_NUMBERED.fullmatch(name.lower()) for name in (first, second))
    numbered = one and other and one[1] == other[1] and one[2] + other[2] in ("12", "ab")
    return bool(numbered) or (first.lower(), second.lower()) in _PAIRS


def find_texts(pairs: bool) -> Find:
    """Returns a function that finds a label and two columns of text: a pair, or parts of one text."""

    def find(profile: Profile, given: Columns) -> Columns | None:
        texts = [name for name, column in profile.columns.items() if column.kind == TEXT and name not in given.values()]
        for first, second in () if {"text", "text_pair"} & given.keys() else permutations(texts, 2):
            if pairs and _is_pair(first, second):
                return roles(_LABEL)(profile, {"text": first, "text_pair": second} | given)
            if not pairs and (first.lower(), second.lower()) in _JOINED:
                return roles(_LABEL)(profile, {"text": f"{{{first}}}\n{{{second}}}"} | given)
        return roles(_LABEL, _TEXT)(profile, given) if pairs and "text_pair" in given else None

    return find


def find_search(anchors: str, positives: str, alone: bool = False) -> Find:
    """Returns a function that finds queries and texts that answer them, by their names, and texts that do not.

    With `alone`, the names mean that only if there are no other texts.
    """
    negative = Role("negative", "negatives hardnegative contradiction", has_kind(TEXT, TEXTS))

    def find(profile: Profile, given: Columns) -> Columns | None:
        needed = (Role("anchor", anchors, has_kind(TEXT)), Role("positive", positives, has_kind(TEXT)))
        found = roles(*needed)(profile, given)
        if alone and sum(map(is_text, profile.columns.values())) > 2:
            return None
        return found and (roles(negative)(profile, found) or found)

    return find


def find_scored(profile: Profile, given: Columns) -> Columns | None:
    """Finds pairs of texts with a number."""
    if (found := find_texts(pairs=True)(profile, {k: v for k, v in given.items() if k != "score"})) is None:
        return None
    score = given.get("score", found.pop("label"))
    return {**found, "score": score} if profile.column(score).numbers else None


_AUDIO = Role("audio", "file filename path", has_kind(FILES["audio"]), length)


def is_transcript(column: ColumnProfile) -> bool:
    """Whether a column holds transcripts, not labels: different texts of several words, or of any below usual names."""
    if column.kind != TEXT or column.empty > len(column.values):
        return False
    named = {*_words(column.name), "".join(_words(column.name))} & {*_TRANSCRIPTS.split()}
    if named and len(column.counts) > MOST_WHOLE_CLASSES:
        return True
    words = sum(len(str(value).split()) for value in column.values)
    return not can_be_label(column) and (bool(named) or words >= 2 * len(column.values))


_TRANSCRIPTS = " ".join(("transcripts", *TEXT_NAMES)).replace("_", "")
_TRANSCRIPT = Role("text", _TRANSCRIPTS, is_transcript, length)
_START = Role("start", "begin onset from anfang beginn xmin tmin t0", lambda column: bool(column.numbers))
_END = Role("end", "stop finish to offset ende xmax tmax t1", lambda column: bool(column.numbers))
_OTHER_PARTS = frozenset(
    ("duration", "dur", "length", "ms", "msec", "millis", "milliseconds", "sample", "samples", "frame", "frames")
)
"""Words of columns that place a clip in its recording in another way than by its first and last second."""


def find_clips(profile: Profile, given: Columns) -> Columns | None:
    """Finds recordings, labels, and the seconds where clips begin and end; raises InputError as `_with_parts`."""
    return _with_parts(profile, given, roles(_AUDIO, _LABEL)(profile, given))


def find_speech(profile: Profile, given: Columns) -> Columns | None:
    """Finds recordings, transcripts, and the seconds where they begin and end; raises InputError as `_with_parts`.

    A column that is named as a label decides for classes; the name of a folder does not.
    """
    labels = [each for each in profile.columns.values() if _LABEL.named(each) == 2 and can_be_label(each)]
    if "label" in given or (labels and not is_files(profile.source) and "text" not in given):
        return None
    return _with_parts(profile, given, roles(_AUDIO, _TRANSCRIPT)(profile, given))


def _with_parts(profile: Profile, given: Columns, found: Columns | None) -> Columns | None:
    """Adds the columns of where clips begin and end; raises InputError if these are in another form than seconds."""
    if found is None or {"start", "end"} & given.keys():
        return found
    free = {name: column for name, column in profile.columns.items() if name not in found.values()}
    parts = {role.name: name for role in (_START, _END) if (name := role.choose(free))}
    others = [name for name, column in free.items() if column.numbers and _OTHER_PARTS & {*_words(name)}]
    if (others and len(parts) == 1) or set(others) & set(parts.values()):
        raise InputError(
            f"{profile.source}: {join([*dict.fromkeys([*parts.values(), *others])], 'and')} seem to say which part of "
            "a recording a clip is. A run reads the seconds where it begins and ends: add columns with them, and name "
            f"these: {COLUMN}start=COLUMN {COLUMN}end=COLUMN"
        )
    return found | parts


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
        if {"language", "locale", "lang"} & {*_words(column.name)} and all(map(language_code, column.counts)):
            (first, _), *more = column.counts.most_common()
            why = f"{column.name!r} holds the languages of the transcripts"
            return [Guess(f"{COLUMN}language", column.name, why) if more else Guess("task.language", first, why)]
    if (found := sample.languages[0]) is None:
        problem = f"{name} is told the language, which the transcripts do not show; name it: task.language=english"
        raise InputError(f"{sample.profile.source}: {problem}")
    return [Guess("task.language", found, f"that of the transcripts: {LANGUAGES[found].names[0].capitalize()}")]


def similarity(sample: Sample) -> list[Guess]:
    """Returns the loss of pairs with scores."""
    return [Guess("task.loss", "cosent", f"{sample.columns['score']!r} says how similar they are")]


KINDS = (
    Kind(
        *("token_classification", "token_classification", "texts with a tag for each token"),
        find=roles(Role("tags", "ner_tags labels", is_tags, length), Role("tokens", "words", is_tokens, length)),
        texts=("tokens",),
        limits=spans,
    ),
    Kind(
        *("chat", "language_modeling", "conversations"),
        find=find_chats,
        limits=answers,
        settings=[data_format("messages")],
    ),
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
        find=roles(Role("image", "file filename path", has_kind(FILES["image"]), length), _LABEL),
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
    Kind(
        *("translation", "translation", "texts in two languages"),
        find=find_pair,
        texts=("source", "target"),
        limits=truncation(max_source_length="source", max_target_length="target"),
        settings=[translated_languages],
    ),
    Kind(
        *("search", "embeddings", "queries with texts that answer them"),
        find=find_search("query", "positive"),
        texts=("anchor", "positive"),
        limits=each_text,
    ),
    Kind(
        *("text", "reviews", "pairs of texts with a label"),
        find=find_texts(pairs=True),
        texts=("text",),
        limits=truncation(max_length="text text_pair"),
        settings=[label_settings],
    ),
    Kind(
        *("text", "reviews", "texts in two columns with a label"),
        find=find_texts(pairs=False),
        texts=("text",),
        limits=truncation(max_length="text"),
        settings=[label_settings],
    ),
    Kind(
        *("text", "reviews", "texts with a label"),
        find=roles(_LABEL, _TEXT),
        texts=("text",),
        limits=truncation(max_length="text"),
        settings=[label_settings],
    ),
    Kind(
        *("prompts", "language_modeling", "prompts and completions"),
        find=find_prompts,
        texts=("prompt",),
        limits=answers,
        settings=[data_format("prompt_completion")],
    ),
    Kind(
        *("search", "embeddings", "titles with their abstracts"),
        find=find_search("title", "abstract", alone=True),
        texts=("anchor", "positive"),
        limits=each_text,
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
        *("search", "embeddings", "queries with texts that answer them"),
        find=find_search("query question premise", "document passage paragraph answer entailment"),
        texts=("anchor", "positive"),
        limits=each_text,
    ),
    Kind(
        *("search", "embeddings", "pairs of texts with a score"),
        find=find_scored,
        texts=("text", "text_pair"),
        limits=each_text,
        settings=[
            lambda sample: [Guess("task.loss", "cosent", f"{sample.columns['score']!r} says how similar they are")]
        ],
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
