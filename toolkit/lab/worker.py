"""Runs trials in this process, one of one or several; `toolkit.lab.jobs` starts it with the file that lists them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import ToolkitError
from toolkit.base.exits import ENDED_ELSEWHERE, leave_group, unexpected
from toolkit.base.importing import import_object
from toolkit.base.processes import die_with_parent, end_process, is_first_rank

if TYPE_CHECKING:
    from toolkit.api.run import FitResult, Observer, Run

WORK = {
    "bandwidth": "toolkit.lab.plan.bandwidth.measure",
    "calibrate": "toolkit.lab.plan.worker.measure",
    "certify": "toolkit.lab.certify.worker.train",
    "compare": "toolkit.lab.compare.worker.measure",
}
"""What a trial can do: functions of a JSON object that return something for JSON."""


@contextmanager
def trained(job: Mapping[str, Any], observer: Observer | None = None) -> Iterator[tuple[Run, FitResult]]:
    """Trains as a job says, and keeps the run open.

    Args:
        job: with `recipe` and `config` (files) and `overrides`.
        observer: looks on, or None.
    """
    from toolkit.engine import fit
    from toolkit.recipe import load_settings, load_task_type
    from toolkit.run import prepared_run

    task_type = load_task_type(job["recipe"])
    cfg = load_settings(task_type, job["config"], job["overrides"]).config
    with prepared_run(cfg, task_type(cfg), Path(job["recipe"]), observer) as run:
        yield run, fit(run)


def main(file: str) -> None:
    """Runs the trials of a file; the first that fails ends this process."""
    for trial in json.loads(Path(file).read_text(encoding="utf-8")):
        outcome = Path(trial["outcome"])
        try:
            result = import_object(WORK[trial["work"]])(trial["arguments"])
        except Exception as error:
            _fail(error, outcome)
        if is_first_rank():
            _report(outcome, {"result": result})
    leave_group()


def _fail(error: Exception, outcome: Path) -> None:
    ours = isinstance(error, ToolkitError)
    text = str(error) if ours else unexpected(error)
    print(text, file=sys.stderr)
    if text != ENDED_ELSEWHERE:
        _report(outcome, {"error": text if ours else f"{type(error).__name__}: {error}"})
    end_process(error.exit_code if isinstance(error, ToolkitError) else 1)


def _report(file: Path, outcome: Mapping[str, Any]) -> None:
    """Writes an outcome; of several ranks the first one counts."""
    with suppress(FileExistsError), file.open("x", encoding="utf-8") as output:
        json.dump(outcome, output)


if __name__ == "__main__":
    die_with_parent()
    main(sys.argv[1])
