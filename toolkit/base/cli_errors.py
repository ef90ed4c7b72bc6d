"""How a process ends: exit codes, and messages without a traceback."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from toolkit.base.errors import InputError, Interrupted, ToolkitError

EXIT_INTERRUPT = 130
RESUME = "checkpoint.resume"
COLUMNS = 80


OWN_ERROR_SECONDS = 3.0
"""How long a rank other than the first waits before it prints an error that the first rank may have printed."""


def guarded(work: Callable[[], None]) -> NoReturn:
    """Runs a command line and ends the process with its exit code; an error message is printed last.

    A `ToolkitError` is printed without a traceback. Most of them are raised on every rank: the first rank prints its
    own, and the launcher ends the others before they print theirs. Any other exception is a bug or a lost machine; it
    is printed by the rank that raises it.
    """
    from toolkit.base.console import log_to_console, report_error
    from toolkit.base.processes import EXIT_LOST_PEER, OWN_LAUNCHER, end_process, is_first_rank, outlive_output

    outlive_output()
    log_to_console()
    _end_at_second_interrupt()
    try:
        _require_working_folder()
        work()
    except ToolkitError as error:
        if is_first_rank():
            if not error.told:
                report_error(str(error))
        elif not error.shared:
            time.sleep(OWN_ERROR_SECONDS)
            report_error(f"[rank {os.environ['RANK']}] {error}")
        end_process(error.exit_code)
    except KeyboardInterrupt:
        report_error("Stopped by Ctrl-C.")
        end_process(EXIT_INTERRUPT)
    except BrokenPipeError:  # the reader has closed our output, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        end_process(1)
    except Exception as error:
        text = unexpected(error)
        if text == ENDED_ELSEWHERE and OWN_LAUNCHER in os.environ:  # which prints the message of the other process
            end_process(EXIT_LOST_PEER)
        report_error(f"[rank {os.environ.get('RANK', '0')}] {text}")
        end_process(1)
    leave_group()
    end_process(0)


def _require_working_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise InputError("the working directory has been removed: change to another one (cd)") from error


def _end_at_second_interrupt() -> None:
    """Makes the first Ctrl-C raise KeyboardInterrupt as usual, and a second one end the process without more words."""
    from toolkit.base.processes import ECHO_SECONDS

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, as by `nohup` or a shell's `&`
        return
    first: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if not first:
            first.append(time.monotonic())
            raise KeyboardInterrupt
        if time.monotonic() - first[0] > ECHO_SECONDS:
            os._exit(EXIT_INTERRUPT)

    signal.signal(signal.SIGINT, handle)


@contextmanager
def resumable(command: Sequence[str]) -> Iterator[None]:
    """Makes a stopped run print the full command that resumes it; `command` is the one that was started.

    Raises Interrupted if the run is stopped, also by Ctrl-C before its first step.
    """
    from toolkit.base.processes import has_own_command

    how = "Resume with:" if has_own_command() else "Resume with the same launcher and:"
    resume = "\n".join([how, *command_lines([*without_resume(command), f"{RESUME}=auto"])])
    try:
        yield
    except Interrupted as stopped:
        raise Interrupted(stopped.what, resume if stopped.resume else "", stopped.number) from None
    except KeyboardInterrupt:
        raise Interrupted("Stopped by Ctrl-C.", resume, signal.SIGINT) from None


def without_resume(command: Sequence[str]) -> list[str]:
    """Returns a command without its setting of `checkpoint.resume`."""
    return [word for word in command if word.partition("=")[0] != RESUME]


def command_lines(command: Sequence[str]) -> list[str]:
    """Returns a command for a shell, in lines of at most 80 columns that are broken only between its words."""
    lines = [""]
    for word in map(shlex.quote, command):
        if lines[-1] and len(f"    {lines[-1]} {word} \\") > COLUMNS:
            lines[-1] += " \\"
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return [f"{'  ' if number == 0 else '    '}{line}" for number, line in enumerate(lines)]


def wait_for_ranks() -> bool:
    """Waits until every rank has called this; returns whether there is a process group.

    Raises RuntimeError if another rank has ended.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    # Not `barrier`, which has to be told the device.
    torch.distributed.all_gather_object([None] * torch.distributed.get_world_size(), None)
    return True


