"""Commands about a run's settings: train, validate, explain, schema, slurm.

Without a configuration: `toolkit train reviews --data reviews.csv --text-column "Review Text" --label-column Rating
--model distilbert/distilbert-base-uncased --output outputs/first`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from toolkit.api.mesh import Mesh
from toolkit.api.task import Task
from toolkit.base.errors import DataError, InputError, problems_of
from toolkit.base.files import written_whole
from toolkit.base.outputs import output_file
from toolkit.base.package import shipped_root, shortest
from toolkit.checks.check import Told
from toolkit.commands import options
from toolkit.config.describe import explain_text, help_text, schema
from toolkit.config.sections import Config
from toolkit.lab.slurm import Job, cores_of, lead_of, option_problems, script, seconds_of
from toolkit.recipe import config_file, load_settings, load_task_type, recipe_file, validate
from toolkit.system.launcher import slurm_rank

SETTINGS = {
    "data": ("--data FILE", "data.train_file", ("data.train_file", "data.dataset_name")),
    "model": ("--model MODEL", "model.name_or_path", ("model.name_or_path", "model.from_config")),
    "output": ("--output DIR", "output_dir", ("output_dir",)),
}
"""Options that are settings: their spelling, the setting, and the settings that can be given instead. Without a
configuration they are all needed."""


def add_train(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML, the number of processes, and the settings that have options."""
    options.add_recipe(parser, required=False)
    options.add(parser, "--processes", default_text="1, or as started by torchrun, srun or accelerate launch")
    options.add(parser, "--data")
    options.add(parser, "--model")
    options.add_output(parser, "as in the YAML", folder=True)
    parser.add_argument(
        "--NAME-column", metavar="COLUMN", help="your name of the task's column NAME, for example --text-column body"
    )


def rewrite_train(words: Sequence[str]) -> Iterator[str]:
    """Yields the words of the command line, with `--NAME-column COLUMN` as `data.columns.NAME=COLUMN`."""
    left = iter(words)
    for word in left:
        option, equals, value = word.partition("=")
        name = re.fullmatch(r"--([\w-]+)-column", option)
        if name is None:
            yield word
        else:
            yield f"data.columns.{name[1].replace('-', '_')}={value if equals else next(left, '')}"


def run_train(arguments: argparse.Namespace) -> None:
    """Trains in this process, or starts the ranks.

    Raises:
        ConfigError: if a setting is invalid.
        InputError: if there is no such recipe, or arguments are missing or contradict the launcher.
        ToolkitError: if the run cannot start, fails or is stopped.
        SystemExit: with the exit code of the ranks.
    """
    os.environ.update(slurm_rank())
    overrides = settings(arguments)
    options.start_processes(arguments)

    from toolkit.main import run_recipe

    recipe = recipe_file(arguments.recipe)
    config: Path | dict[str, Any] = config_file(recipe, arguments.config) if arguments.config else {}
    run_recipe(load_task_type(recipe), recipe, config, overrides, arguments.command)


def settings(arguments: argparse.Namespace) -> list[str]:
    """Returns the options and overrides as overrides; without a YAML, raises InputError if any is missing."""
    given = {name: getattr(arguments, name) for name in SETTINGS if getattr(arguments, name) is not None}
    missing = [
        option
        for name, (option, _, keys) in SETTINGS.items()
        if name not in given and not any(each.startswith(keys) for each in arguments.overrides)
    ]
    if missing and arguments.config is None:
        raise InputError(
            f"without --config, these are needed too: {', '.join(missing)}\n"
            f"  `toolkit explain {arguments.recipe}` lists all settings; `--config smoke` trains on sample data."
        )
    return [*(f"{SETTINGS[name][1]}={value}" for name, value in given.items()), *arguments.overrides]


