"""Repeat a run and check that the results are bit-identical: `toolkit reproduce RUN`."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.console import warn
from toolkit.base.errors import InputError, RunError
from toolkit.base.files import expanded
from toolkit.base.run_folder import RunFolder
from toolkit.base.trust import is_own_run, refuse_unknown, shipped_copy
from toolkit.commands import options

if TYPE_CHECKING:
    from toolkit.report.runs import Record

ALONE = (
    *("checkpoint.resume=none", "checkpoint.push_to_hub=false", "tracking.report_to=[]", "tracking.run_name=null"),
    *("tracking.project=finetune-toolkit", "tracking.histogram_steps=null"),
    *("checkpoint.hub_model_id=null", "checkpoint.hub_private_repo=null", "checkpoint.hub_revision=null"),
)
"""Settings that keep the new run from changing anything outside its folder."""
WITHOUT_CODE = {"trainer.callbacks": "[]", "model.trust_remote_code": "false"}
"""Settings that execute code, with the values that execute none."""
MOST_PROCESSES, MOST_THREADS = 8, 1024
"""Most processes (or as many as the machine has cores), and threads of each, of a run that may be somebody else's."""
NOT_OWN = "nobody has started this run, as it is now, under this account on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the new run's folder."""
    options.add(parser, "run")
    options.add(parser, "--output-dir", default_text="RUN-reproduced")
    options.add(parser, "--recipe", default_text="that of the run")
    parser.add_argument(
        "--trust-run",
        action="store_true",
        help="allow all code that the run names, its callbacks and its model's, as if it was started on this machine "
        "under this account",
    )


def work(arguments: argparse.Namespace) -> None:
    """Trains again with the same settings, processes and threads.

    Raises:
        InputError: if the run is not finished, its model or recipe is missing, the model is damaged, or the run names
            code that may not be the user's.
        RunError: if training fails, or its results are not bit-identical.
    """
    from toolkit.commands.diff import show
    from toolkit.lab.certify.trace import weight_difference
    from toolkit.report.runs import differences, read_record

    record = read_record(expanded(arguments.run).absolute())
    if not record.finished:
        raise InputError(f"{arguments.run}: this run is not finished; resume it with checkpoint.resume=auto")
    own = arguments.trust_run or is_own_run(record.folder, record.facts)
    recipe = _recipe(arguments, record, own)
    _refuse_foreign_code(arguments.run, record, own)
    _refuse_wrong_sizes(arguments.run, record, own)
    _refuse_incomparable_model(arguments.run, record)
    folder = expanded(arguments.output_dir or f"{record.folder}-reproduced").absolute()
    if difference := _code_difference(record, recipe):
        warn(difference)
    _train(recipe, record, folder, own)

    again = read_record(folder)
    show(differences(record, again), str(record.folder), str(folder))
    former, new = RunFolder(record.folder), RunFolder(folder)
    files, others = _weight_files(former), _weight_files(new)
    wrong = [f"only one of the two runs has model/{name}" for name in sorted(files ^ others)]
    wrong += [found for name in sorted(files & others) if (found := weight_difference(former.model, new.model, name))]
    lines = [_numbers(run.metrics) for run in (former, new)]
    if not wrong and lines[0] == lines[1]:
        print(f"\nreproduced: parameters and {len(lines[0])} lines of metrics are bit-identical ({folder})")
        return
    reason = wrong[0] if wrong else "the parameters are the same, but metrics.jsonl is not"
    raise RunError(
        f"not reproduced: {reason}. Other differences are listed above; the new run is in {folder}."
        + (f"\nA likely cause: {difference}" if difference else "")
    )


def _recipe(arguments: argparse.Namespace, record: Record, own: bool) -> Path:
    """Returns the recipe to run: the one that the user names, or that of the run.

    Of a run that may be somebody else's, only a recipe of the toolkit is run, and where the toolkit has it: git would
    execute what the configuration of a checkout in a foreign folder names.
    """
    recipe = expanded(arguments.recipe or record.facts["recipe"]).absolute()
    if not recipe.is_file():
        raise InputError(f"{arguments.run}: its recipe {recipe} no longer exists; name it with --recipe")
    if arguments.recipe is not None:
        return recipe
    refuse_unknown(recipe, arguments.run, "with --recipe")
    found = recipe if own else shipped_copy(recipe)
    if found is None:
        raise InputError(f"{arguments.run}: {NOT_OWN}; name its recipe {recipe} with --recipe")
    return found


