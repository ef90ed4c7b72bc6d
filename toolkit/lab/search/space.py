"""The space of a search, checked against the types of its settings, and the methods that choose points."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from toolkit.api.task import Task
from toolkit.base.errors import ConfigError, InputError
from toolkit.config.keys import field_types, flatten, section_types, written
from toolkit.config.load import read_config
from toolkit.config.messages import did_you_mean, members, show
from toolkit.config.sections import Config
from toolkit.config.source import Settings, read_file

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


RANGE = ("low", "high", "log", "step")
"""Keys of a range."""
SAME_ROWS = "all trials must be scored on the same rows"
OWN = {
    "output_dir": "each trial has a folder of its own",
    "seed": "a seed that was chosen by its score says nothing about the next run",
    "checkpoint.": "the search decides which checkpoints are kept",
    "tracking.": "the search reports",
    "data.": SAME_ROWS,
    "eval.metric_for_best_model": "all trials must have the same metric",
}
"""Keys (or beginnings of keys) that cannot be searched, and why."""
ALLOWED = ("data.max_train_samples",)
"""Exceptions to `OWN`."""

Point = dict[str, Any]
"""Values by dotted key: numbers of a range, and the text of a choice."""


@dataclass(frozen=True)
class Dimension:
    """A setting that may change."""

    key: str  # its dotted key
    choices: tuple[str, ...] = ()  # its possible values, as the text of an override; empty for a range
    low: float = 0.0  # least number of a range
    high: float = 0.0  # largest number of a range
    log: bool = False  # whether the range is searched by its logarithm
    step: float | None = None  # distance of the possible numbers, or None for any number
    whole: bool = False  # whether its numbers are whole

    def distribution(self) -> BaseDistribution:
        """Returns what Optuna draws its values from."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def values(self) -> list[Any] | None:
        """Returns all values, or None if they are continuous."""
        if self.choices:
            return list(self.choices)
        if self.whole and (not self.log or self.high - self.low < MOST_POINTS):
            return list(range(int(self.low), int(self.high) + 1, int(self.step or 1)))
        if self.step is None:
            return None
        return [self.low + place * self.step for place in range(round((self.high - self.low) / self.step) + 1)]

    def place_of(self, value: Any) -> Any:
        """Returns a configured value as the value of a point, or None if it is outside the dimension."""
        if self.choices:
            text = text_of(self.key, value)
            return text if text in self.choices else None
        if not isinstance(value, int | float) or isinstance(value, bool) or not self.low <= value <= self.high:
            return None
        known = self.values() if self.step is not None or self.whole else None
        if known is None:
            return float(value)
        return next((each for each in known if abs(each - value) <= 1e-12 * max(1.0, abs(each))), None)


MOST_POINTS = 10_000
"""Most points of a grid."""


def text_of(key: str, value: Any) -> str:
    """Returns a value as the text of an override."""
    (text,) = written({key: value})
    return text.partition("=")[2]


def overrides_of(point: Point) -> list[str]:
    """Returns a point as overrides, `section.key=value` each."""
    return written(point)


def configured_point(space: Sequence[Dimension], cfg: Config) -> Point | None:
    """Returns the configured settings as a point, or None if they are outside the space."""
    flat = flatten(cfg)
    found = {each.key: each.place_of(flat.get(each.key)) for each in space}
    return None if None in found.values() else found


def grid_of(space: Sequence[Dimension]) -> list[Point]:
    """Returns all points of a discrete space; raises ConfigError if there are too many, or it is not discrete."""
    values = {each.key: each.values() for each in space}
    if endless := [key for key, found in values.items() if found is None]:
        raise ConfigError([
            f"{key}: grid needs a list of values, or a range with a step; the other methods draw from a range"
            for key in endless
        ])  # fmt: skip
    count = 1
    for found in values.values():
        count *= len(found or ())
    if count > MOST_POINTS:
        raise ConfigError([f"the grid has {count:,} points, more than {MOST_POINTS:,}; use fewer values, or tpe"])
    return [dict(zip(values, point, strict=True)) for point in product(*(found or () for found in values.values()))]


