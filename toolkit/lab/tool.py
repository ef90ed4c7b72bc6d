"""What all tools around runs share: the request, trainings in processes of their own, and the report."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, cast

from toolkit.api.task import Task
from toolkit.base.console import say
from toolkit.base.errors import RunError
from toolkit.base.files import write_json
from toolkit.base.outputs import output_folder
from toolkit.checks.run import check_launch
from toolkit.config.keys import written
from toolkit.config.sections import Config
from toolkit.document.blocks import Block, Code, Page, Section
from toolkit.document.render import print_blocks, save_page
from toolkit.lab.jobs.jobs import Launch, Trial, run_trials


@dataclass(frozen=True)
class Request:
    """A call of a tool: the run it is about, and where the results go."""

    recipe: Path  # the recipe's file
    config: Path  # the YAML file
    overrides: Sequence[str]  # the user's overrides; of `override`, with further ones
    task_type: type[Task]  # the recipe's task
    cfg: Config  # the settings with the overrides
    launch: Launch  # how processes are started
    output: Path  # the output folder
    command: str  # the command line

    @cached_property
    def task(self) -> Task:
        """The task with these settings."""
        return self.task_type(self.cfg)

    @property
    def job(self) -> dict[str, Any]:
        """The argument of a function that trains: `recipe`, `config` and `overrides`."""
        paths = {"recipe": str(self.recipe.absolute()), "config": str(self.config.absolute())}
        return {**paths, "overrides": [*self.overrides]}

    def load(self, more: Sequence[str] = ()) -> Config:
        """Returns the settings with further overrides, as the launched processes read them.

        Raises ConfigError if a setting is invalid.
        """
        return self.launch.load(self.task_type, str(self.config), [*self.overrides, *more])

    def override(self, *groups: Mapping[str, Any], starts: bool = True) -> Request:
        """Returns the request with further settings by dotted key; of a key in several groups, the last one counts.

        Raises ConfigError if a setting is invalid, or a run that `starts` cannot.
        """
        more = written({key: value for group in groups for key, value in group.items()})
        cfg = self.load(more)
        if starts:
            check_launch(cfg, self.task_type, self.launch.processes)
        return replace(self, overrides=[*self.overrides, *more], cfg=cfg)

    def make_output(self, again: bool = False) -> Path:
        """Makes the output folder, once the request has been checked; arguments and errors as `output_folder`."""
        return output_folder(self.output, again=again)

    def measured(self, work: str, **more: Any) -> Any:
        """Returns the result of a function that trains; see `run_apart`."""
        return run_apart(work, self.job | more, self.launch)


def run_apart(work: str, job: Mapping[str, Any], launch: Launch, timeout: float | None = None) -> Any:
    """Calls a function of `toolkit.lab.worker.WORK` in processes of its own; returns the first rank's result."""
    with TemporaryDirectory(prefix=f"{work}-") as name:
        folder = Path(name)
        if "overrides" in job:
            job = {**job, "overrides": [*job["overrides"], f"output_dir={folder}/run"]}
        trial = Trial(work, job, folder / "outcome.json")
        log = folder / f"{work}.log"
        (outcome,) = run_trials([trial], log, launch.processes, launch.file, launch.environ, timeout)
    if outcome.error is not None:
        raise RunError(outcome.error)
    return outcome.result


class Report:
    """What a tool found; a subclass is a dataclass whose fields are the keys of the JSON file, in their order.

    A name that is a keyword in Python has an underscore at its end, which the JSON file has not.
    """

    FILE: ClassVar[str]
    """Name of the files, without their ending."""
    command: str | Sequence[str]
    """The command line, or its words."""

    def page(self) -> Page:
        """Returns the page, without the command; the result comes first, and sections without blocks are omitted."""
        raise NotImplementedError

    def on_terminal(self) -> Iterable[Block]:
        """Returns what the terminal shows: the texts and tables of the first section."""
        return self.page().sections[0].blocks

    def as_json(self) -> dict[str, Any]:
        """Returns the content of the JSON file."""
        return asdict(cast(Any, self), dict_factory=lambda items: {key.rstrip("_"): value for key, value in items})

    def save(self, folder: Path) -> None:
        """Writes the JSON file, the page as HTML and Markdown, and the charts of the latter."""
        title, lead, sections = self.page()
        write_json(folder / f"{self.FILE}.json", self.as_json())
        command = self.command if isinstance(self.command, str) else shlex.join(self.command)
        every = [part for part in (*sections, Section("Command", [Code(command, "bash")])) if part.blocks]
        save_page(folder, self.FILE, Page(title, lead, every))

    def show(self) -> None:
        """Prints the result."""
        say("")
        print_blocks(self.on_terminal())

    def publish(self, folder: Path) -> None:
        """Writes and prints everything."""
        self.save(folder)
        self.show()
        say(f"\nwritten to {folder}/{self.FILE}.html, .md and .json")
