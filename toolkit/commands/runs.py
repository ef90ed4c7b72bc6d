"""Commands that compare runs: runs, diff, certify, reproduce."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.console import counted, format_duration, format_value, say, shorten, warn
from toolkit.base.errors import InputError, RunError
from toolkit.base.files import expanded, write_text
from toolkit.base.outputs import output_file, output_folder
from toolkit.base.run_folder import RunFolder
from toolkit.base.trust import is_own_run, require_trusted, shipped_copy
from toolkit.commands import options
from toolkit.report.facts import require_intact_model
from toolkit.report.runs import MEASURED, Difference, Record, differences, find_records, folder_of, read_record, repeats
from toolkit.system.environment import checkout, git
from toolkit.tracking.jsonl import read_metrics

if TYPE_CHECKING:
    from toolkit.lab.board import Entry


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Adds the folder, which runs and columns to show, and the files to write."""
    parser.add_argument(
        "folder", nargs="?", default="outputs", metavar="FOLDER", help="folder that contains runs (default: outputs)"
    )
    parser.add_argument("--sort", metavar="FIGURE", help="sort by a metric, for example eval_accuracy")
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    what = "only runs that meet all of these, for example 'train.learning_rate>1e-4' finished=true (also != < <= >=)"
    parser.add_argument("--where", metavar="CONDITION", help=what, **several)
    what = "settings and results to show, for example train.optim eval_accuracy (default: in files, the settings in "
    what += "which the runs differ, and their results)"
    parser.add_argument("--columns", metavar="NAME", help=what, **several)
    what = "none; .html for a page with a sortable table and curves, .csv for the table; may be repeated"
    options.add_output(parser, what, action="append", default=[])


def run_runs(arguments: argparse.Namespace) -> None:
    """Prints a table of the runs below a folder, and the spread of runs that differ only in the seed."""
    from toolkit.lab.board import chosen, entry_of, require_known

    files = [output_file(path, arguments.overwrite) for path in arguments.output]
    if wrong := [file for file in files if file.suffix not in (".html", ".csv")]:
        raise InputError(f"--output: received {wrong[0].name!r}, expected a name that ends in .html or .csv")
    folder = expanded(arguments.folder)
    every = [entry_of(record, folder) for record in find_records(folder)]
    if not every:
        raise InputError(f"{folder}: contains no runs (tried {folder.absolute()})")
    require_known(arguments.columns, every, "--columns")
    entries = chosen(every, arguments.where)
    if not entries:
        raise InputError(f"--where: none of the {len(every)} runs in {folder} meets {' and '.join(arguments.where)}")
    if arguments.sort:
        known = {name for entry in entries for name in entry.record.part("result")}
        if arguments.sort not in known:
            raise InputError(f"--sort: received {arguments.sort!r}; these runs have {', '.join(sorted(known))}")
        results = [entry.record.part("result").get(arguments.sort) for entry in entries]
        order = sorted(range(len(entries)), key=lambda place: (results[place] is None, float(results[place] or 0.0)))
        entries = [entries[place] for place in order]
    _print(entries, arguments.columns, arguments.sort)
    for group in repeats([entry.record for entry in entries], arguments.sort):
        say(str(group))
    _write(entries, arguments.columns, files, folder)


def _write(entries: Sequence[Entry], names: Sequence[str], files: Sequence[Path], folder: Path) -> None:
    """Writes the page and the CSV file, if they are asked for, and says so."""
    from toolkit.lab import board

    shown = names or board.default_columns(entries)
    contents = {
        ".html": lambda: board.render(entries, shown, f"Runs in {folder.absolute().name}"),
        ".csv": lambda: board.as_csv(entries, shown),
    }
    for file in files:
        write_text(file, contents[file.suffix]())
        say(f"{file} has {len(entries)} runs")


def _print(entries: Sequence[Entry], columns: Sequence[str], sort: str | None) -> None:
    from toolkit.document.blocks import Table, shown
    from toolkit.document.render import print_table
    from toolkit.lab.board import cell

    own = [[shown(cell(entry.values.get(name))) for name in columns] or _row(entry.record, sort) for entry in entries]
    header = ["run", *(columns or ("recipe", "engine", "steps", "score", "time"))]
    print_table(Table(header, [[entry.name, *row] for entry, row in zip(entries, own, strict=True)]))


def _row(record: Record, sort: str | None) -> list[str]:
    facts, result = record.facts, record.part("result")
    engine = facts["engine"] + (f" x{facts['num_processes']}" if facts["num_processes"] > 1 else "")
    start = [Path(facts["recipe"]).stem, engine]
    if not record.finished:
        return [*start, "", "not finished", ""]
    best = facts.get("metric_for_best_model")
    shown = sort or (best if best in result else "train_loss")
    score = f"{shown} {format_value(result.get(shown))}"
    return [*start, f"{result['steps']:,}", score, format_duration(result["train_seconds"])]


