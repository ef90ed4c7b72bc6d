"""Runs trials in this process; `toolkit.lab.jobs` starts this module with the file that lists them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from toolkit.base.cli_errors import ENDED_ELSEWHERE, leave_group, unexpected, wait_for_ranks
from toolkit.base.console import log_to_console
from toolkit.base.errors import ToolkitError
from toolkit.base.package import import_object
from toolkit.base.processes import EXIT_LOST_PEER, die_with_parent, end_process, is_first_rank

WORK = {
    "baseline": "toolkit.lab.baseline.measure",
    "batch_find_longest": "toolkit.lab.batch_find.longest_steps",
    "batch_find_timed": "toolkit.lab.batch_find.timed_steps",
    "calibrate": "toolkit.lab.plan.measure.measure_steps",
    "certify": "toolkit.lab.certify.worker.train",
    "collectives": "toolkit.lab.collectives.measure",
    "compare": "toolkit.lab.compare.runs.measure",
    "cross_validate": "toolkit.lab.cross_validate.measure",
    "lr_find": "toolkit.lab.lr_find.measure",
    "profile": "toolkit.lab.profile.measure.measure",
    "search": "toolkit.lab.search.worker.train",
    "search_score": "toolkit.lab.search.worker.score",
}
"""The functions that a trial can call; each takes a JSON object and returns a JSON value."""


def main(file: str) -> NoReturn:
    """Runs the trials in a file and ends the process, at the first that fails.

    A result is written after every rank has finished the trial, so nothing that happens later can change it.
    """
    for trial in json.loads(Path(file).read_text(encoding="utf-8")):
        outcome = Path(trial["outcome"])
        try:
            result = import_object(WORK[trial["work"]])(trial["arguments"])
            wait_for_ranks()
        except Exception as error:
            _fail(error, outcome)
        if is_first_rank():
            _report(outcome, {"result": result})
    leave_group()
    end_process(0)


def _fail(error: Exception, outcome: Path) -> NoReturn:
    ours = isinstance(error, ToolkitError)
    text = str(error) if ours else unexpected(error)
    print(text, file=sys.stderr)
    if text == ENDED_ELSEWHERE:
        end_process(EXIT_LOST_PEER)
    _report(outcome, {"error": text if ours else f"{type(error).__name__}: {error}"})
    end_process(error.exit_code if isinstance(error, ToolkitError) else 1)


def _report(file: Path, outcome: Mapping[str, Any]) -> None:
    """Writes an outcome, unless another rank has written one."""
    with suppress(FileExistsError), file.open("x", encoding="utf-8") as output:
        json.dump(outcome, output)


if __name__ == "__main__":
    die_with_parent()
    log_to_console()
    main(sys.argv[1])
