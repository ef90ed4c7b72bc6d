"""How the columns of each kind of data are recognised: by their names, and by what is in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from toolkit.base.errors import InputError
from toolkit.config.messages import join
from toolkit.config.sections import DataConfig
from toolkit.data.media.transcripts import TEXT_NAMES
from toolkit.data.sources import is_files
from toolkit.lab.init.labels import MOST_WHOLE_CLASSES, can_be_label
from toolkit.lab.init.models import language_named, language_of
from toolkit.lab.init.profile import FILES, OBJECT, OBJECTS, PRINTED, TEXT, TEXTS, ColumnProfile, Profile
from toolkit.tasks.conversations import PRINTED as PRINTED_CHAT
from toolkit.tasks.records import FLAGS

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


def words_of(name: str) -> list[str]:
    """Returns the words of a column's name, in lower case."""
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
        words = words_of(column.name)
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
    named = {"text", *_NAMES_OF_TEXTS.split()} & {*words_of(column.name)}
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


_ANSWERED = (("prompt", "completion"), ("question", "answer"), ("instruction", "output"), ("instruction", "response"))
"""Names of two columns of which one answers the other, whatever their languages."""


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
    if any({*names} <= {name.lower() for name in texts} for names in _ANSWERED):
        return None
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
    """Whether a column holds conversations, also as ShareGPT writes them, or as text in the cells of a table."""
    if column.kind == TEXT:
        return all(isinstance(value, str) and PRINTED_CHAT.match(value) for value in column.values)
    needed = ({"role", "content"}, {"role", "tool_calls"}, {"from", "value"})
    turns = (turn for conversation in column.values for turn in conversation)
    return column.kind == OBJECTS and all(any(keys <= turn.keys() for keys in needed) for turn in turns)


def is_tokens(column: ColumnProfile) -> bool:
    """Whether a column holds tokens: lists of texts, or text with blanks between them."""
    return column.kind in (TEXT, TEXTS)


def is_tags(column: ColumnProfile) -> bool:
    """Whether a column holds tags of entities, in the same form."""
    lists = column.lists or [value if isinstance(value, list) else str(value).split() for value in column.values]
    return is_tokens(column) and all(_TAG.fullmatch(str(tag)) for tags in lists for tag in tags)


def find_instructions(profile: Profile, given: Columns) -> Columns | None:
    """Finds instructions with inputs and outputs, by Alpaca's names."""
    names = ("instruction", "input", "output")
    if given.keys() - {*names} or not {*names} <= profile.columns.keys():
        return None
    return {name: name for name in names} | given if profile.columns["output"].kind == TEXT else None


def find_prompts(profile: Profile, given: Columns) -> Columns | None:
    """Finds prompts and completions; raises InputError for a prompt in two parts."""
    completion = Role("completion", "response output answer assistant reply", has_kind(TEXT), free=True)
    found = roles(Role("prompt", "instruction question input user", has_kind(TEXT)), completion)(profile, given)
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


def find_named_prompts(profile: Profile, given: Columns) -> Columns | None:
    """Finds prompts and completions whose names decide against other columns that may be labels; as `find_prompts`.

    Only those of TRL's names decide against a column that is named as a label.
    """
    texts = {name.lower() for name, column in profile.columns.items() if column.kind == TEXT}
    labels = [each for each in profile.columns.values() if LABEL_ROLE.named(each) and can_be_label(each)]
    names = _ANSWERED[:1] if labels else _ANSWERED
    if given.keys() - {"prompt", "completion"} or not any({*each} <= texts for each in names):
        return None
    return find_prompts(profile, given)


def is_said(column: ColumnProfile) -> bool:
    """Whether a column holds texts or conversations."""
    return column.kind == TEXT or is_chat(column)


def find_preferences(profile: Profile, given: Columns) -> Columns | None:
    """Finds better and worse answers, and their prompts; raises InputError if texts have none."""
    found = roles(Role("chosen", "preferred", is_said), Role("rejected", "dispreferred", is_said))(profile, given)
    if found is None or (both := roles(Role("prompt", "instruction question query input", is_said))(profile, found)):
        return found and both
    if is_chat(profile.column(found["chosen"])):
        return found | {"prompt": found["chosen"]}  # whole conversations, also to predict their last messages
    raise InputError(
        f"{profile.source}: {found['chosen']} and {found['rejected']} are answers without a column of prompts; name it "
        f"with {COLUMN}prompt=COLUMN, or write what both begin with into one"
    )


