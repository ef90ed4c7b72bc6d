"""Turns `--switch` and `--preset` into variants of one configuration, and checks them."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from toolkit.api.task import Task
from toolkit.base.errors import ConfigError, InputError
from toolkit.config import flatten
from toolkit.config.keys import written
from toolkit.config.sections import Config
from toolkit.lab.jobs.jobs import Launch, batch_and_accumulation, step_rows
from toolkit.lab.jobs.strategies import (
    ACCUMULATION,
    BATCH,
    DATA_PARALLEL,
    Technique,
    by_deepspeed,
    of_long_inputs,
    plain_settings,
    techniques,
    window_settings,
)
from toolkit.lab.jobs.training import QUIET

MODES = ("product", "one-at-a-time", "cumulative")
Settings = dict[str, str]
"""Values by dotted keys, both as text, as on the command line."""

_FURTHER = re.compile(r"\+(?=\w+(?:\.\w+)+=)")
"""Separates further settings of the same value: `sgd+train.learning_rate=0.1`."""
OWN = {
    "seed": "set --seeds, and seed=N for the first",
    "output_dir": "set --output",
    "checkpoint.resume": "each run starts from the beginning",
    "checkpoint.push_to_hub": "models are not kept",
    "tracking.report_to": "the comparison reports",
    "tracking.run_name": "the comparison reports",
    "tracking.project": "the comparison reports",
    "tracking.histogram_steps": "the comparison reports",
    "tracking.graph": "the comparison reports",
    "tracking.logging_steps": "each step is logged",
}
"""Keys that cannot be switched, and why or what to do instead."""
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Variant:
    """One of the configurations to compare."""

    name: str  # name in tables
    settings: Mapping[str, str]  # the settings that it changes
    # settings that were added so that a step has as many rows as the baseline's
    fixed: Mapping[str, str] = field(default_factory=dict)
    technique: Technique | None = None  # the parallel strategy that it is, if the comparison is one of strategies

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
    """A predefined comparison."""

    help: str  # what it compares
    # the settings of each variant; the first is the baseline. Empty for the parallel strategies, whose settings depend
    # on the configuration and the number of processes
    variants: Sequence[Settings] = ()
    processes: int = 1  # number of processes that it needs
    counts_memory: bool = False  # whether the bytes of tensors are counted, and not those of the process


def _each(key: str, *values: str) -> list[Settings]:
    return [{key: value} for value in values]


_CHECKPOINTING, FRACTION = "train.activation_checkpointing", "data.train_fraction"
QUESTIONS: dict[str, Question] = {
    "optimizers": Question(
        "AdamW against 8-bit Adam and Adafactor", _each("train.optim", "adamw_torch", "adamw_bnb_8bit", "adafactor")
    ),
    "memory": Question(
        "savings and costs of each memory-saving technique",
        [
            {},
            *_each(_CHECKPOINTING, "every_2_layers", "full", "selective", "segments", "nested_segments"),
            *_each("train.activation_compression", "bf16", "int8"),
            {"train.optim": "adamw_bnb_8bit"},
            {"train.optim": "adafactor"},
            {"train.mixed_precision": "bf16"},
            {"model.peft.method": "lora"},
            {_CHECKPOINTING: "full", "train.optim": "adafactor"},
        ],
        counts_memory=True,
    ),
    "communication": Question(
        "two processes that exchange gradients in every step, or parameters periodically",
        [
            {"train.strategy": "sync"},
            *({"train.strategy": "local_sgd", "train.local_sgd_steps": steps} for steps in ("2", "4", "8")),
        ],
        processes=2,
    ),
    "strategies": Question("parallel strategies, each beside its estimate", processes=2, counts_memory=True),
    "rows": Question("what more labelled rows are worth", _each(FRACTION, "1.0", "0.5", "0.25", "0.12")),
    "precision": Question("precision of the forward pass", _each("train.mixed_precision", "no", "bf16", "fp16")),
}
"""Predefined comparisons by the name that `--preset` takes."""


def read_switch(text: str, configured: Mapping[str, str]) -> list[Settings]:
    """Returns the settings of each value of a switch such as `key=a,b+other.key=c`, the baseline's first.

    The `configured` values, as text, are the baseline of a switch with a single value. Raises InputError if the text is
    not a switch, has a value twice, or changes a key that the comparison sets.
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
        if own := next((name for name in settings if name in OWN), None):
            raise InputError(f"--switch: {own} is set by the comparison itself; {OWN[own]}")
        if settings in found:
            raise InputError(f"--switch: received {value!r} twice for {key}")
        found.append(settings)
    if len(found) == 1 and key in configured:
        found.insert(0, {key: configured[key]})
    return found


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


def of_question(question: Question, cfg: Config, processes: int, steps: int | None = None) -> list[Variant]:
    """Returns the variants of a predefined comparison on a number of processes; `steps` replaces those configured."""
    counted = {"tracking.count_memory": "true"} if question.counts_memory else {}
    if question.variants:
        steps, every = steps or cfg.train.max_steps, [dict(settings) for settings in question.variants]
        for part in (each for each in every if steps > 0 and FRACTION in each):  # as many epochs of fewer rows
            part["train.max_steps"] = str(max(1, round(float(part[FRACTION]) * steps)))
        return [Variant(named(settings), settings | counted) for settings in every]
    base = plain_settings(cfg) | counted
    found = [*techniques(processes), of_long_inputs(processes), *by_deepspeed(processes), DATA_PARALLEL]
    return [Variant(each.name, {**base, **each.settings}, technique=each) for each in found]


