"""Parts of messages: the received value, the expected values and the name that was probably meant."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from operator import getitem
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError

Key = tuple[str, ...]
"""A dotted key in parts, for instance `("train", "optim_args", "momentum")`."""

OTHER_NAMES = {
    "batch_size": "train.global_batch_size",
    "bf16": "train.mixed_precision",
    "clip_grad_norm": "train.max_grad_norm",
    "data_seed": "seed",
    "epochs": "train.num_train_epochs",
    "eval_strategy": "eval.eval_steps",
    "evaluation_strategy": "eval.eval_steps",
    "fp16": "train.mixed_precision",
    "group_by_length": "train.train_sampling_strategy",
    "logging_strategy": "tracking.logging_steps",
    "lr": "train.learning_rate",
    "model_name_or_path": "model.name_or_path",
    "optimizer": "train.optim",
    "resume_from_checkpoint": "checkpoint.resume",
    "save_strategy": "checkpoint.save_steps",
    "scheduler": "train.lr_scheduler_type",
    "tokenizer_name": "model.name_or_path",
    "warmup_ratio": "train.warmup_steps",
}
"""Names from other projects, and the key that has the same meaning here."""

_RANGE = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "below"),
}
"""Wording of pydantic's range errors, by error type: the name of the bound in `ctx`, and its words."""

_SCALARS: dict[Any, list[str]] = {
    str: ["text"],
    int: ["a whole number"],
    float: ["a number"],
    bool: ["true", "false"],
    types.NoneType: ["null"],
    Any: ["any value"],
}
_MAX_SHOWN = 80


def show(value: Any) -> str:
    """Returns a received value as the user wrote it, shortened if it is long."""
    words: dict[Any, str] = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def show_typed(value: Any) -> str:
    """Returns `show(value)` with its type where that is not obvious."""
    kinds: dict[Any, str] = {str: " (text)", list: " (a list)", dict: " (a mapping)"}
    return show(value) + kinds.get(type(value), "")


def join(words: Sequence[str], last: str = "or") -> str:
    """Returns `a, b or c`."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def members(hint: Any) -> list[Any]:
    """Returns the members of a union; other annotations are returned as the only member."""
    if get_origin(hint) in (Union, types.UnionType):
        return [member for part in get_args(hint) for member in members(part)]
    return [hint]


def choices(hint: Any) -> list[Any]:
    """Returns the values that an annotation lists (`Literal`s, null); empty if it allows other values."""
    parts = [
        [None] if part is types.NoneType else list(get_args(part)) if get_origin(part) is Literal else None
        for part in members(hint)
    ]
    return [] if None in parts else [value for part in parts if part is not None for value in part]


def takes_text(hint: Any) -> bool:
    """Whether every value except null is text, so that an override's value is not parsed."""
    return all(
        part in (str, types.NoneType) or isinstance((*choices(part), None)[0], str)
        for part in map(_bare, members(hint))
    )


def mapping_values(hint: Any) -> Any:
    """Returns the annotation of a mapping's values (`Any` inside an `Any`), or None if no mapping is allowed."""
    for part in map(_bare, members(hint)):
        if part is Any:
            return Any
        if get_origin(part) is dict:
            return get_args(part)[1]
    return None


def as_list(value: Any, hint: Any) -> Any:
    """Returns a single value as a list of one if the annotation allows a list and not the value itself.

    A value that is similar to an allowed one is left as it is: probably a typo.
    """
    parts = list(map(_bare, members(hint)))
    named = [name for part in members(hint) for name in choices(part)]
    if value is None or isinstance(value, list | dict) or list not in [get_origin(part) for part in parts]:
        return value
    alone = any(part is Any or (isinstance(part, type) and isinstance(value, part)) for part in parts)
    return value if alone or value in named or nearest(value, named) else [value]


def expected(hint: Any) -> str:
    """Returns what an annotation allows, in words: `a whole number of at least 1 or null`."""
    return join([word for part in members(hint) for word in _words(part)])


def nearest_key(key: Key, known: Sequence[Key]) -> Key | None:
    """Returns the known key that was probably meant, in any section, or None."""
    name, group = key[-1], key[:-1]
    if len(group) > 1 and group not in known and (meant := nearest_key(group, known)):
        return (*meant, name)
    if name in OTHER_NAMES and (other := tuple(OTHER_NAMES[name].split("."))) in known:
        return other
    siblings = {other[-1]: other for other in known if other[:-1] == key[:-1]}
    everywhere = {other[-1]: other for other in reversed(known)}
    for names, cutoff in ((everywhere, 1.0), (siblings, 0.7), (everywhere, 0.8)):
        if close := get_close_matches(name, names, 1, cutoff):
            return names[close[0]]
    return None


