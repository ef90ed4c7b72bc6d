"""`toolkit calibrate`: fits the decision of a finished run on labelled rows, checks it on others, and stores it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import EvalData, Predictions
from toolkit.base.console import say
from toolkit.base.errors import InputError
from toolkit.base.files import expanded, kind_of, read_json, write_json
from toolkit.base.run_folder import RunFolder
from toolkit.config.paths import files_of
from toolkit.data.readers.raw import Reading
from toolkit.data.table import apply_policy, load_table
from toolkit.deploy.export.folder import GIVE, own_splits
from toolkit.deploy.trained import TrainedRun
from toolkit.document.blocks import Page, Section, Text
from toolkit.document.render import print_blocks, save_page
from toolkit.report.facts import DECISION, digests, forget, sealed

if TYPE_CHECKING:
    import datasets

    from toolkit.api.task import Task
    from toolkit.tasks.heads.decisions import Promise

NAMES = {"precision": "--precision", "recall": "--recall", "best_f1": "--best-f1", "sets": "--sets"}
"""Options by rule."""


def require_rules(task: Task, promise: Promise) -> None:
    """Raises InputError if the task cannot be calibrated, or not with the rules of a promise."""
    known = task.decision_rules
    if not known:
        raise InputError(f"toolkit calibrate: {type(task).__name__} has no probabilities or numbers to calibrate")
    wanted = [promise.rule, "sets" if promise.sets else None]
    if wrong := [each for each in wanted if each is not None and each not in known]:
        options = ", ".join(NAMES[each] for each in known)
        raise InputError(f"{NAMES[wrong[0]]}: not for this problem type, which has {options}")


def calibrate_run(run: TrainedRun, folder: Path, file: str | None, promise: Promise) -> None:
    """Writes `decision.json` and the page `calibration` into a run's folder, and notes their checksums in `run.json`.

    The run is opened without its former decision, which stays if no threshold keeps the promise.

    Raises:
        InputError: if there are no rows, or too few, that were not trained on.
        RunError: if no threshold keeps the promise.
    """
    sets = {name: _predicted(run, rows) for name, rows in _rows(run, folder, file).items()}
    found, sections = run.task.calibrate(sets, promise)
    decision = {"format": 1, "promise": vars(promise), **found}
    page = _page(folder, decision, sections, promise)
    forget(folder, DECISION)
    write_json(RunFolder(folder).decision, decision)
    save_page(folder, "calibration", page)
    facts = read_json(RunFolder(folder).facts)
    write_json(RunFolder(folder).facts, sealed(facts | {"files": facts["files"] | digests(folder, DECISION)}))
    say(page.lead)
    for section in sections:
        print_blocks(section.blocks)
        say("")
    say(f"{RunFolder(folder).decision} is used by predict, evaluate, serve, demo and export; see calibration.html")


def _rows(run: TrainedRun, folder: Path, file: str | None) -> Mapping[str, datasets.Dataset]:
    """Returns the set to fit to and, if the run has test rows, the set to check on."""
    cfg = run.cfg
    if file is None:
        splits = own_splits(cfg, type(run.task)(cfg), folder)
        if "validation" not in splits:
            raise InputError(f"{folder}: the run has no rows that it was not trained on; {GIVE}")
        return {name: splits[name] for name in ("validation", "test") if name in splits}
    trained = [Path(each) for each in files_of(cfg.data.train_file or "")]
    given = [expanded(each) for each in files_of(file)]
    if any(kind_of(each) == kind_of(other) == "file" and each.samefile(other) for each in given for other in trained):
        raise InputError(f"--data: the run was trained on {file}; give rows that it has not seen")
    table = load_table(file, run.task, cfg.data.columns, labelled=True, reading=Reading.of(cfg.data))
    bad = apply_policy({"--data": table}, cfg.data.bad_rows, cfg.data.max_bad_rows)["--data"]
    if bad:
        say(f"{bad} unusable rows of {file} are skipped; `toolkit evaluate` lists them")
    return {Path(file).name: table.rows}


def _predicted(run: TrainedRun, rows: datasets.Dataset) -> tuple[Predictions, EvalData]:
    data = run.preprocessed(rows, labelled=True)
    return run.predictions(data), data


def _page(folder: Path, decision: Mapping[str, Any], sections: list[Section], promise: Promise) -> Page:
    lead = f"Fitted to {decision['fitted_on']}; all figures are of {decision['checked_on']}."
    told = [
        f"Promise: {promise}." if promise.rule in ("precision", "recall") else "No precision or recall is promised."
    ]
    told += [f"Temperature: {decision['temperature']:.4g}."] if "temperature" in decision else []
    return Page(f"How sure is {folder.absolute().name}?", lead, [Section("Decision", [*map(Text, told)]), *sections])