def add_validate(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, its YAML, `--settings-only` and `--elsewhere`."""
    options.add_recipe(parser)
    about = "do not read the data files, except their first rows"
    parser.add_argument("--settings-only", action="store_true", help=about)
    about = "the run will be on another machine: skip checks of this one (files, cache, GPUs, libraries)"
    parser.add_argument("--elsewhere", action="store_true", help=about)


def run_validate(arguments: argparse.Namespace) -> None:
    """Runs every check that a run performs before it loads weights, and lists what could not be checked."""
    options.find(arguments)
    task_type = load_task_type(arguments.recipe)
    all_rows = not (arguments.settings_only or arguments.elsewhere)
    given, told = (task_type, arguments.config, arguments.overrides, arguments.elsewhere), Told()
    findings = validate(*given, first_rows=not all_rows, told=told)
    findings.raise_problems(told)
    print(f"{arguments.config}: all settings are valid")
    for what in findings.unchecked:
        print(f"  not checked: {what}")
    if arguments.settings_only:
        print("  not checked: all rows of the data; a run checks them when it starts")
    if all_rows:
        cfg = load_settings(task_type, arguments.config, arguments.overrides).config
        _check_rows(cfg, task_type(cfg))


def _check_rows(cfg: Config, task: Task) -> None:
    """Reads and checks all rows, and reports their numbers and warnings."""
    import datasets

    from toolkit.base.console import quiet_libraries, say
    from toolkit.data.loading import check_rows
    from toolkit.data.staging import stage_problem
    from toolkit.prepare.inputs import omissions_of

    if cfg.data.dataset_name is not None and not datasets.config.HF_HUB_OFFLINE:
        return  # nothing is downloaded here, as the checks have reported
    with quiet_libraries():
        if cfg.data.stage_to is not None and (problem := stage_problem(cfg.data, task)):
            raise DataError(problem)
        rows = check_rows(cfg, task)
    counts = ", ".join(f"{len(part):,} {name}" for name, part in rows.splits.items())
    say(f"the rows were read: {counts}")
    rows.findings.tell()
    try:
        with quiet_libraries():
            left = omissions_of(cfg, task, rows)[len(rows.findings.omissions) :]
    except DataError:
        raise
    except InputError as error:
        say(f"not counted: what is truncated, because the model's processor cannot be loaded: {error}")
        left = []
    for each in left:
        say(f"{each}.")


def add_explain(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and its YAML, both optional."""
    options.add_recipe(parser, required=False)


def run_explain(arguments: argparse.Namespace) -> None:
    """Prints every setting with its value and source: default, file, override or launcher.

    Without a configuration, it prints every setting with its type, default and meaning.
    """
    if arguments.config is None:
        print(help_text(load_task_type(arguments.recipe).Options, arguments.recipe))
        return
    _, loaded = options.load(arguments)
    print(explain_text(loaded))


def add_schema(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe."""
    options.add(parser, "recipe")


def run_schema(arguments: argparse.Namespace) -> None:
    """Prints the JSON Schema of the recipe's YAML."""
    print(json.dumps(schema(load_task_type(arguments.recipe).Options), indent=2))


LAUNCHERS = ("srun", "torchrun", "accelerate")
SBATCH = {
    "partition": "queue", "account": "account", "qos": "quality of service", "constraint": "features of machines",
    "reservation": "reservation", "mem": "memory of each machine, for example 120G",
    "gres": "resources of each machine, for example gpu:4, in place of --gpus-per-node",
}  # fmt: skip
"""Options of `sbatch` that are passed on, and their meaning."""
SHORTEST_LEAD, LONGEST_LEAD = 30, 0.5
"""Least seconds between the signal and the time limit, and the largest part of the limit that they may be."""


def add_slurm(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, the machines, the time, and what to start on them."""
    options.add_recipe(parser)
    options.add_count(parser, "--nodes", "machines", 1)
    about = "GPUs of each machine, with one process each; 0 trains on the CPU"
    options.add_count(parser, "--gpus", about, 1, least=0)
    options.add(parser, "--time", required=True)
    options.add_output(parser, required=True)
    about = "what starts the processes (default: srun)"
    parser.add_argument("--launcher", choices=LAUNCHERS, default="srun", help=about)
    kind = parser.add_mutually_exclusive_group()
    about = "run `toolkit compare` with these options instead, for example '--preset memory --seeds 3'"
    kind.add_argument("--compare", metavar="OPTIONS", help=about)
    about = "run `toolkit search` with these options instead, for example '--space space.yaml --trials 40'"
    kind.add_argument("--search", metavar="OPTIONS", help=about)
    about = "tasks of an array: one for each seed, or all sharing a comparison or a search"
    options.add_count(parser, "--array", about)
    options.add_count(parser, "--cpus", "cores of each process (default: what the settings need)")
    about = "seconds between the signal and the time limit, for a step, an evaluation and a checkpoint"
    about += " (default: 5%% of the time limit, from 180 to 900)"
    options.add_count(parser, "--lead", about, least=SHORTEST_LEAD)
    about = "shell command that makes `toolkit` available (default: activates the virtual environment in use)"
    parser.add_argument("--activate", metavar="COMMAND", help=about)
    parser.add_argument("--interface", metavar="NAME", help="network interface between the machines, for example ib0")
    about = (
        "suffix of the first machine's name at which processes meet, for example i or -ib0, or a shell command with "
    )
    about += "spaces that prints the address; it may use $MASTER_ADDR, the name"
    parser.add_argument("--master-address", metavar="SUFFIX", help=about)
    parser.add_argument("--cpu-bind", metavar="VALUE", help="binding of processes to cores, as for srun")
    parser.add_argument("--online", action="store_true", help="the machines can reach the Hub")
    parser.add_argument("--preflight", action="store_true", help="check each machine before training")
    parser.add_argument("--job-name", metavar="NAME", help="name of the job (default: that of the recipe)")
    for name, about in SBATCH.items():
        parser.add_argument(f"--{name}", metavar="VALUE", help=f"{about}, as for sbatch")
    about = "further option of sbatch, for example hint=nomultithread; may be repeated"
    parser.add_argument("--sbatch", action="append", default=[], metavar="LINE", help=about)


def rewrite_slurm(words: Sequence[str]) -> Iterator[str]:
    """Joins values that begin with a dash to their option, so that they are not taken for options."""
    given = iter(words)
    for word in given:
        value = next(given, None) if word in ("--sbatch", "--master-address") else None
        yield word if value is None else f"{word}={value}"


def run_slurm(arguments: argparse.Namespace) -> None:
    """Writes the job script, after checking the settings as far as is possible on another machine."""
    output = output_file(arguments.output, arguments.overwrite)
    text = script(_job(arguments))
    with written_whole(output) as file:
        file.write(text)
    print(f"written to {output}; submit it with: sbatch {shlex.quote(str(output))}")


def _job(arguments: argparse.Namespace) -> Job:
    recipe, config = arguments.recipe, arguments.config
    options.find(arguments)
    task_type = load_task_type(arguments.recipe)
    validate(task_type, arguments.config, arguments.overrides, elsewhere=True).raise_problems()
    cfg = load_settings(task_type, arguments.config, arguments.overrides, environ={}, check_files=False).config
    per_node, seconds, lead = _checked(arguments)
    kind, words = _words(arguments, recipe, config, per_node)
    train = kind == "train"
    if train:
        Mesh.of(cfg.parallel, arguments.nodes * per_node)  # raises an error if the sizes do not fit
    given = {name: getattr(arguments, name) for name in SBATCH}
    return Job(
        command=arguments.command, work=kind, words=words,
        name=arguments.job_name or Path(arguments.recipe).stem + ("" if train else f"-{kind}"),
        nodes=arguments.nodes, gpus=arguments.gpus, seconds=seconds, lead=lead, launcher=arguments.launcher,
        cpus=arguments.cpus or cores_of(cfg, task_type(cfg), per_node),
        multi_node=str(shortest(shipped_root() / "accelerate_configs/multi_node.yaml")),
        activate=_activation() if arguments.activate is None else arguments.activate,
        output_dir=cfg.output_dir.rstrip("/"), array=arguments.array,
        seed=cfg.seed if arguments.array and train else None,
        interface=arguments.interface, offline=not arguments.online, trackers=cfg.tracking.report_to,
        options=[*(f"{name}={value}" for name, value in given.items() if value is not None),
                 *(line.strip().lstrip("-") for line in arguments.sbatch)],
        master_address=arguments.master_address, cpu_bind=arguments.cpu_bind,
        preflight=arguments.preflight, staged=cfg.data.stage_to is not None,
    )  # fmt: skip


def _checked(arguments: argparse.Namespace) -> tuple[int, int, int]:
    """Returns the processes on each machine, the time limit and the lead in seconds; raises all problems at once."""
    problems = problems_of(lambda: seconds_of(arguments.time))
    seconds = 0 if problems else seconds_of(arguments.time)
    lead = arguments.lead or lead_of(seconds)
    if seconds and lead > LONGEST_LEAD * seconds:
        problems.append(
            f"--lead: the signal would come {lead} s before the end of {seconds} s; give a longer --time, or a shorter "
            "--lead in which a checkpoint can be written"
        )
    name = "compare" if arguments.compare is not None else "search" if arguments.search is not None else None
    if name and arguments.nodes > 1:
        problems.append(f"--nodes: {name} trains on one machine; share the work with --array {arguments.nodes}")
    if name and arguments.launcher != "srun":
        problems.append(f"--launcher: has no effect with --{name}, which starts its trainings itself")
    if name and arguments.preflight:
        problems.append(f"--preflight: checks a training; remove it, or --{name}")
    if name and arguments.interface:
        problems.append(f"--interface: has no effect with --{name}, which trains on one machine")
    if name is None and any(each.startswith("checkpoint.resume=") for each in arguments.overrides):
        problems.append("checkpoint.resume: is set by the job script, to auto; remove it")
    if name is None and arguments.array and any(each.startswith("seed=") for each in arguments.overrides):
        problems.append("--array: gives each task a seed, from that of the settings; set seed in the YAML")
    if arguments.launcher == "accelerate" and arguments.gpus == 0:
        problems.append("--launcher: accelerate starts one process for each GPU; use srun or torchrun with --gpus 0")
    problems += option_problems(arguments.gres, arguments.gpus, arguments.sbatch)
    address = arguments.master_address
    if name and address:
        problems.append(f"--master-address: has no effect with --{name}, which trains on one machine")
    if address and not any(map(str.isspace, address)) and not re.fullmatch(r"[A-Za-z0-9.-]+", address):
        problems.append(
            f"--master-address: received {address}, must be a suffix such as -ib0, or a command with spaces"
        )
    if problems:
        raise InputError("\n".join(problems))
    return max(1, arguments.gpus), seconds, lead


def _words(arguments: argparse.Namespace, recipe: str, config: str, per_node: int) -> tuple[Any, list[str]]:
    """Returns the command to run, and its arguments, parsed by the command itself."""
    if arguments.compare is None and arguments.search is None:
        return "train", [recipe, "--config", config, *arguments.overrides]
    from toolkit.commands.compare import add_compare, add_search

    name = "search" if arguments.compare is None else "compare"
    parser = argparse.ArgumentParser(prog=f"--{name}: toolkit {name}", allow_abbrev=False)
    (add_search if name == "search" else add_compare)(parser)
    given = options.with_current_names(name, shlex.split(getattr(arguments, name)), parser)
    own = {"compare": ("--part", "--processes"), "search": ("--time", "--processes")}[name]
    if wrong := [each for each in given if each.partition("=")[0] in own]:
        raise InputError(f"--{name}: {', '.join(wrong)} is set by the job script; remove it")
    words = [recipe, "--config", config, *given, *arguments.overrides, "--processes", str(per_node)]
    parser.parse_intermixed_args(words)
    return name, words


def _activation() -> str:
    """Returns the command that activates the virtual environment of this process, if it is in one."""
    if sys.prefix == sys.base_prefix:
        return ""
    folder = Path(sys.prefix)
    folder = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    return f"source {shlex.quote(os.fspath(folder / 'bin/activate'))}"