def read_space(file: Path, task_type: type[Task], config: str, overrides: Sequence[str]) -> list[Dimension]:
    """Reads a space, checked as settings of a run: a YAML file that maps dotted keys to lists of values or ranges.

    Raises ConfigError with all problems.
    """
    settings = read_file(file)
    hints = {".".join(key): hint for key, hint in field_types(section_types(task_type.Options)).items()}
    problems: list[str] = []
    found = []
    for key, value in settings.values.items():
        place = settings.source((key,)).place
        try:
            found.append(_dimension(key, value, hints.get(key)))
        except ValueError as error:
            problems.append(f"{place}: {key}: {error}")
            continue
        problems += _problems_of(found[-1], place, task_type, config, overrides)
    if problems:
        raise ConfigError(problems)
    return found


def _dimension(key: str, value: Any, hint: Any) -> Dimension:
    """Returns a dimension; raises ValueError with the reason if it is none."""
    for begin, why in OWN.items():
        if (key == begin or (begin.endswith(".") and key.startswith(begin))) and key not in ALLOWED:
            raise ValueError(f"cannot be searched: {why}")
    if dataclasses.is_dataclass(hint):
        raise ValueError("this is a section; write the complete key of a setting, such as train.learning_rate")
    if isinstance(value, list):
        texts = tuple(text_of(key, each) for each in value)
        if len(set(texts)) < max(2, len(texts)):
            raise ValueError(f"received {show(value)}, expected at least two values, each once")
        return Dimension(key, texts)
    if not isinstance(value, Mapping):
        raise ValueError(f"received {show(value)}, expected a list of values or a range such as {{low: 1, high: 8}}")
    return _range(key, value, hint)


def _range(key: str, value: Mapping[str, Any], hint: Any) -> Dimension:
    if unknown := [name for name in value if name not in RANGE]:
        raise ValueError(f"unknown key {unknown[0]!r} of a range{did_you_mean(unknown[0], RANGE)}; it has low, high, "
                         "log and step")  # fmt: skip
    low, high, step = _number(value, "low"), _number(value, "high"), value.get("step")
    step = None if step is None else _number(value, "step")
    log = value.get("log")
    if not isinstance(log, bool | None):
        raise ValueError(f"log: received {show(log)}, expected true or false")
    if low >= high:
        raise ValueError(f"low {show(low)} is not below high {show(high)}")
    if log and low <= 0:
        raise ValueError(f"low: received {show(low)}, must be above 0 with log")
    if log and step is not None:
        raise ValueError("log and step exclude each other; write a list of the values instead")
    if step is not None and (step <= 0 or abs((high - low) / step - round((high - low) / step)) > 1e-9):
        raise ValueError(f"step: received {show(step)}, must divide the distance from low to high ({high - low:g})")
    kinds = {_kind(part) for part in members(hint)}
    whole = all(isinstance(number, int) for number in (low, high, step) if number is not None)
    if int not in kinds and (float in kinds):
        whole = False
    if not whole:
        low, high, step = float(low), float(high), None if step is None else float(step)
    return Dimension(key, (), low, high, bool(log), step, whole)


def _number(value: Mapping[str, Any], name: str) -> float:
    number = value.get(name)
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise ValueError(f"{name}: received {show(number)}, expected a number")
    return number


def _kind(hint: Any) -> Any:
    """Returns an annotation without its bounds."""
    return get_args(hint)[0] if hasattr(hint, "__metadata__") else get_origin(hint) or hint


def _problems_of(
    dimension: Dimension, place: str, task_type: type[Task], config: str, overrides: Sequence[str]
) -> Iterator[str]:
    """Yields why values of a dimension are invalid regardless of the other settings."""
    numbers = (int(dimension.low), int(dimension.high)) if dimension.whole else (dimension.low, dimension.high)
    seen: set[str] = set()
    for value in dimension.choices or numbers:
        (override,) = written({dimension.key: value})
        draft = read_config(
            task_type.Options, Path(config), [*overrides, override], {}, task_type.columns, check_files=False
        )
        settings: Settings = draft.settings
        key = tuple(dimension.key.split("."))
        if not any(key[: len(wrong)] == wrong or wrong[: len(key)] == key for wrong in draft.faulty):
            continue
        begin = f"override {override}: "
        found = [problem.removeprefix(begin) for problem in settings.problems if problem.startswith(begin)]
        yield from (f"{place}: {problem}" for problem in found if problem not in seen)
        seen |= set(found)


