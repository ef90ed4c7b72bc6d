"""Arguments shared by several commands, and the recipe or run that they name."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.base.cli_errors import EXIT_INTERRUPT
from toolkit.base.errors import ConfigError, InputError
from toolkit.base.files import expanded, kind_of

if TYPE_CHECKING:
    import socket

    from toolkit.api.task import Task
    from toolkit.config import Loaded
    from toolkit.deploy.trained import TrainedRun
    from toolkit.lab.tool import Request


class Parser(Protocol):
    """An argument parser or argument group."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Adds an argument."""


def at_least(least: int) -> Callable[[str], int]:
    """Returns an argparse `type` for integers that are at least `least`."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"received {text}, must be a whole number of at least {least}")
        return value

    return number


def number_where(fits: Callable[[float], bool], meaning: str) -> Callable[[str], float]:
    """Returns an argparse `type` for finite numbers that fit; errors say what they must be."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and fits(value)):
            raise argparse.ArgumentTypeError(f"received {text}, must be a number {meaning}")
        return value

    return number


def number_from(least: float) -> Callable[[str], float]:
    """Returns an argparse `type` for finite numbers that are at least `least`."""
    return number_where(lambda value: value >= least, f"of at least {least:g}")


fraction = number_where(lambda value: 0 <= value <= 1, "from 0 to 1")


def port(text: str) -> int:
    """Argparse `type` for TCP ports; 0 is any free one."""
    if not (text.isascii() and text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"received {text}, must be a whole number from 0 to 65535")
    return int(text)


def one_of(*names: str) -> Callable[[str], str]:
    """Returns an argparse `type` for names whose choice differs between commands."""

    def name(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"received {text}, expected {' or '.join(names)}")
        return text

    return name


ARGUMENTS: dict[str, dict[str, Any]] = {
    "recipe": {"metavar": "RECIPE", "help": "name of a recipe, for example qa, or the path of your own"},
    "overrides": {"nargs": "*", "metavar": "section.key=value", "help": "settings to change"},
    "run": {"metavar": "RUN", "help": "output folder of a finished run"},
    "--config": {"metavar": "FILE", "help": "the run's YAML, or the name of a configuration of the recipe"},
    "--recipe": {"metavar": "RECIPE", "help": "recipe, by name or path"},
    "--data": {"metavar": "FILE", "help": "rows to read, with the columns of the run's files"},
    "--model": {"metavar": "MODEL", "help": "hub id or local folder of the model"},
    "--output": {"metavar": "PATH", "help": "file or folder to write"},
    "--format": {"metavar": "FORMAT", "help": "format to write"},
    "--mode": {"metavar": "MODE", "help": "kind of comparison"},
    "--processes": {"type": at_least(1), "metavar": "N", "help": "number of processes of a run"},
    "--launch": {
        "metavar": "FILE",
        "help": "configuration file of accelerate launch, or the name of one in accelerate_configs, for several "
        "processes",
    },
    "--corpus": {"metavar": "FILE", "help": "documents to search in, with the column of the run's documents"},
    "--parity-rows": {"type": at_least(1), "metavar": "N", "help": "most rows to compare on, evenly spaced"},
    "--steps": {"type": at_least(1), "metavar": "N", "help": "steps of a run"},
    "--skip": {"metavar": "N", "help": "steps before those that are measured"},
    "--per-device-eval-batch-size": {"type": at_least(1), "metavar": "N", "help": "rows per batch on each process"},
    "--bad-rows": {"choices": ("error", "skip"), "help": "what to do with unusable rows"},
    "--host": {"metavar": "ADDRESS", "help": "address to listen on"},
    "--port": {"type": port, "metavar": "N", "help": "port to listen on, 0 for any free one"},
    "--time": {"metavar": "TIME", "help": "time limit, for example 4:00:00 (hours:minutes:seconds)"},
    "--overwrite": {"action": "store_true", "help": "replace the output file if it exists"},
    "--trust-remote-code": {"action": "store_true", "help": "allow Python code that comes with the model"},
}
"""Parameters of `add_argument` by argument name."""

