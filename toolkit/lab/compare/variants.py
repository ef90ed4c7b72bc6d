"""Turns `--switch` and `--preset` into variants of one configuration."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from toolkit.base.errors import InputError
from toolkit.config.sections import Config
from toolkit.lab.jobs.strategies import DATA_PARALLEL, Technique, by_deepspeed, plain_settings, techniques

MODES = ("product", "one-at-a-time", "cumulative")
Settings = dict[str, str]
"""Values by dotted keys, both as text, as on the command line."""

_FURTHER = re.compile(r"\+(?=\w+(?:\.\w+)+=)")
"""Separates further settings of the same value: `sgd+train.learning_rate=0.1`."""
OWN = {
    "seed": "set --seeds, and seed=N for the first",
    "output_dir": "set --output-dir",
    "checkpoint.resume": "each run starts from the beginning",
    "checkpoint.push_to_hub": "models are not kept",
    "tracking.report_to": "the comparison reports",
    "tracking.run_name": "the comparison reports",
    "tracking.project": "the comparison reports",
    "tracking.histogram_steps": "the comparison reports",
    "tracking.logging_steps": "each step is logged",
}
"""Keys that cannot be switched, and why or what to do instead."""
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Variant:
    """One of the configurations to compare.

    Args:
        name: name in tables.
        settings: the settings that it changes.
        fixed: settings that were added so that a step has as many rows as the baseline's.
        technique: the parallel strategy that it is, if the comparison is one of strategies.
    """

    name: str
    settings: Mapping[str, str]
    fixed: Mapping[str, str] = field(default_factory=dict)
    technique: Technique | None = None

    @property
    def slug(self) -> str:
        """Name of its folders: the part of its name that is safe in a path, and a checksum of its settings."""
        short = re.sub(r"[^\w.=-]+", "-", self.name)[:60].strip("-")
        return f"{short}-{zlib.crc32(repr(sorted(self.settings.items())).encode()):08x}"

    @property
    def overrides(self) -> list[str]:
        """Its settings as overrides, `section.key=value` each."""
        return [f"{key}={value}" for key, value in {**self.settings, **self.fixed}.items()]


def named(settings: Mapping[str, str]) -> str:
    """Returns the name of a variant: its settings, without the sections of their keys."""
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings.items()) or "as configured"


@dataclass(frozen=True)
class Question:
    """A predefined comparison.

    Args:
        help: what it compares.
        variants: the settings of each variant; the first is the baseline. Empty for the parallel strategies, whose
            settings depend on the configuration and the number of processes.
        processes: number of processes that it needs.
    """

    help: str
    variants: Sequence[Settings] = ()
    processes: int = 1


def _each(key: str, *values: str) -> list[Settings]:
    return [{key: value} for value in values]


_CHECKPOINTING = "train.activation_checkpointing"
QUESTIONS: dict[str, Question] = {
    "optimizers": Question(
        "AdamW against 8-bit Adam and Adafactor", _each("train.optim", "adamw_torch", "adamw_bnb_8bit", "adafactor")
    ),
    "memory": Question(
        "savings and costs of each memory-saving technique",
        [
            {},
            {_CHECKPOINTING: "every_2_layers"},
            {_CHECKPOINTING: "full"},
            {"train.optim": "adamw_bnb_8bit"},
            {"train.optim": "adafactor"},
            {"train.mixed_precision": "bf16"},
            {"model.peft.method": "lora"},
            {_CHECKPOINTING: "full", "train.optim": "adafactor"},
        ],
    ),
    "communication": Question(
        "two processes that exchange gradients in every step, or parameters periodically",
        [
            {"train.strategy": "sync"},
            *({"train.strategy": "local_sgd", "train.local_sgd_steps": steps} for steps in ("2", "4", "8")),
        ],
        processes=2,
    ),
    "strategies": Question("parallel strategies, each beside its estimate", processes=2),
    "precision": Question("precision of the forward pass", _each("train.mixed_precision", "no", "bf16", "fp16")),
}
"""Predefined comparisons by the name that `--preset` takes."""


def read_switch(text: str, configured: Mapping[str, str]) -> list[Settings]:
    """Parses a switch such as `key=a,b+other.key=c`.

    Args:
        text: the argument of `--switch`.
        configured: the configured values as text; the baseline of a switch with only one value.

    Returns:
        The settings of each value; the first is the baseline's.

    Raises:
        InputError: if the text is not a switch, has a value twice, or changes a key that the comparison sets.
    """
    key, equals, rest = text.partition("=")
    if not equals or not key or not rest.strip():
        raise InputError(f"--switch: received {text!r}; write section.key=VALUE,VALUE, the baseline's value first")
    found: list[Settings] = []
    for part in _split(rest):
        value, *more = _FURTHER.split(part)
        settings = {key: _unquoted(value)}
        for further in more:
            name, _, other = further.partition("=")
            settings[name] = _unquoted(other)
        _refuse_own(settings)
        if settings in found:
            raise InputError(f"--switch: received {value!r} twice for {key}")
        found.append(settings)
    if len(found) == 1 and key in configured:
        found.insert(0, {key: configured[key]})
    return found


def _refuse_own(settings: Settings) -> None:
    for key in settings:
        if key in OWN:
            raise InputError(f"--switch: {key} is set by the comparison itself; {OWN[key]}")


def _unquoted(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def _split(text: str) -> Iterator[str]:
    """Splits at commas, except inside brackets and quoted values."""
    open_until: list[str] = []
    part = ""
    for letter in text:
        if open_until and letter == open_until[-1]:
            open_until.pop()
        elif letter in _PAIRS and (not open_until or open_until[-1] not in "'\""):
            open_until.append(_PAIRS[letter])
        elif letter in "'\"" and (open_until or not part):
            open_until.append(letter)
        if letter == "," and not open_until:
            yield part
            part = ""
        else:
            part += letter
    if open_until:
        raise InputError(f"--switch: received {text!r}, in which {open_until[-1]!r} is missing")
    yield part


def combine(switches: Sequence[Sequence[Settings]], mode: str) -> list[Variant]:
    """Returns all variants; the first, the baseline, has the first value of every switch.

    Args:
        switches: the settings of each value, for each switch.
        mode: `product` (all combinations of values), `one-at-a-time` (each value with the baseline's values of the
            other switches), or `cumulative` (each value in addition to all values before it).

    Raises:
        InputError: if two switches change the same setting.
    """
    changed = [key for values in switches for key in {key for settings in values for key in settings}]
    if twice := sorted(key for key, count in Counter(changed).items() if count > 1):
        raise InputError(f"--switch: {' and '.join(twice)} is in two switches; put its values into one")
    if mode == "product":
        merged = ({k: v for values in chosen for k, v in values.items()} for chosen in product(*switches))
        return [Variant(named(settings), settings) for settings in merged]
    first = {key: value for values in switches for key, value in values[0].items()}
    found = [Variant(named(first), first)]
    for values in switches:
        own = {key for settings in values for key in settings}  # replaced together by each value
        for settings in values[1:]:
            start = found[-1].settings if mode == "cumulative" else first
            others = {key: value for key, value in start.items() if key not in own}
            name = f"+ {named(settings)}" if mode == "cumulative" else named(settings)
            found.append(Variant(name, {**others, **settings}))
    return found


def of_question(question: Question, cfg: Config, processes: int) -> list[Variant]:
    """Returns the variants of a predefined comparison.

    Args:
        question: the comparison.
        cfg: the configured settings.
        processes: number of processes.
    """
    if question.variants:
        return [Variant(named(settings), settings) for settings in question.variants]
    base = plain_settings(cfg)
    found = [*techniques(processes), *by_deepspeed(processes), DATA_PARALLEL]
    return [Variant(each.name, {**base, **each.settings}, technique=each) for each in found]
