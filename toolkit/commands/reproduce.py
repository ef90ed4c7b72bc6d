"""Repeat a run and check that the results are bit-identical: `toolkit reproduce RUN`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.console import warn
from toolkit.base.errors import InputError, RunError
from toolkit.base.run_folder import RunFolder
from toolkit.base.trust import refuse_unknown
from toolkit.commands import _options

if TYPE_CHECKING:
    from toolkit.report.runs import Record

ALONE = ("checkpoint.resume=none", "checkpoint.push_to_hub=false", "tracking.report_to=[]", "tracking.run_name=null")
"""Settings that keep the new run from changing anything outside its folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the new run's folder."""
    _options.add(parser, "run")
    _options.add(parser, "--output-dir", default_text="RUN-reproduced")
    _options.add(parser, "--recipe", default_text="that of the run")


def work(arguments: argparse.Namespace) -> None:
    """Trains again with the same settings, processes and threads.

    Raises:
        InputError: if the run is not finished, or its recipe is missing or not known to be the user's.
        RunError: if training fails, or its results are not bit-identical.
    """
    from toolkit.commands.diff import show
    from toolkit.lab.certify.trace import weight_difference
    from toolkit.report.runs import differences, read_record

    record = read_record(Path(arguments.run).absolute())
    if not record.finished:
        raise InputError(f"{arguments.run}: this run is not finished; resume it with checkpoint.resume=auto")
    recipe = Path(arguments.recipe or record.facts["recipe"]).absolute()
    if not recipe.is_file():
        raise InputError(f"{arguments.run}: its recipe {recipe} no longer exists; name it with --recipe")
    if arguments.recipe is None:
        refuse_unknown(recipe, arguments.run, "with --recipe")
    folder = Path(arguments.output_dir or f"{record.folder}-reproduced").absolute()
    if difference := _code_difference(record, recipe):
        warn(difference)
    _train(recipe, record, folder)

    again = read_record(folder)
    show(differences(record, again), str(record.folder), str(folder))
    former, new = RunFolder(record.folder), RunFolder(folder)
    files = sorted(path.name for path in former.model.glob("*.safetensors"))
    wrong = [found for name in files if (found := weight_difference(former.model, new.model, name))]
    lines = [_numbers(run.metrics) for run in (former, new)]
    if not wrong and lines[0] == lines[1]:
        print(f"\nreproduced: parameters and {len(lines[0])} lines of metrics are bit-identical ({folder})")
        return
    reason = wrong[0] if wrong else "the parameters are the same, but metrics.jsonl is not"
    raise RunError(
        f"not reproduced: {reason}. Other differences are listed above; the new run is in {folder}."
        + (f"\nA likely cause: {difference}" if difference else "")
    )


def _train(recipe: Path, record: Record, folder: Path) -> None:
    """Runs the recipe in the run's working directory, to which its paths are relative."""
    from toolkit.commands.train import TOOLKIT
    from toolkit.lab.jobs import run_processes

    working_directory = Path(record.facts.get("working_directory") or Path.cwd())
    if not working_directory.is_dir():
        gone = f"{working_directory}, where the run was started, no longer exists"
        warn(f"{gone}; relative paths are resolved in {Path.cwd()}")
        working_directory = Path.cwd()
    # The settings that the run's launcher made are in its configuration.
    run = [str(recipe), "--config", str(RunFolder(record.folder).config), f"output_dir={folder}", *ALONE]
    code = run_processes(
        ["-c", TOOLKIT, "toolkit", "train", *run, "--processes", str(record.facts["num_processes"])],
        environ={"OMP_NUM_THREADS": str(record.facts["hardware"]["threads"])},
        folder=working_directory,
    )
    if code:
        raise RunError(f"the new run ended with exit code {code}; its own message is above")


def _code_difference(record: Record, recipe: Path) -> str | None:
    """Returns how the run's code differs from the current code and how to restore it; None without a difference."""
    from toolkit.base.environment import checkout, git

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
    from toolkit.metrics.measured import MEASURED
    from toolkit.tracking.jsonl import read_metrics

    return [{k: v for k, v in line.items() if k not in MEASURED} for line in read_metrics(file)]
