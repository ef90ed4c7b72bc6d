"""Stand-ins for Slurm's commands on one machine: a job's script runs here, and its nodes are processes.

`python fake_slurm.py srun ...` is what `srun` does in a job: it starts the tasks of all nodes with the variables that
Slurm sets, passes signals on, and ends with the largest exit code.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

REQUEUED = "requeued"


def options_of(script: Path) -> dict[str, str]:
    """Returns the options `#SBATCH` of a script."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", script.read_text(), re.MULTILINE))


def programs(folder: Path, **others: str) -> Path:
    """Makes a folder with `srun`, `scontrol` and further programs, whose text is given, and returns it."""
    made = folder / "programs"
    made.mkdir(exist_ok=True)
    hosts = 'for _ in $(seq "$SLURM_JOB_NUM_NODES"); do echo 127.0.0.1; done'
    texts = {
        "srun": f'exec {sys.executable} {Path(__file__).resolve()} srun "$@"',
        "scontrol": f'if [ "$1" = show ]; then {hosts}; else echo "$2" >> "$SLURM_SUBMIT_DIR/{REQUEUED}"; fi',
    }
    for name, text in {**texts, **others}.items():
        (made / name).write_text(f"#!/bin/bash\n{text}\n")
        (made / name).chmod(0o755)
    return made


def submit(script: Path, job: int, log: Path, bin_folder: Path, task: int | None = None) -> subprocess.Popen:
    """Starts a job's script as Slurm does on the first node; its output is appended to a log."""
    asked = options_of(script)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environ |= {
        "PATH": f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(job), "SLURM_SUBMIT_DIR": str(script.parent), "SLURM_JOB_NODELIST": "node-[1-2]",
        "SLURM_JOB_NUM_NODES": asked["nodes"], "SLURM_NTASKS_PER_NODE": asked["ntasks-per-node"],
        "SLURM_CPUS_PER_TASK": asked["cpus-per-task"],
    }  # fmt: skip
    if task is not None:
        environ["SLURM_ARRAY_TASK_ID"] = str(task)
    with log.open("ab") as output:
        return subprocess.Popen(["bash", str(script)], env=environ, stdout=output, stderr=output)


def srun(words: Sequence[str]) -> int:
    """Runs the tasks of a step."""
    given = list(takewhile(lambda word: word.startswith("--"), words))
    command = words[len(given) :]
    options = dict(word.removeprefix("--").split("=", 1) for word in given if "=" in word)
    nodes = int(os.environ["SLURM_JOB_NUM_NODES"])
    each = int(options.get("ntasks-per-node", os.environ["SLURM_NTASKS_PER_NODE"]))
    tasks = []
    for rank in range(nodes * each):
        own = {
            "SLURM_PROCID": rank, "SLURM_LOCALID": rank % each, "SLURM_NODEID": rank // each,
            "SLURM_STEP_NUM_TASKS": nodes * each, "SLURM_STEP_NUM_NODES": nodes,
            "SLURM_STEP_TASKS_PER_NODE": f"{each}(x{nodes})",
        }  # fmt: skip
        environ = os.environ | {name: str(value) for name, value in own.items()}
        tasks.append(subprocess.Popen(command, env=environ, start_new_session=True))

    def pass_on(number: int, frame: object) -> None:
        for process in tasks:
            process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    while any(process.poll() is None for process in tasks):
        if "--kill-on-bad-exit=1" in given and any(process.returncode for process in tasks):
            pass_on(signal.SIGKILL, None)
        time.sleep(0.05)
    return max(process.returncode if process.returncode >= 0 else 128 - process.returncode for process in tasks)


if __name__ == "__main__":
    sys.exit(srun(sys.argv[2:]))
