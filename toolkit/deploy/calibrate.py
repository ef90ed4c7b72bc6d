"""`toolkit calibrate`: fits the decision of a finished run on labelled rows, checks it on others, and stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.console import say
from toolkit.base.errors import InputError
from toolkit.base.files import expanded, kind_of, read_json, write_json
from toolkit.base.run_folder import RunFolder
from toolkit.config.paths import files_of
from toolkit.data.readers.raw import Reading
from toolkit.data.table import apply_policy, load_table
from toolkit.deploy.export.folder import GIVE, own_splits
from toolkit.deploy.trained import TrainedRun
from toolkit.document.blocks import Page, Text
from toolkit.document.render import print_blocks, save_page
from toolkit.report.facts import DECISION, digests, forget, sealed

if TYPE_CHECKING:
    import datasets

    from toolkit.api.task import Task
    from toolkit.tasks.heads.decisions import Promise


def require_rules(task: Task, promise: Promise) -> None:
    """Raises InputError if the task cannot be calibrated, or not with the rules of a promise."""
    if not (known := task.decision_rules):
        raise InputError(f"toolkit calibrate: {type(task).__name__} has no probabilities or numbers to calibrate")
    for rule in (promise.rule, "sets" if promise.sets else None):
        if rule is not None and rule not in known:
            options = ", ".join(f"--{each}" for each in known).replace("_", "-")
            raise InputError(f"--{rule.replace('_', '-')}: not for this problem type, which has {options}")


def calibrate_run(run: TrainedRun, folder: Path, file: str | None, promise: Promise) -> None:
    """Writes `decision.json` and the page `calibration` into the folder of a run that was opened without a decision.

    Raises:
        InputError: if there are no rows, or too few, that were not trained on.
        RunError: if no threshold keeps the promise; the former decision stays.
    """
    sets = {name: run.preprocessed(rows, labelled=True) for name, rows in _rows(run, folder, file).items()}
    found, sections = run.task.calibrate({name: (run.predictions(data), data) for name, data in sets.items()}, promise)
    lead = f"{promise}. Fitted to {found['fitted_on']}; all figures are of {found['checked_on']}."
    files = RunFolder(folder)
    forget(folder, DECISION)
    write_json(files.decision, {"promise": asdict(promise), **found})
    save_page(folder, "calibration", Page(f"How sure is {folder.absolute().name}?", lead, sections))
    facts = read_json(files.facts)
    write_json(files.facts, sealed(facts | {"files": facts.get("files", {}) | digests(folder, DECISION)}))
    print_blocks([Text(lead), *(block for section in sections for block in section.blocks)])
    say(f"{files.decision} is used by predict, evaluate, serve, demo and export; see calibration.html")


def _rows(run: TrainedRun, folder: Path, file: str | None) -> Mapping[str, datasets.Dataset]:
    """Returns the set to fit to and, if there are test rows, the set to check on."""
    data = run.cfg.data
    if file is None:
        splits = own_splits(run.cfg, type(run.task)(run.cfg), folder)
        if "validation" not in splits:
            raise InputError(f"{folder}: the run has no rows that it was not trained on; {GIVE}")
        return {name: splits[name] for name in ("validation", "test") if name in splits}
    trained_on = [part for each in data.files("train_file") for part in files_of(each)]
    for given, trained in ((expanded(a), Path(b)) for a in files_of(file) for b in trained_on):
        if kind_of(given) == kind_of(trained) == "file" and given.samefile(trained):
            raise InputError(f"--data: the run was trained on {file}; give rows that it has not seen")
    table = load_table(file, run.task, data.columns, labelled=True, reading=Reading.of(data))
    if bad := apply_policy({"--data": table}, data.bad_rows, data.max_bad_rows)["--data"]:
        say(f"{bad} unusable rows of {file} are skipped; `toolkit evaluate` lists them")
    return {Path(file).name: table.rows}