def leave_group() -> None:
    """Destroys the process group, if there is one, once no rank needs another any more.

    The first rank hosts the store through which ranks find each other, and each rank has connections to the others: one
    that leaves early fails those that still wait in a collective, and NCCL's watchdog, which reads the store, would
    report it. Afterwards, each rank may end at any time: all messages are delivered.
    """
    with suppress(RuntimeError):  # another rank has failed, and has reported it
        if not wait_for_ranks():
            return
    sys.modules["torch"].distributed.destroy_process_group()


def unexpected(error: BaseException) -> str:
    """Returns the message for an error that is not a `ToolkitError`."""
    from toolkit.base.files import disk_problem, is_full

    text = f"{type(error).__name__}: {error}"
    if type(error).__name__ == "OutOfMemoryError":
        return (
            f"{text.splitlines()[0]}\nThe device has too little memory: lower train.per_device_train_batch_size "
            "(without train.global_batch_size, raise train.gradient_accumulation_steps by the same factor), or lower "
            "train.max_tokens_per_batch; the results stay the same."
        )
    for sign, message in KNOWN.items():
        if sign in text and not is_full(error):
            return f"{text.splitlines()[0]}\n{message}"
    if isinstance(error, MemoryError) or any(sign in f"{text}\n" for sign in NO_MEMORY):
        return (
            f"{text.splitlines()[0]}\nThe machine, or a limit (`ulimit -a`, a container, the scheduler), gives this "
            "process too little memory or too few threads: lower train.per_device_train_batch_size and "
            "train.dataloader_num_workers, or raise the limit."
        )
    if "parameters that were not used in producing loss" in text:
        return "Some parameters of this model get no gradient: set train.ddp_find_unused_parameters=true."
    if isinstance(error, RuntimeError) and any(sign in text for sign in LOST_PEER):
        return ENDED_ELSEWHERE
    return disk_problem(error) or "".join(traceback.format_exception(error))


ENDED_ELSEWHERE = "another process of this run has ended; its own message, or the launcher's, says why."


EXPIRED = "Timed out waiting"
"""Part of the message of a collective of gloo in which a rank has waited for too long."""


KNOWN = {
    "DataLoader worker": (
        "A worker that loads batches has died, or was killed: mostly by the system, which was out of memory or shared "
        "memory (/dev/shm). Lower train.dataloader_num_workers, or set it to 0."
    ),
    "subprocesses has abruptly died": (
        "A worker that prepares rows has died, or was killed: mostly by the system, which was out of memory. Lower "
        "data.preprocessing_num_workers, or set it to 1."
    ),
    EXPIRED: (
        "Another rank has not come to a collective in time. If it may compute for longer than this, raise "
        "train.ddp_timeout; if it is stopped or hangs, its stack says where (`py-spy dump`)."
    ),
    **dict.fromkeys(
        ("client socket has timed out", "waiting for clients", "wait timeout after", "timed out connecting"),
        "A rank did not come to the meeting of all ranks at the start of the run: look for one that is stopped, has "
        "ended, or cannot reach MASTER_ADDR and MASTER_PORT of the first rank.",
    ),
    "Too many open files": (
        "The limit of open files is too low for this run's ranks and workers: raise it (`ulimit -n 4096`), or lower "
        "train.dataloader_num_workers."
    ),
    "EADDRINUSE": (
        "The port where the ranks of this run meet is in use, by another job or program on this machine: set "
        "MASTER_PORT to another, the same for all ranks."
    ),
    "No module named": (
        "A library is not installed. Install the toolkit with the libraries that it needs: pip install "
        "finetune-toolkit, or in its repository `make setup` or pip install ."
    ),
    "without overflow": "A number became too large for float32: lower train.learning_rate.",
    "index out of range in self": (
        "A token id is beyond the model's embeddings: the tokenizer and the model in model.name_or_path do not belong "
        "together."
    ),
}
"""What to do after an error of a library, by a part of its message."""


NO_MEMORY = (
    *("can't start new thread", "Resource temporarily unavailable"),
    *("Cannot allocate memory", "can't allocate memory", "not enough memory", "std::bad_alloc"),
    "could not create a primitive\n",  # oneDNN; where it has no such operation, it says "primitive descriptor"
)
"""Parts of the messages of libraries when the system gives no more memory or threads."""


LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "connection was closed",
    "Connection was likely closed",
    "NCCL error",
)
"""Parts of the messages of collectives when another rank has ended."""
