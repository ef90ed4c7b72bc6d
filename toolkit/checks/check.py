"""A question about a run that is asked before anything heavy is loaded, and how many are asked at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from toolkit.api.task import Task
from toolkit.base.errors import ConfigError
from toolkit.config.messages import Key
from toolkit.config.sections import Config
from toolkit.config.watch import touching, watched

Kind = Literal["settings", "libraries", "machine", "model", "inputs", "folder"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class CannotCheck(Exception):  # noqa: N818 - a reason, never shown as an error
    """Raised by a check that cannot be made, with the reason."""


@dataclass(frozen=True)
class Check:
    """A question about a run.

    Args:
        about: what it is about, for those who read that it was not asked.
        problems: gives one full message for each thing that is wrong, dotted key first.
        kind: what it takes to answer: the settings alone, libraries and modules that are imported, the rest of this
            machine, the model's configuration, its processor and data, or the output folder.
    """

    about: str
    problems: Callable[[Config, Task], list[str]]
    kind: Kind = "settings"


@dataclass(frozen=True)
class Findings:
    """What checks found.

    Args:
        problems: one message for each thing that is wrong.
        unchecked: what could not be checked and why, one phrase each.
    """

    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    def __add__(self, other: Findings) -> Findings:
        return Findings(self.problems + other.problems, self.unchecked + other.unchecked)

    def refuse(self) -> None:
        """Stops if there are problems.

        Raises:
            ConfigError: with all of them.
        """
        if self.problems:
            raise ConfigError(list(self.problems), list(self.unchecked))


def ask(
    checks: Iterable[Check], cfg: Config, make_task: Callable[[Config], Task], faulty: Collection[Key] = ()
) -> Findings:
    """Makes checks, and leaves out what would only follow from a setting that is wrong itself.

    Args:
        checks: what to ask.
        cfg: the settings, a wrong one replaced by its default.
        make_task: makes the recipe's task of settings.
        faulty: keys of the settings that are wrong.
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