TITLES = {
    "setting": "settings",
    "data": "data",
    "version": "versions",
    "machine": "machines",
    "result": "results (without times and memory)",
}


def add_diff(parser: argparse.ArgumentParser) -> None:
    """Adds the two runs."""
    parser.add_argument("one", metavar="RUN_A", help="output folder of a run")
    parser.add_argument("other", metavar="RUN_B", help="output folder of another run")


def run_diff(arguments: argparse.Namespace) -> None:
    """Prints the differences between two runs."""
    one, other = (read_record(expanded(folder)) for folder in (arguments.one, arguments.other))
    if not (found := differences(one, other)):
        print("no differences in settings, data, versions, machines or results")
    show(found, arguments.one, arguments.other)


def show(found: Sequence[Difference], one: str, other: str) -> None:
    """Prints one table of differences per section."""
    from toolkit.document.blocks import Table
    from toolkit.document.render import print_table

    header = ["", shorten(Path(one).name, 24), shorten(Path(other).name, 24)]
    for section, title in TITLES.items():
        rows = [
            [each.name, *(shorten(format_value(value), 40) for value in (each.one, each.other))]
            for each in found
            if each.section == section
        ]
        if rows:
            print_table(Table(header, rows, caption=title))


NAMES = ("loss-scale", "engines", "resume", "ranks", "strategy")
ROWS, LEAST_ROWS = 37, 9
"""Default number of rows: five steps of 8 rows per epoch, the last one incomplete."""


