"""The errors that users see, and their exit codes.

A message is self-contained: what was received, where (file and dotted key, or file and row) and what to do.
`toolkit.main` prints it without a traceback; any other exception is a bug of the toolkit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from toolkit.base.files import kind_of


class ToolkitError(Exception):
    """Base class of the errors that users see; `exit_code` is the exit code of the process."""

    exit_code = 1
    shared = False
    """Whether every rank raised this error, so that only the first rank prints it."""
    told = False
    """Whether all of it has been printed before it was raised."""


class InputError(ToolkitError):
    """Wrong input (configuration, data, paths): exit code 2."""

    exit_code = 2


class ConfigError(InputError):
    """One or more settings are wrong.

    Args:
        problems: all problems, one self-contained message each.
        unchecked: what could not be checked and why, one phrase each.
    """

    def __init__(self, problems: list[str], unchecked: list[str] | None = None) -> None:
        self.problems, self.unchecked = problems, unchecked or []
        lines = [f"{count_wrong(len(problems))}:", *(f"  - {problem}" for problem in problems)]
        super().__init__("\n".join(lines + [f"  not checked: {each}" for each in self.unchecked]))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[str], list[str]]]:
        # Errors of the main process are sent to the other ranks. By default, pickle would rebuild one from its message.
        return ConfigError, (self.problems, self.unchecked)


def count_wrong(number: int) -> str:
    """Returns how many settings are wrong, as the beginning of a message."""
    return "1 setting is wrong" if number == 1 else f"{number} settings are wrong"


def problems_of(build: Callable[[], object]) -> list[str]:
    """Calls a function and returns the messages of the InputError that it raises, if any."""
    try:
        build()
    except ConfigError as error:
        return error.problems
    except InputError as error:
        return [str(error)]
    return []


class DataError(InputError):
    """A data file or some of its rows cannot be used."""


class CheckpointError(InputError):
    """A checkpoint or output folder cannot be used as asked."""


class RunError(ToolkitError):
    """The run itself failed, for instance through a non-finite update: exit code 1."""


class Interrupted(ToolkitError):  # noqa: N818 - nothing went wrong
    """A stop signal arrived, and the run saved and stopped: exit code 143 after SIGTERM, 130 after Ctrl-C.

    Args:
        what: the signal, and where the run stopped.
        resume: how it can be resumed; empty if it cannot.
        number: the signal.
    """

    shared = True

    def __init__(self, what: str, resume: str, number: int) -> None:
        super().__init__(f"{what} {resume}".rstrip())
        self.what, self.resume, self.number = what, resume, number
        self.exit_code = 128 + number

    def __reduce__(self) -> tuple[type[Interrupted], tuple[str, str, int]]:
        return Interrupted, (self.what, self.resume, self.number)


def pretrained_error(key: str, name: str, error: Exception) -> InputError:
    """Returns the error for a model or processor, a hub id or folder of the setting `key`, that cannot be loaded."""
    # Whole, because libraries say what to do at the end.
    ours = "model.trust_remote_code=true (for a finished run: --trust-remote-code)"
    reason = " ".join(str(error).split()).replace("`trust_remote_code=True`", ours)
    if kind_of(Path(name) / "config.json") == "file":
        return InputError(
            f"{key}: cannot load the model in the folder {name!r} (tried {Path(name).absolute()}).\n"
            f"  Reason: {type(error).__name__}: {reason}"
        )
    return InputError(
        f"{key}: cannot load {name!r}.\n"
        f"  It is not a usable local folder (tried {Path(name).absolute()}) and could not be downloaded from the Hub.\n"
        f"  Reason: {type(error).__name__}: {reason}\n"
        "  Give a local folder, or check the name and the network (with HF_HUB_OFFLINE=1 only cached models load).\n"
        "  `toolkit init FILE --from-scratch` writes a YAML that downloads nothing."
    )
