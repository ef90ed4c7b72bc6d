"""The job script for Slurm, run with stand-ins for Slurm's commands."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
from pathlib import Path

import pytest
from launching import ROOT

from toolkit.commands import train

SCRIPT = ROOT / "slurm/train.sbatch"
SCONTROL = 'if [ "$1" = show ]; then printf "node-7\\nnode-8\\n"; else echo "scontrol $*"; fi'


def start(folder: Path, run: str, **environ: str) -> subprocess.Popen:
    """Starts the script in a folder with an environment; `run` is what srun does, in bash."""
    programs = folder / "bin"
    programs.mkdir()
    srun = f'echo "$MASTER_ADDR:$MASTER_PORT $OMP_NUM_THREADS srun $*"\n{run}'
    for name, text in {"scontrol": SCONTROL, "srun": srun}.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/activate").touch()
    slurm = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_CPUS_PER_TASK": "8", "SLURM_JOB_NODELIST": "node-[7-8]"}
    environ = os.environ | slurm | {"SLURM_JOB_ID": "45123", "PATH": f"{programs}:{os.environ['PATH']}"} | environ
    return subprocess.Popen(["bash", str(SCRIPT)], env=environ, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("code", [0, 2, 143])
def test_the_job_ends_as_its_run_and_returns_to_the_queue_when_it_was_stopped(code, tmp_path):
    job = start(tmp_path, f"exit {code}")
    first, *rest = job.communicate(timeout=60)[0].splitlines()
    assert first.startswith("node-7:15123 8 srun --cpus-per-task=8 --kill-on-bad-exit=1 toolkit train ")
    assert (job.returncode, rest) == ((0, ["scontrol requeue 45123"]) if code == 143 else (code, []))


def test_a_signal_reaches_the_run_and_the_job_waits_for_it(tmp_path):
    saves = "trap 'sleep 1; echo saved; exit 143' TERM\necho ready\nwhile true; do sleep .1; done"
    job = start(tmp_path, saves)
    assert job.stdout is not None
    job.stdout.readline()
    assert job.stdout.readline() == "ready\n"
    job.send_signal(signal.SIGTERM)
    assert job.communicate(timeout=60)[0] == "saved\nscontrol requeue 45123\n"
    assert job.returncode == 0


def test_the_command_of_each_task_of_an_array_is_one_of_the_toolkit(tmp_path):
    job = start(tmp_path, "exit 0", SLURM_ARRAY_TASK_ID="3")
    words = job.communicate(timeout=60)[0].split()
    program, command, *given = words[words.index("toolkit") :]
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    arguments = parser.parse_intermixed_args(given)
    assert (program, command, arguments.recipe, arguments.config) == ("toolkit", "train", "reviews", "my_reviews.yaml")
    assert train.settings(arguments) == ["checkpoint.resume=auto", "seed=3", "output_dir=outputs/seed-3"]