def add_certify(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, the certificates and their options."""
    options.add_recipe(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="all certificates (the default)")
    which.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=f"one or more of {', '.join(NAMES)}")
    which_rows = f"training rows to use, at least {LEAST_ROWS}, more than one window of 8"
    options.add_count(parser, "--rows", which_rows, ROWS, LEAST_ROWS)
    options.add_count(parser, "--kill-at", "resume: kill at this step (default: a random one)", metavar="STEP")
    compared = "strategy: settings of parallel to compare with one process, for instance fsdp=2 or replicas=2,tensor=2 "
    compared += "(default: those that the model allows on two processes)"
    parser.add_argument("--strategy", nargs="+", metavar="SPEC", help=compared)
    options.add_output(parser, "certificates/ and a hash of the configuration", folder=True)
    parser.add_argument("--keep", action="store_true", help="keep the runs, in DIR/runs")


def run_certify(arguments: argparse.Namespace) -> None:
    """Runs the trainings of the certificates and writes the verdicts.

    Raises the errors of `toolkit.lab.certify.certify`, and SystemExit with exit code 1 if a guarantee does not hold.
    """
    request = options.request(arguments, "certificates")
    from toolkit.lab.certify import certify

    if arguments.output is None:
        request = replace(request, output=folder_of(request.cfg))
    names, strategies = arguments.only or NAMES, arguments.strategy or ()
    report = certify(request, names, arguments.rows, arguments.kill_at, strategies, arguments.keep)
    report.publish(request.output)
    if not report.passed:
        sys.exit(1)


WITHOUT_CODE = {
    **dict.fromkeys(("callbacks", "eval.metrics", "trainer.callbacks"), "[]"),
    "model.trust_remote_code": "false",
}
"""Settings that execute code, with the values that execute none."""
MOST_PROCESSES, MOST_THREADS = 8, 1024
"""Most processes (or as many as the machine has cores), and threads of each, of a run that may be somebody else's."""
TOLERANCE = 1e-5
"""Largest difference of a parameter in float32 between numbers of processes, which add in another order."""
BETWEEN_PROCESSES = (
    "Likely causes on another number of processes: dropout, whose random numbers differ; or a parameter without effect "
    "on the loss, such as a bias before a softmax, whose gradient is only rounding, which Adam enlarges"
)
NOT_OWN = "this account has not started this run on this machine in its present form"


def add_reproduce(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the new run's folder."""
    options.add(parser, "run")
    options.add_output(parser, "RUN-reproduced", folder=True)
    options.add(parser, "--recipe", default_text="that of the run")
    options.add(
        parser, "--processes", default_text="that of the run, whose bits are compared; else float32's tolerance"
    )
    allowed = "allow all code that the run names, its callbacks and its model's, as if it was started on this machine "
    parser.add_argument("--trust-run", action="store_true", help=f"{allowed}under this account")


def run_reproduce(arguments: argparse.Namespace) -> None:
    """Trains again with the same settings and threads, and the same or another number of processes."""
    from toolkit.lab.certify.trace import weight_difference

    record = read_record(expanded(arguments.run).absolute())
    if not record.finished:
        raise InputError(f"{arguments.run}: this run is not finished; resume it with checkpoint.resume=auto")
    own = arguments.trust_run or is_own_run(record.folder, record.facts)
    recipe = _recipe(arguments, record, own)
    _reject_foreign_code(arguments.run, record, own)
    _require_sizes(arguments.run, record, own)
    _require_comparable_model(arguments.run, record)
    folder = output_folder(arguments.output or f"{record.folder}-reproduced", make=False).absolute()
    if difference := _code_difference(record, recipe):
        warn(difference)
    processes = arguments.processes or record.facts["num_processes"]
    exact = processes == record.facts["num_processes"]
    _train(recipe, record, folder, own, processes)

    again = read_record(folder)
    show(differences(record, again), str(record.folder), str(folder))
    former, new = RunFolder(record.folder), RunFolder(folder)
    files, others = _weight_files(former), _weight_files(new)
    wrong = [f"only one of the two runs has model/{name}" for name in sorted(files ^ others)]
    wrong += [
        found
        for name in sorted(files & others)
        if (found := weight_difference(former.model, new.model, name, 0.0 if exact else TOLERANCE))
    ]
    if not exact and not wrong:
        print(
            f"\nreproduced: on {counted(processes, 'process')}, parameters differ by at most {TOLERANCE:g} ({folder})"
        )
        return
    lines = [_numbers(run.metrics) for run in (former, new)]
    if not wrong and lines[0] == lines[1]:
        print(f"\nreproduced: parameters and {len(lines[0])} lines of metrics are bit-identical ({folder})")
        return
    reason = wrong[0] if wrong else "the parameters are the same, but metrics.jsonl is not"
    raise RunError(
        f"not reproduced: {reason}. Other differences are listed above; the new run is in {folder}."
        + (f"\nA likely cause: {difference}" if difference else "")
        + ("" if exact else f"\n{BETWEEN_PROCESSES}")
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
    require_trusted(recipe, arguments.run, "with --recipe")
    found = recipe if own else shipped_copy(recipe)
    if found is None:
        raise InputError(f"{arguments.run}: {NOT_OWN}; name its recipe {recipe} with --recipe")
    return found


def _reject_foreign_code(run: str, record: Record, own: bool) -> None:
    asked = [f"{key}={value}" for key in WITHOUT_CODE if (value := record.settings.get(key))]
    if asked and not own:
        raise InputError(
            f"{run}: {NOT_OWN}, and it executes code that its settings name ({', '.join(asked)}); if you trust it, add "
            "--trust-run"
        )


def _require_sizes(run: str, record: Record, own: bool) -> None:
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


def _require_comparable_model(run: str, record: Record) -> None:
    """Raises InputError if the run's parameters are missing or not as written: there would be nothing to compare."""
    require_intact_model(record.folder)
    files = RunFolder(record.folder)
    if not _weight_files(files):
        raise InputError(
            f"{run}: {files.model} has no *.safetensors with which the new parameters could be compared; restore the "
            "model, or train again with `toolkit train` and config.yaml of the run"
        )


def _weight_files(files: RunFolder) -> set[str]:
    return {path.name for path in files.model.glob("*.safetensors")}


def _train(recipe: Path, record: Record, folder: Path, own: bool, processes: int) -> None:
    """Runs the recipe in the run's working directory, to which its paths are relative.

    For a run that may be somebody else's, that is the current directory, from which no module is imported.
    """
    from toolkit.commands.options import TOOLKIT
    from toolkit.config.keys import written
    from toolkit.lab.jobs.jobs import run_processes
    from toolkit.lab.jobs.training import QUIET

    here = Path.cwd()
    noted = Path(record.facts.get("working_directory") or here)
    why = "" if noted.is_dir() else f"{noted}, where the run was started, no longer exists"
    if why := why if own else NOT_OWN:
        warn(f"{why}; relative paths are resolved in {here}")
    environ = {"OMP_NUM_THREADS": str(record.facts["hardware"]["threads"])}
    if not own and here != Path(__file__).resolve().parents[2]:
        environ["PYTHONSAFEPATH"] = "1"  # the current directory may be where a foreign run was unpacked
    # The settings that the run's launcher made are in its configuration.
    window = {"train.global_batch_size": record.facts.get("rows_per_step"), "train.gradient_accumulation_steps": None}
    settings = [*written(QUIET), *([] if own else [f"{key}={value}" for key, value in WITHOUT_CODE.items()])]
    settings += [] if processes == record.facts["num_processes"] else written(window)
    run = [str(recipe), "--config", str(RunFolder(record.folder).config), f"output_dir={folder}", *settings]
    code = run_processes(
        ["-c", TOOLKIT, "toolkit", "train", *run, "--processes", str(processes)],
        environ=environ,
        folder=here if why else noted,
    )
    if code:
        raise RunError(f"the new run ended with exit code {code}; its own message is above")


def _code_difference(record: Record, recipe: Path) -> str | None:
    """Returns how the run's code differs from the current code and how to restore it; None without a difference."""
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
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in read_metrics(file)]