def find_judged(profile: Profile, given: Columns) -> Columns | None:
    """Finds prompts with completions that are good or bad, by TRL's names."""
    needed = ("prompt", "completion", "label")
    found = {name: given.get(name, name) for name in needed}
    columns = [profile.columns.get(name) for name in found.values()]
    if None in columns or not all(is_said(each) for each in columns[:2] if each):
        return None
    return found if {word.strip().lower() for word in profile.column(found["label"]).counts} <= FLAGS.keys() else None


def find_chats(profile: Profile, given: Columns) -> Columns | None:
    """Finds conversations; raises InputError if they are in two columns, or their messages have other keys."""
    names = "conversation conversations chat"
    if found := roles(Role("messages", names, is_chat, length))(profile, given):
        if "messages" not in given:
            _require_one_column(profile, found)
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


def _require_one_column(profile: Profile, found: Columns) -> None:
    """Raises InputError if a column that was found is the beginning or the answer of a conversation."""
    parts = roles(Role("prompt", "", is_chat), Role("completion", "response answer", is_said))(profile, {})
    if parts is None or not {*found.values()} & {*parts.values()}:
        return
    prompt, completion = (f"frame[{name!r}]" for name in parts.values())
    if not is_chat(profile.column(parts["completion"])):
        completion += ".map(lambda text: [{'role': 'assistant', 'content': text}])"
    raise InputError(
        f"{profile.source}: {join([*parts.values()], 'and')} are parts of one conversation. Write them into one "
        f"column, as in frame['messages'] = {prompt} + {completion}; or name a column of whole conversations: "
        f"{COLUMN}messages=COLUMN"
    )


def find_plain_text(profile: Profile, given: Columns) -> Columns | None:
    """Finds the lines of a text file, or the column that the user named."""
    column = given.get("text", "text")
    is_plain = Path(profile.source).suffix.lower() == ".txt" or "text" in given
    return {"text": column} if is_plain and column in profile.columns else None


LABEL_ROLE = Role(
    "label",
    "labels class classes category categories target sentiment rating ratings stars score intent topic tags tag genre "
    "kategorie klasse bewertung note sterne stimmung y",
    can_be_label,
    repeats,
    free=True,
)
TEXT_ROLE = Role("text", _NAMES_OF_TEXTS, is_text, length, free=True)

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
                return roles(LABEL_ROLE)(profile, {"text": first, "text_pair": second} | given)
            if not pairs and (first.lower(), second.lower()) in _JOINED:
                return roles(LABEL_ROLE)(profile, {"text": f"{{{first}}}\n{{{second}}}"} | given)
        return roles(LABEL_ROLE, TEXT_ROLE)(profile, given) if pairs and "text_pair" in given else None

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
    named = {*words_of(column.name), "".join(words_of(column.name))} & {*_TRANSCRIPTS.split()}
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
    return _with_parts(profile, given, roles(_AUDIO, LABEL_ROLE)(profile, given))


def find_speech(profile: Profile, given: Columns) -> Columns | None:
    """Finds recordings, transcripts, and the seconds where they begin and end; raises InputError as `_with_parts`.

    A column that is named as a label decides for classes; the name of a folder does not.
    """
    labels = [each for each in profile.columns.values() if LABEL_ROLE.named(each) == 2 and can_be_label(each)]
    if "label" in given or (labels and not is_files(profile.source) and "text" not in given):
        return None
    return _with_parts(profile, given, roles(_AUDIO, _TRANSCRIPT)(profile, given))


def _with_parts(profile: Profile, given: Columns, found: Columns | None) -> Columns | None:
    """Adds the columns of where clips begin and end; raises InputError if these are in another form than seconds."""
    if found is None or {"start", "end"} & given.keys():
        return found
    free = {name: column for name, column in profile.columns.items() if name not in found.values()}
    parts = {role.name: name for role in (_START, _END) if (name := role.choose(free))}
    others = [name for name, column in free.items() if column.numbers and _OTHER_PARTS & {*words_of(name)}]
    if (others and len(parts) == 1) or set(others) & set(parts.values()):
        raise InputError(
            f"{profile.source}: {join([*dict.fromkeys([*parts.values(), *others])], 'and')} seem to say which part of "
            "a recording a clip is. A run reads the seconds where it begins and ends: add columns with them, and name "
            f"these: {COLUMN}start=COLUMN {COLUMN}end=COLUMN"
        )
    return found | parts