def nearest(text: Any, names: Iterable[Any], most: int = 1) -> list[str]:
    """Returns up to `most` names that are similar to `text`, the most similar first."""
    texts = [name for name in names if isinstance(name, str)]
    return get_close_matches(text, texts, most, cutoff=0.5) if isinstance(text, str) else []


def did_you_mean(text: Any, names: Iterable[Any], most: int = 1) -> str:
    """Returns ` (did you mean 'x'?)` for the names most similar to `text`, or an empty string."""
    found = [repr(name) for name in nearest(text, names, most)]
    return f" (did you mean {join(found)}?)" if found else ""


def describe_errors(
    error: ValidationError, hints: Mapping[Key, Any], values: Mapping[str, Any]
) -> Iterator[tuple[Key, str]]:
    """Yields the key inside a section and the message of each of pydantic's errors about its values."""
    unions = set()
    for detail in error.errors(include_url=False):
        key = tuple(str(part) for part in detail["loc"] if not isinstance(part, int))  # without positions in lists
        field = max((key[:size] for size in range(len(key) + 1) if key[:size] in hints), key=len, default=())
        hint = hints.get(field)
        if detail["type"] != "missing" and len([part for part in members(hint) if part is not types.NoneType]) > 1:
            if field not in unions:  # pydantic reports each member of a union by itself
                unions.add(field)
                yield field, _mismatch(reduce(getitem, field, values), hint)
            continue
        for _ in detail["loc"][len(field) :]:
            hint = mapping_values(hint) or _items(hint)
        yield key, _describe(dict(detail), hint)


def _describe(detail: dict[str, Any], hint: Any) -> str:
    """Returns the message for one of pydantic's errors; `hint` is the annotation of the value."""
    kind, value = detail["type"], detail["input"]
    if kind == "missing":
        return f"missing; it must be given ({expected(hint)})"
    if kind in _RANGE:
        bound, words = _RANGE[kind]
        return f"received {show(value)}, must be {words} {_number(detail['ctx'][bound])}"
    if kind.endswith("_type") or kind == "literal_error":
        return _mismatch(value, hint)
    if kind in ("value_error", "assertion_error"):
        return str(detail["ctx"]["error"])
    return f"received {show_typed(value)}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _mismatch(value: Any, hint: Any) -> str:
    if allowed := choices(hint):
        return f"received {show(value)}, allowed: {', '.join(map(show, allowed))}{did_you_mean(value, allowed)}"
    named = [name for part in members(hint) for name in choices(part)]
    return f"received {show_typed(value)}, expected {expected(hint)}{did_you_mean(value, named)}"


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _items(hint: Any) -> Any:
    return next((get_args(part)[0] for part in map(_bare, members(hint)) if get_origin(part) is list), Any)


def _words(part: Any) -> list[str]:
    bare = _bare(part)
    extras = getattr(part, "__metadata__", ())
    if examples := [each for extra in extras for each in getattr(extra, "examples", ()) or ()]:
        return [f"{_SCALARS[bare][0]} such as {join([*map(show, examples)])}"]
    if bare in _SCALARS:
        bounds = _bounds(part)
        if bounds == {"gt": 0, "lt": 1}:
            return ["a fraction between 0 and 1"]
        limits = [f"{words} {_number(bounds[name])}" for name, words in _RANGE.values() if name in bounds]
        limit = " and ".join(limits)
        return [f"{_SCALARS[bare][0]} {'of ' if limit.startswith('at') else ''}{limit}"] if limits else _SCALARS[bare]
    if get_origin(bare) is Literal:
        return [show(name) for name in get_args(bare)]
    if get_origin(bare) is list:
        return [f"a list of {expected(get_args(bare)[0])}"]
    if get_origin(bare) is dict:
        return [f"a mapping of names to {expected(get_args(bare)[1])}"]
    return [str(getattr(bare, "__name__", bare))]


def _bounds(part: Any) -> dict[str, Any]:
    extras = getattr(part, "__metadata__", ())
    every = [each for extra in extras for each in getattr(extra, "metadata", None) or [extra]]
    return {name: getattr(each, name) for name, _ in _RANGE.values() for each in every if hasattr(each, name)}


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