FORMER = {
    "evaluate": {"--batch-size": "--per-device-eval-batch-size", "--input": "--data"},
    "fetch": {"--to": "--output"},
    "lr-plot": {"--num_processes": "--processes"},
    "plan": {"--json": "--output"},
    "predict": {"--batch-size": "--per-device-eval-batch-size", "--data": "--input"},
    "runs": {"--csv": "--output", "--html": "--output"},
}
"""Deprecated names of options by command, beside `--output-dir` of all; they still work but are not documented."""


def add(parser: Parser, name: str, default_text: str | None = None, **settings: Any) -> None:
    """Adds one of `ARGUMENTS` to a command, with the text of its default and further parameters of `add_argument`."""
    shared = ARGUMENTS[name]
    text = shared["help"] if default_text is None else f"{shared['help']} (default: {default_text})"
    parser.add_argument(name, **{**shared, **settings, "help": text})


def add_count(
    parser: Parser, name: str, text: str, default: int | None = None, least: int = 1, **settings: Any
) -> None:
    """Adds an option for whole numbers of at least `least`; further parameters are those of `add_argument`."""
    text += "" if default is None else f" (default: {default})"
    parser.add_argument(name, **{"type": at_least(least), "default": default, "metavar": "N", "help": text, **settings})


def add_least(parser: Parser, name: str, default_text: str, default: int, least: int) -> None:
    """Adds one of `ARGUMENTS` for whole numbers of at least `least`."""
    add(parser, name, default_text, default=default, type=at_least(least))


def add_output(parser: Parser, default_text: str | None = None, folder: bool = False, **settings: Any) -> None:
    """Adds `--output`, and `--overwrite` if it is a file; a folder is never overwritten, but may be continued."""
    add(parser, "--output", default_text, **settings)
    if not folder:
        add(parser, "--overwrite")


def add_launch(parser: Parser, **settings: Any) -> None:
    """Adds `--launch` and `--processes`, which say how a command starts the processes of its runs."""
    add(parser, "--launch")
    add(parser, "--processes", default_text="as in the --launch file, or 1", **settings)


def add_address(parser: Parser, default_port: int) -> None:
    """Adds `--host` and `--port`."""
    add(parser, "--host", default="127.0.0.1", default_text="127.0.0.1, this machine alone; there is no authentication")
    add(parser, "--port", default=default_port, default_text=str(default_port))


