"""Asks checks of a run, tells problems as they are found, and skips what follows from a setting that is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from toolkit.api.task import Task
from toolkit.base.console import report_error
from toolkit.base.errors import ConfigError, InputError, count_wrong
from toolkit.base.processes import is_first_rank
from toolkit.config.messages import Key
from toolkit.config.problems import CannotCheck, Check, Problem, Stage, touching
from toolkit.config.sections import Config

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass
class Case:
    """A run that is checked."""

    cfg: Config  # the settings, with invalid ones replaced by their defaults
    make_task: Callable[[Config], Task]  # creates the recipe's task from settings
    # environment variables with the launcher's settings
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    processes: int | None = None  # number of processes; None takes that of the launcher, which `environ` has
    faulty: Collection[Key] = ()  # keys of the invalid settings
    # returns the message of a problem, with the place where a setting was given
    place: Callable[[Problem], str] = lambda problem: problem.text
    empty: PreTrainedModel | None = None  # the model without weights, once a check has built it

    def __post_init__(self) -> None:
        if self.processes is None and "WORLD_SIZE" in self.environ:
            self.processes = int(self.environ["WORLD_SIZE"])

    @cached_property
    def task(self) -> Task:
        """The recipe's task."""
        return self.make_task(self.cfg)

    def load_config(self) -> PreTrainedConfig:
        """Returns the model's configuration, a new copy each time; it is loaded once.

        Raises InputError if it cannot be loaded, each time.
        """
        if isinstance(self._config, InputError):
            raise self._config
        return deepcopy(self._config)

    @cached_property
    def _config(self) -> PreTrainedConfig | InputError:
        from toolkit.config.paths import source_of
        from toolkit.models.load import load_model_config

        try:
            return load_model_config(source_of(self.cfg))
        except InputError as error:
            return error


@dataclass(frozen=True)
class Findings:
    """Results of checks."""

    problems: tuple[str, ...] = ()  # one message per problem
    unchecked: tuple[str, ...] = ()  # what could not be checked and why, one phrase each

    def __add__(self, other: Findings) -> Findings:
        more = (each for each in other.problems if each not in self.problems)
        return Findings((*self.problems, *more), self.unchecked + other.unchecked)

    def raise_problems(self, told: Told | None = None) -> None:
        """Raises ConfigError with all problems, if there are any; `told` has printed some of them."""
        if self.problems:
            error = ConfigError(list(self.problems), list(self.unchecked))
            if told is not None and told.problems:
                told.end(self.unchecked)
                error.told = True
            raise error


class Told:
    """Prints wrong settings on the first rank as soon as they are found, while others are still looked for."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.first = 0

    def __call__(self, problems: Iterable[str]) -> None:
        """Prints those of the problems that have not been printed."""
        new = [each for each in problems if each not in self.problems]
        lines = [f"  - {each}" for each in new]
        if begins := bool(new) and not self.problems:
            self.first = len(new)
            lines = [f"{count_wrong(self.first)}:", *lines, "looking for more (libraries, machine, model, data) ..."]
        self.problems += new
        self._print(lines, begins)

    def end(self, unchecked: Sequence[str]) -> None:
        """Prints what could not be checked, and the number of all problems if there were more than the first ones."""
        lines = [f"  not checked: {each}" for each in unchecked]
        if len(self.problems) > self.first:
            self._print([*lines, f"{count_wrong(len(self.problems))} in total"])
        else:
            self._print(["  nothing else was found", *lines])

    def _print(self, lines: Sequence[str], begins: bool = False) -> None:
        if lines and is_first_rank():
            report_error("\n".join(lines), blank_line_before=begins)


def ask(checks: Sequence[Check], case: Case, stages: Iterable[Stage], told: Told | None = None) -> Findings:
    """Performs the checks of some stages in their order, and skips those that depend on an invalid setting.

    `told` prints the problems of each stage once it has been asked.
    """
    found = Findings()
    for stage in stages:
        for check in checks:
            if check.stage == stage:
                found += _asked(check, case)
        if told is not None:
            told(found.problems)
    return found


def _asked(check: Check, case: Case) -> Findings:
    problems: list[str] = []
    faults: set[Key] = set()
    try:
        for each in check.find(case):
            problem = each if isinstance(each, Problem) else Problem.of(each)
            touched = touching((*check.reads, *problem.keys), case.faulty)
            faults.update(touched)
            problems += [] if touched else [case.place(problem)]
        because = f"of {', '.join('.'.join(key) for key in sorted(faults))}" if faults else ""
    except CannotCheck as reason:
        because = str(reason)
    unchecked = (f"{check.about}, because {because}",) if check.about and because else ()
    return Findings(tuple(dict.fromkeys(problems)), unchecked)
