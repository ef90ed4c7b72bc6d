"""The command line of every recipe: configuration in, exit code out, and no traceback for a user's mistake.

Exit codes: 0 done, 1 the run failed, 2 wrong input, 143 stopped by SIGTERM. Nothing heavy is imported before the
configuration is known to be right.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from toolkit.config import load_config
from toolkit.errors import ToolkitError
from toolkit.task import Task

EXIT_INTERRUPT = 130
OWN_ERROR_SECONDS = 3.0
"""How long a later rank waits before it prints an error that the first rank may have printed."""


def main(task_type: type[Task], argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a recipe and ends the process.

    Args:
        task_type: the recipe's task.
        argv: arguments; those of the process where None.
    """
    recipe = Path(sys.argv[0])
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.help:
        from toolkit.config.describe import help_text

        print(help_text(task_type.Options, f"recipes/{recipe.name}"))
        sys.exit(0)
    if arguments.config is None:
        parser.error(
            f"--config FILE is needed, for instance recipes/configs/{recipe.stem}/smoke.yaml (--help lists all keys)"
        )

    def work() -> None:
        loaded = load_config(task_type.Options, arguments.config, arguments.overrides, columns=task_type.columns)
        from toolkit.run import run

        run(loaded.config, task_type(loaded.config), recipe)

    guarded(work)


def guarded(work: Callable[[], None]) -> NoReturn:
    """Runs `work` and ends the process with its exit code; errors meant for people are printed without traceback.

    Ranks meet nearly every such error alike: the first prints it, and the launcher ends the others before they would.
    What is not meant for people is a bug or a lost machine, and is printed by whichever rank it happens on.
    """
    from toolkit.processes import end_process, is_first_rank

    try:
        work()
    except ToolkitError as error:
        if is_first_rank():
            print(f"\n{error}", file=sys.stderr)
        elif not error.shared:
            time.sleep(OWN_ERROR_SECONDS)
            print(f"\n[rank {os.environ['RANK']}] {error}", file=sys.stderr)
        end_process(error.exit_code)
    except KeyboardInterrupt:
        print(
            "\nstopped by Ctrl-C; a run goes on from its newest checkpoint with checkpoint.resume=auto", file=sys.stderr
        )
        end_process(EXIT_INTERRUPT)
    except BrokenPipeError:  # who read our output has closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        end_process(1)
    except Exception as error:
        print(f"\n[rank {os.environ.get('RANK', '0')}] {unexpected(error)}", file=sys.stderr)
        end_process(1)
    leave_group()
    end_process(0)


def leave_group() -> None:
    """Ends this process's part in a process group, if there is one; NCCL warns of processes that do not."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def unexpected(error: Exception) -> str:
    """Returns what to say of an error that is not one of ours."""
    text = f"{type(error).__name__}: {error}"
    if type(error).__name__ == "OutOfMemoryError":
        return (
            f"{text.splitlines()[0]}\nThe device has too little memory: lower train.per_device_train_batch_size and "
            "raise train.gradient_accumulation_steps by the same factor; the numbers stay the same."
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
"""How collectives say that another rank is gone."""
