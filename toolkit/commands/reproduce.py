"""Run a run again from what it noted, and say whether it ends with the same bits: `toolkit reproduce RUN`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from toolkit.base.errors import InputError, RunError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, and where the new one goes."""
    parser.add_argument("run", metavar="RUN", help="output folder of a finished run")
    parser.add_argument("--output-dir", metavar="DIR", help="output folder of the new run (RUN-reproduced)")
    parser.add_argument("--recipe", metavar="FILE", help="the recipe, if it was moved since the run")


def work(arguments: argparse.Namespace) -> None:
    """Trains anew with the same settings, processes and threads; ends with exit code 1 if other bits came out."""
    from toolkit.commands.diff import show
    from toolkit.lab.certify.trace import weight_difference
    from toolkit.report.runs import differences, read_record

    record = read_record(Path(arguments.run))
    if not record.finished:
        raise InputError(f"{arguments.run}: this run is not finished; go on with it with checkpoint.resume=auto")
    recipe = Path(arguments.recipe or record.facts["recipe"])
    if not recipe.is_file():
        raise InputError(f"{arguments.run}: its recipe {recipe} is not there any more; name it with --recipe")
    folder = Path(arguments.output_dir or f"{str(arguments.run).rstrip('/')}-reproduced")
    _train(recipe, record.folder, folder, record.facts["num_processes"], record.facts["hardware"]["threads"])

    again = read_record(folder)
    show(differences(record, again), str(record.folder), str(folder))
    files = sorted(path.name for path in (record.folder / "model").glob("*.safetensors"))
    wrong = [found for name in files if (found := weight_difference(record.folder / "model", folder / "model", name))]
    lines = [_numbers(run / "metrics.jsonl") for run in (record.folder, folder)]
    if not wrong and lines[0] == lines[1]:
        print(f"\nreproduced: parameters and {len(lines[0])} lines of numbers are the same to the last bit ({folder})")
        return
    reason = wrong[0] if wrong else "the parameters are the same, but metrics.jsonl is not"
    raise RunError(f"not reproduced: {reason}. What differs besides is listed above; the new run is in {folder}.")


def _train(recipe: Path, run: Path, folder: Path, processes: int, threads: int) -> None:
    """Runs the recipe in processes of its own."""
    script = [str(recipe), "--config", str(run / "config.yaml"), f"output_dir={folder}", "checkpoint.resume=none",
              "checkpoint.push_to_hub=false", "tracking.report_to=[]", "tracking.run_name=null"]  # fmt: skip
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    # What the run was given by its launcher stands in its configuration by now.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    environ["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, *(several if processes > 1 else []), *script]
    if code := subprocess.run(command, env=environ, check=False).returncode:
        raise RunError(f"the new run ended with exit code {code}; its own message stands above")


def _numbers(file: Path) -> list[dict[str, float]]:
    """The lines of a run without what was measured by a clock or in memory."""
    from toolkit.metrics.measured import MEASURED
    from toolkit.tracking.jsonl import read_metrics

    return [{k: v for k, v in line.items() if k not in MEASURED} for line in read_metrics(file)]