def with_current_names(command: str, arguments: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Returns a command's arguments with deprecated option names replaced, and says on stderr what to write instead."""
    former = {"--output-dir": "--output", **FORMER.get(command, {})}
    known = parser._option_string_actions  # argparse has no public list
    split = [argument.partition("=") for argument in arguments]
    renamed = {name: former[name] for name, *_ in split if name in former and former[name] in known}
    for name, current in renamed.items() if "LOCAL_RANK" not in os.environ else ():
        print(f"toolkit {command}: {name} is now {current}", file=sys.stderr)
    return ["".join((renamed.get(name, name), equals, value)) for name, equals, value in split]


def reject_input_as_output(file: Path, inputs: Iterable[str], option: str = "--output") -> None:
    """Raises InputError if the file to write is one of the inputs, which are given as options name them."""
    from toolkit.config.paths import files_of

    read = [expanded(each) for name in inputs for each in files_of(name)]
    if any(kind_of(each) == kind_of(file) == "file" and file.samefile(each) for each in read):
        raise InputError(f"{option}: {file} is an input and would be overwritten; use another file")


def reject_own_inputs(arguments: argparse.Namespace) -> None:
    """Raises InputError if `--output` names a file that another argument of the command, or a setting, names."""
    given = {name: value if isinstance(value, list) else [value] for name, value in vars(arguments).items()}
    outputs = [each for each in given.pop("output", []) if isinstance(each, str) and kind_of(expanded(each)) == "file"]
    given.pop("command")
    words = [each for values in given.values() for each in values if isinstance(each, str)] if outputs else []
    for output in outputs:
        reject_input_as_output(expanded(output), [word.partition("=")[2] or word for word in words])


TOOLKIT = "import sys; del sys.argv[0]; from toolkit.commands.cli import main; main()"
"""The program of `python -c`; the whole command line follows, its first word included, as `run.json` notes it."""


def start_processes(arguments: argparse.Namespace) -> None:
    """Starts the ranks of `--processes`, waits for them and exits with their code; returns in a rank and for one.

    Raises InputError if a launcher has started another number; SystemExit with the exit code of the ranks.
    """
    from toolkit.system.launcher import launched_processes, run_ranks

    launched = launched_processes()
    if launched is not None and arguments.processes not in (None, launched):
        raise InputError(
            f"--processes: received {arguments.processes}, but the launcher started {launched}; remove the option"
        )
    if launched is None and (arguments.processes or 1) > 1:
        words = [sys.argv[0], *arguments.command[1:]]
        code = run_ranks([sys.executable, "-c", TOOLKIT, *words], arguments.processes)
        sys.exit(code if code >= 0 else 1)


READ_FROM_REQUESTS = ("columns", "unescape_html")
"""Settings of the section `data` that concern rows which come from no file."""
KERNELS = "0"
"""Prepared kernels that oneDNN keeps on a CPU. It would keep 1024, one for each operation and shape, and batches of
requests have all shapes, so the memory of a server would grow for a long time."""


def add_run(parser: argparse.ArgumentParser, bad_rows: str | None = "as the run") -> None:
    """Adds the run and the options for reading rows; `--bad-rows` only with the text of its default, `bad_rows`."""
    add(parser, "run")
    add(parser, "overrides", default_text="as the run; how rows are read (data.columns.text=body) and answers made")
    add(parser, "--recipe", default_text="that of the run")
    if bad_rows is not None:
        add(parser, "--bad-rows", default_text=bad_rows)
    add(parser, "--trust-remote-code")
    add(parser, "--per-device-eval-batch-size", default_text="as the run")


def open_trained(arguments: argparse.Namespace, skips_rows: bool = False, calibrated: bool = True) -> TrainedRun:
    """Opens the finished run, with its decision if `calibrated`; raises ToolkitError if that fails.

    With `skips_rows`, the command may skip unusable rows, as `data.bad_rows` or `--bad-rows` says.
    """
    from toolkit.base.console import quiet_libraries
    from toolkit.base.processes import die_with_launcher
    from toolkit.deploy.trained import POLICY, READING, open_finished

    die_with_launcher()
    quiet_libraries()
    return open_finished(
        arguments.run,
        arguments.recipe,
        arguments.per_device_eval_batch_size,
        arguments.trust_remote_code,
        _with_policy(arguments.overrides, arguments.bad_rows) if skips_rows else arguments.overrides,
        (*READING, *POLICY, "max_eval_samples") if skips_rows else READING,
        calibrated,
        vars(arguments).get("mixed_precision"),
    )


def _with_policy(overrides: Sequence[str], bad_rows: str | None) -> list[str]:
    """Returns the overrides with `--bad-rows`; raises InputError if `data.bad_rows` is among them as well."""
    from toolkit.config.sections import DataConfig

    overrides = ["data.max_eval_samples=null", *overrides]  # the run's is for its own rows
    if bad_rows is None:
        return overrides
    if any(override.partition("=")[0] == "data.bad_rows" for override in overrides):
        raise InputError("--bad-rows, data.bad_rows: both were given; remove one of them")
    # What the run allowed to skip would be an error with `error`, but it is not what the user asks for here.
    unset = [f"data.max_bad_rows={DataConfig().max_bad_rows}"] if bad_rows == "error" else []
    return [*unset, *overrides, f"data.bad_rows={bad_rows}"]


def open_served(arguments: argparse.Namespace, libraries: Sequence[str]) -> tuple[TrainedRun, str, socket.socket]:
    """Opens the finished run of a command that serves it; returns the run, its name, and a socket with the address.

    The `libraries` are the modules of the extra that has the command's name. Addresses are checked before the run.
    Raises ToolkitError if an argument is wrong, a library is missing, or the run cannot be opened.
    """
    from toolkit.deploy.serving.server import bound, require_libraries
    from toolkit.system.launcher import require_no_launcher

    command = arguments.command[1]
    require_libraries(command, libraries)
    _reject_overrides_of_files(arguments.overrides)
    require_no_launcher(command)
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin would keep cores from those of requests
    opened = bound(arguments.host, arguments.port)
    try:
        return open_trained(arguments), expanded(arguments.run).absolute().name, opened
    except BaseException:
        opened.close()
        raise


def _reject_overrides_of_files(overrides: Sequence[str]) -> None:
    """Raises ConfigError with all settings that concern files, for commands that read none."""
    keys = [override.partition("=")[0] for override in overrides]
    own = [["data", name] for name in READ_FROM_REQUESTS]
    if others := [key for key in keys if key.split(".")[:2] not in own]:
        known = " and ".join(f"data.{name}" for name in READ_FROM_REQUESTS)
        raise ConfigError([f"{key}: rows come from requests; only {known} concern them" for key in others])


def add_recipe(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds the recipe, its YAML (which may not be `required`) and overrides."""
    add(parser, "recipe")
    add(parser, "overrides")
    add(parser, "--config", required=required)


def find(arguments: argparse.Namespace) -> None:
    """Replaces the names of the recipe and of its configuration by their paths; raises InputError for unknown ones."""
    from toolkit.recipe import config_file, recipe_file

    arguments.recipe = str(recipe_file(arguments.recipe))
    arguments.config = str(config_file(arguments.recipe, arguments.config))


def load(arguments: argparse.Namespace) -> tuple[type[Task], Loaded]:
    """Loads the recipe and its settings, and replaces names in the arguments by paths.

    Raises ConfigError if a setting is invalid; InputError if the recipe cannot be loaded.
    """
    from toolkit.checks.check import Told
    from toolkit.recipe import load_settings, load_task_type

    find(arguments)
    task_type = load_task_type(arguments.recipe)
    return task_type, load_settings(task_type, arguments.config, arguments.overrides, told=Told())


def request(arguments: argparse.Namespace, suffix: str, processes: int | None = None, least: int = 1) -> Request:
    """Returns the request of a command for a tool; the name of its output folder is that of the run and `suffix`.

    Raises ConfigError if a setting is invalid; InputError if the recipe cannot be loaded, or `least` processes cannot
    be started.
    """
    task_type, loaded = load(arguments)

    from toolkit.base.console import quiet_libraries
    from toolkit.lab.jobs.jobs import Launch
    from toolkit.lab.tool import Request

    quiet_libraries()
    given = vars(arguments)
    launch = Launch.of(given.get("launch"), given.get("processes") if processes is None else processes)
    launch.check(least)
    return Request(
        recipe=Path(arguments.recipe),
        config=Path(arguments.config),
        overrides=arguments.overrides,
        task_type=task_type,
        cfg=loaded.config,
        launch=launch,
        output=expanded(given.get("output") or f"{loaded.config.output_dir.rstrip('/')}-{suffix}"),
        command=shlex.join(arguments.command),
    )


@contextmanager
def interruptible(left: str) -> Iterator[None]:
    """Ends the command at Ctrl-C, with a hint to run it again for what is left, such as `runs`."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nstopped by Ctrl-C; rerun the same command to continue with the remaining {left}", file=sys.stderr)
        sys.exit(EXIT_INTERRUPT)
