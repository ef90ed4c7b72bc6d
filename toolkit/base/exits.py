"""How a process ends: exit codes, and messages without a traceback."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from toolkit.base.errors import ToolkitError

EXIT_INTERRUPT = 130


OWN_ERROR_SECONDS = 3.0
"""How long a rank other than the first waits before it prints an error that the first rank may have printed."""


def guarded(work: Callable[[], None]) -> NoReturn:
    """Runs a command line and ends the process with its exit code; an error message is printed last.

    A `ToolkitError` is printed without a traceback. Most of them are raised on every rank: the first rank prints its
    own, and the launcher ends the others before they print theirs. Any other exception is a bug or a lost machine; it
    is printed by the rank that raises it.
    """
    from toolkit.base.console import log_to_console, report_error
    from toolkit.base.processes import end_process, is_first_rank

    log_to_console()
    try:
        work()
    except ToolkitError as error:
        if is_first_rank():
            report_error(str(error))
        elif not error.shared:
            time.sleep(OWN_ERROR_SECONDS)
            report_error(f"[rank {os.environ['RANK']}] {error}")
        end_process(error.exit_code)
    except KeyboardInterrupt:
        report_error("stopped by Ctrl-C; run it again with checkpoint.resume=auto to resume from its newest checkpoint")
        end_process(EXIT_INTERRUPT)
    except BrokenPipeError:  # the reader has closed our output, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        end_process(1)
    except Exception as error:
        report_error(f"[rank {os.environ.get('RANK', '0')}] {unexpected(error)}")
        end_process(1)
    leave_group()
    end_process(0)


def leave_group() -> None:
    """Destroys the process group, if there is one; otherwise NCCL warns."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def unexpected(error: Exception) -> str:
    """Returns the message for an error that is not a `ToolkitError`."""
    text = f"{type(error).__name__}: {error}"
    if type(error).__name__ == "OutOfMemoryError":
        return (
            f"{text.splitlines()[0]}\nThe device has too little memory: lower train.per_device_train_batch_size and "
            "raise train.gradient_accumulation_steps by the same factor; the results stay the same."
        )
    if "parameters that were not used in producing loss" in text:
        return "Some parameters of this model get no gradient: set train.ddp_find_unused_parameters=true."
    if isinstance(error, RuntimeError) and any(sign in text for sign in LOST_PEER):
        return ENDED_ELSEWHERE
    return "".join(traceback.format_exception(error))


ENDED_ELSEWHERE = "another process of this run has ended; its own message says why."


LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "connection was closed",
    "NCCL error",
)
"""Parts of the messages of collectives when another rank has ended."""
