"""Checks of a run that are made before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from toolkit.api.task import Task
from toolkit.base.errors import ConfigError
from toolkit.config.messages import Key
from toolkit.config.sections import Config
from toolkit.config.watch import touching, watched

Kind = Literal["settings", "libraries", "machine", "model", "inputs", "rows", "folder"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class CannotCheck(Exception):  # noqa: N818 - never shown as an error
    """Raised by a check that cannot be performed, with the reason."""


@dataclass(frozen=True)
class Check:
    """A check of a run.

    Args:
        about: name of the check, shown if it could not be performed.
        problems: returns one full message per problem, starting with the dotted key.
        kind: what the check needs: only the settings, libraries and imported modules, the rest of this machine, the
            model's configuration, its processor and data, the first rows of the data, or the output folder.
    """

    about: str
    problems: Callable[[Config, Task], list[str]]
    kind: Kind = "settings"


@dataclass(frozen=True)
class Findings:
    """Results of checks.

    Args:
        problems: one message per problem.
        unchecked: what could not be checked and why, one phrase each.
    """

    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    def __add__(self, other: Findings) -> Findings:
        return Findings(self.problems + other.problems, self.unchecked + other.unchecked)

    def refuse(self) -> None:
        """Raises an error if there are problems.

        Raises:
            ConfigError: if there are problems; lists all of them.
        """
        if self.problems:
            raise ConfigError(list(self.problems), list(self.unchecked))


def ask(
    checks: Iterable[Check], cfg: Config, make_task: Callable[[Config], Task], faulty: Collection[Key] = ()
) -> Findings:
    """Performs checks and skips those that depend on an invalid setting.

    Args:
        checks: the checks.
        cfg: the settings, with invalid ones replaced by their defaults.
        make_task: creates the recipe's task from settings.
        faulty: keys of the invalid settings.

    Returns:
        The problems, and the checks that were skipped.
    """
    problems: list[str] = []
    unchecked: list[str] = []
    read: set[Key] = set()
    seen = watched(cfg, read) if faulty else cfg
    for check in checks:
        read.clear()
        try:
            found = check.problems(seen, make_task(seen))
        except CannotCheck as reason:
            found = []
            unchecked.append(f"{check.about}, because {reason}")
        if found and (reasons := touching(read, faulty)):
            unchecked.append(f"{check.about}, because of {', '.join('.'.join(key) for key in reasons)}")
        else:
            problems += [each for each in found if each not in problems]
    return Findings(tuple(problems), tuple(unchecked))
