"""The command line of every recipe: configuration in, exit code out, and no traceback for a user's mistake.

Exit codes: 0 done, 1 the run failed, 2 wrong input, 143 stopped by SIGTERM. Nothing heavy is imported before the
configuration is known to be right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from toolkit.api.task import Task
from toolkit.base.exits import guarded
from toolkit.recipe import load_settings


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
        loaded = load_settings(task_type, arguments.config, arguments.overrides, starts_run=True)
        from toolkit.run import run

        run(loaded.config, task_type(loaded.config), recipe)

    guarded(work)