REDUCTION = 3
"""One of this many trials continues beyond each rung of successive halving."""
MUTABLE = (
    *("train.learning_rate", "train.head_learning_rate", "train.weight_decay", "train.max_grad_norm"),
    *("train.max_grad_value", "task.label_smoothing_factor", "task.focal_gamma"),
    *(f"task.image.{name}" for name in ("random_crop", "horizontal_flip", "color_jitter", "random_erasing")),
    *("task.image.mixup_alpha", "task.image.cutmix_alpha", "task.audio.speed", "task.audio.time_mask_width"),
    *("task.audio.time_masks", "task.audio.frequency_masks", "task.audio.frequency_mask_width"),
)
"""Settings that may change in the middle of a run: neither the optimizer's state nor the model depends on them."""


@dataclass(frozen=True)
class Method:
    """A method of search."""

    help: str  # what it does
    draws: str = "RandomSampler"  # the class in `optuna.samplers` that draws points
    ends: str = "NopPruner"  # the class in `optuna.pruners` that ends trials early, at evaluations

    @property
    def prunes(self) -> bool:
        """Whether trials end early."""
        return self.ends != "NopPruner"

    def sampler(self, seed: int) -> BaseSampler:
        """Returns the sampler of a point."""
        from optuna import samplers

        quiet = {"warn_independent_sampling": False} if self.draws == "CmaEsSampler" else {}
        sampler: BaseSampler = getattr(samplers, self.draws)(seed=seed, **quiet)
        return sampler

    def pruner(self, evaluations: int) -> BasePruner:
        """Returns the pruner of a trial with this number of evaluations."""
        from optuna import pruners

        settings = {"min_resource": 1, "reduction_factor": REDUCTION} if self.prunes else {}
        settings |= {"max_resource": evaluations} if self.ends == "HyperbandPruner" else {}
        pruner: BasePruner = getattr(pruners, self.ends)(**settings)
        return pruner


METHODS = {
    "grid": Method("every combination of the values"),
    "random": Method("points at random"),
    "tpe": Method("a tree-structured Parzen estimator (Bergstra et al. 2011)", "TPESampler"),
    "gp": Method("Bayesian optimization with a Gaussian process", "GPSampler"),
    "cmaes": Method("the evolution strategy CMA-ES (Hansen 2016)", "CmaEsSampler"),
    "asha": Method(
        "asynchronous successive halving (Li et al. 2020), points as tpe", "TPESampler", "SuccessiveHalvingPruner"
    ),
    "hyperband": Method("Hyperband (Li et al. 2018), points as tpe", "TPESampler", "HyperbandPruner"),
    "pbt": Method("population based training (Jaderberg et al. 2017)"),
    "pbt-tpe": Method("the same, with new settings by tpe from what each has gained so far, similar to PB2"),
}
POPULATION = ("pbt", "pbt-tpe")
"""Methods whose trials are members of one population."""
"""The methods by the name that `--method` takes."""


def check_method(name: str, space: Sequence[Dimension], cfg: Config, storage: str | None) -> None:
    """Checks that a method fits the space and the run; raises ConfigError with all problems."""
    problems = []
    if (METHODS[name].prunes or name in POPULATION) and cfg.eval.eval_steps is None:
        problems.append(f"eval.eval_steps: {name} compares trials at their evaluations, and there is one at the end "
                        "only; set it, for instance to epoch or 0.1")  # fmt: skip
    if METHODS[name].prunes and any(each.key == "eval.eval_steps" for each in space):
        problems.append(f"eval.eval_steps: {name} compares trials at their evaluations, so all need the same; remove "
                        "it from the space")  # fmt: skip
    if name == "cmaes":
        problems += [f"{each.key}: cmaes needs ranges, and this is a list; use tpe or gp" for each in space
                     if each.choices]  # fmt: skip
        if len(space) < 2:
            problems.append("cmaes needs at least two settings; use tpe or gp")
        if find_spec("cmaes") is None:
            problems.append("cmaes needs a package that is not installed; pip install 'finetune-toolkit[search]'")
    if name in POPULATION:
        train = cfg.train
        ends = {"early_stopping_patience": train.early_stopping_patience, "max_time": train.max_time,
                "target_metric": train.target_metric}  # fmt: skip
        problems += [f"train.{key}: would end one member of a population, which train together to the end; remove it"
                     for key, value in ends.items() if value]  # fmt: skip
        problems += [f"{each.key}: cannot change in the middle of a run, as {name} does; it can change "
                     f"{', '.join(MUTABLE)}" for each in space if each.key not in MUTABLE]  # fmt: skip
    if problems:
        raise ConfigError(problems)
    if name in POPULATION and storage is not None:
        raise InputError("--storage: the members of a population copy each other's checkpoints, so it runs in its "
                         "output folder; remove it")  # fmt: skip