LOGGED = QUIET | {"tracking.logging_steps": 1}
"""Settings for every variant: it starts from the beginning, logs each step and reports nowhere else."""


@dataclass(frozen=True)
class Checked:
    """Variants that can run, and the reasons why others cannot."""

    variants: Sequence[Variant]  # all variants, in order
    configs: Mapping[str, Config]  # configurations of the variants that can run, by name
    refused: Mapping[str, Sequence[str]]  # problems of the variants that cannot run, by name
    # configurations of the variants that would need more processes, by name; they are in `refused` too
    planned: Mapping[str, Config] = field(default_factory=dict)

    def raise_problems(self) -> None:
        """Raises ConfigError with the problems of all variants; a problem of several variants is listed once."""
        problems: dict[str, list[str]] = {}
        for name, messages in self.refused.items():
            for message in messages:
                problems.setdefault(message, []).append(name)
        if problems:
            raise ConfigError([f"{self._where(names)}{message}" for message, names in problems.items()])

    def _where(self, names: Sequence[str]) -> str:
        if len(names) == len(self.variants):
            return ""
        return f"variant {names[0]}: " if len(names) == 1 else f"{len(names)} of {len(self.variants)} variants: "


def check_variants(
    task_type: type[Task],
    file: str,
    overrides: Sequence[str],
    variants: Sequence[Variant],
    launch: Launch,
    keep_window: bool = False,
) -> Checked:
    """Loads and checks the configuration of every variant, with as many rows per step as the baseline."""
    from toolkit.checks.run import check_launch

    def load(variant: Variant) -> Config:
        settings = [*overrides, *written(LOGGED), *variant.overrides]
        cfg = launch.load(task_type, file, settings)
        check_launch(cfg, task_type, variant.technique.processes if variant.technique else launch.processes)
        return cfg

    done: list[Variant] = []
    configs: dict[str, Config] = {}
    planned: dict[str, Config] = {}
    refused: dict[str, Sequence[str]] = {}
    baseline: Config | None = None
    for variant in _with_unique_names(variants):
        try:
            variant, cfg = _fitted(variant, load, baseline, launch.processes, keep_window)
            baseline = baseline or cfg
            if twin := next((name for name, other in configs.items() if flatten(other) == flatten(cfg)), None):
                raise ConfigError([f"has the same settings as the variant {twin}"])
            if variant.technique is not None and variant.technique.processes > launch.processes:
                planned[variant.name] = cfg
                raise ConfigError([f"needs {variant.technique.processes} processes; this row is an estimate"])
            configs[variant.name] = cfg
        except ConfigError as error:
            refused[variant.name] = error.problems
        done.append(variant)
    return Checked(done, configs, refused, planned)


def _fitted(
    variant: Variant, load: Callable[[Variant], Config], baseline: Config | None, processes: int, keep_window: bool
) -> tuple[Variant, Config]:
    """Returns a variant with the settings that keep the baseline's rows per step, and its configuration."""
    if variant.technique is not None:
        variant = _divided(variant, baseline, processes)
        return variant, load(variant)
    cfg = load(variant)
    if baseline is None:
        return variant, cfg
    if fixed := _kept_window(cfg, variant, step_rows(baseline, processes), processes, keep_window):
        variant = replace(variant, fixed=fixed)
        cfg = load(variant)
    return variant, cfg


def _divided(variant: Variant, baseline: Config | None, processes: int) -> Variant:
    """Returns the variant of a supported technique such that its steps have as many rows as the baseline's."""
    technique = variant.technique
    assert technique is not None
    if technique.refused:
        raise ConfigError([technique.refused])
    if baseline is None:
        return variant
    return replace(variant, fixed=window_settings(baseline, technique, step_rows(baseline, processes)))


def _with_unique_names(variants: Sequence[Variant]) -> list[Variant]:
    """Names variants by their full keys if keys without their sections are ambiguous."""
    names = Counter(variant.name for variant in variants)
    return [
        variant if names[variant.name] == 1 else replace(variant, name=", ".join(variant.overrides))
        for variant in variants
    ]


def _kept_window(cfg: Config, variant: Variant, rows: int, processes: int, keep_window: bool) -> dict[str, str]:
    """Returns the setting that gives a step `rows` rows: the accumulation or, if that is set, the batch size."""
    received = step_rows(cfg, processes)
    kept = received == rows or cfg.train.global_batch_size is not None
    if kept or (ACCUMULATION in variant.settings and not keep_window):
        return {}
    batch, accumulation = batch_and_accumulation(cfg)
    if ACCUMULATION in variant.settings and BATCH in variant.settings:
        raise ConfigError([
            f"--keep-window: {BATCH} {batch} and {ACCUMULATION} {accumulation} give {received} rows per step, the "
            f"baseline has {rows}; switch only one of the two, so that the other can be adjusted"
        ])  # fmt: skip
    if ACCUMULATION in variant.settings:
        switched, adjusted, least = ACCUMULATION, BATCH, received // batch
    else:
        switched, adjusted, least = BATCH, ACCUMULATION, received // accumulation
    if rows % least:
        raise ConfigError([
            f"{switched}: {least} rows do not divide the {rows} of the baseline's step; set it to a divisor, or set "
            f"{adjusted} as well"
        ])  # fmt: skip
    return {adjusted: str(rows // least)}