def _refuse_foreign_code(run: str, record: Record, own: bool) -> None:
    asked = [f"{key}={value}" for key in WITHOUT_CODE if (value := record.settings.get(key))]
    if asked and not own:
        raise InputError(
            f"{run}: {NOT_OWN}, and it executes code that its settings name ({', '.join(asked)}); if you trust it, add "
            "--trust-run"
        )


def _refuse_wrong_sizes(run: str, record: Record, own: bool) -> None:
    """Raises InputError if `run.json` asks for a number of processes or threads that no run or no stranger's has."""
    facts = record.facts
    for name, value, most in (
        ("num_processes", facts["num_processes"], max(MOST_PROCESSES, os.cpu_count() or 1)),
        ("hardware.threads", facts["hardware"].get("threads"), MOST_THREADS),
    ):
        if type(value) is not int or value < 1:
            raise InputError(f"{run}: run.json: {name}: received {value!r}, expected an integer above 0")
        if value > most and not own:
            raise InputError(
                f"{run}: run.json: {name}: received {value}; {NOT_OWN}, so at most {most} are allowed; if the number "
                "is right, add --trust-run"
            )


def _refuse_incomparable_model(run: str, record: Record) -> None:
    """Raises InputError if the run's parameters are missing or not as written: there would be nothing to compare."""
    from toolkit.report.facts import refuse_damaged_model

    refuse_damaged_model(record.folder)
    files = RunFolder(record.folder)
    if not _weight_files(files):
        raise InputError(
            f"{run}: {files.model} has no *.safetensors with which the new parameters could be compared; restore the "
            "model, or train again with `toolkit train` and config.yaml of the run"
        )


def _weight_files(files: RunFolder) -> set[str]:
    return {path.name for path in files.model.glob("*.safetensors")}


def _train(recipe: Path, record: Record, folder: Path, own: bool) -> None:
    """Runs the recipe in the run's working directory, to which its paths are relative.

    For a run that may be somebody else's, that is the current directory, from which no module is imported.
    """
    from toolkit.commands.train import TOOLKIT
    from toolkit.lab.jobs.jobs import run_processes

    here = Path.cwd()
    noted = Path(record.facts.get("working_directory") or here)
    why = "" if noted.is_dir() else f"{noted}, where the run was started, no longer exists"
    if why := why if own else NOT_OWN:
        warn(f"{why}; relative paths are resolved in {here}")
    environ = {"OMP_NUM_THREADS": str(record.facts["hardware"]["threads"])}
    if not own and here != Path(__file__).resolve().parents[2]:
        environ["PYTHONSAFEPATH"] = "1"  # the current directory may be where a foreign run was unpacked
    # The settings that the run's launcher made are in its configuration.
    settings = [*ALONE, *([] if own else [f"{key}={value}" for key, value in WITHOUT_CODE.items()])]
    run = [str(recipe), "--config", str(RunFolder(record.folder).config), f"output_dir={folder}", *settings]
    code = run_processes(
        ["-c", TOOLKIT, "toolkit", "train", *run, "--processes", str(record.facts["num_processes"])],
        environ=environ,
        folder=here if why else noted,
    )
    if code:
        raise RunError(f"the new run ended with exit code {code}; its own message is above")


def _code_difference(record: Record, recipe: Path) -> str | None:
    """Returns how the run's code differs from the current code and how to restore it; None without a difference."""
    from toolkit.system.environment import checkout, git

    noted, today = record.facts["git"], checkout(recipe.parent)
    if noted is None:
        return None
    if today is None:
        return f"the run's code was commit {noted['commit']}; {recipe.parent} is not in a git checkout"
    same_changes = "diff_sha256" not in noted or noted["diff_sha256"] == today.diff_sha256
    if noted["commit"] == today.commit and same_changes:
        return None
    root = git(recipe.parent, "rev-parse", "--show-toplevel").decode().strip()
    steps, changes = [["git", "-C", root, "checkout", noted["commit"]]], "without uncommitted changes"
    if noted.get("diff"):
        file = record.folder / noted["diff"]
        steps.append(["git", "-C", root, "apply", str(file)])
        changes = f"with the uncommitted changes in {file}"
    elif noted["changed_files"]:
        changes = f"with {noted['changed_files']} uncommitted files that were not saved"
    commands = " && ".join(shlex.join(step) for step in steps)
    return (
        f"the code differs; the run's was commit {noted['commit']} {changes}. To restore it, commit or stash the "
        f"current changes, then: {commands}"
    )


def _numbers(file: Path) -> list[dict[str, float]]:
    """Returns the lines of a metrics file without measured times and memory."""
    from toolkit.report.runs import MEASURED
    from toolkit.tracking.jsonl import read_metrics

    return [{k: v for k, v in line.items() if k not in MEASURED} for line in read_metrics(file)]
