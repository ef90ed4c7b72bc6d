"""Stand-ins for Slurm's commands on one machine: a job's script runs here, and its nodes are processes.

`python fake_slurm.py srun ...` is what `srun` does in a job: it starts the tasks of all nodes with the variables that
Slurm sets, kills them when it receives SIGTERM, and ends with the largest exit code. `python fake_slurm.py scancel
--signal=NAME JOB` sends a signal to the tasks.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import psutil

from toolkit.system.launcher import FIRST_PORT

REQUEUED = "requeued"
STARTED: list[subprocess.Popen] = []


def options_of(script: Path) -> dict[str, str]:
    """Returns the options `#SBATCH` of a script."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", script.read_text(), re.MULTILINE))


def programs(folder: Path, **others: str) -> Path:
    """Makes a folder with `srun`, `scontrol` and further programs, whose text is given, and returns it."""
    made = folder / "programs"
    made.mkdir(exist_ok=True)
    hosts = 'for _ in $(seq "$SLURM_JOB_NUM_NODES"); do echo 127.0.0.1; done'
    here = f"exec {sys.executable} {Path(__file__).resolve()}"
    texts = {
        "srun": f'{here} srun "$@"',
        "scancel": f'{here} scancel "$@"',
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
    if task is not None:  # the last task of an array has the number of the whole array
        environ |= {"SLURM_ARRAY_JOB_ID": str(job), "SLURM_ARRAY_TASK_ID": str(task)}
    with log.open("ab") as output:
        command = ["bash", str(script)]
        started = subprocess.Popen(command, env=environ, stdout=output, stderr=output, preexec_fn=_heed_signals)
    STARTED.append(started)
    return started


def end_jobs() -> None:
    """Ends the jobs that a failed test has left, and their tasks."""
    while STARTED:
        if (job := STARTED.pop()).poll() is None:
            for process in reversed([*psutil.Process(job.pid).children(recursive=True), job]):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            job.wait()


def free_jobs(count: int) -> list[int]:
    """Returns numbers of jobs whose ports nobody uses now."""
    free: set[int] = set()
    while len(free) < count:
        job = random.randrange(1, 10_000)
        with suppress(OSError), socket.socket() as found:
            found.bind(("", FIRST_PORT + job))
            free.add(job)
    return list(free)


def _heed_signals() -> None:
    """Resets a signal that a shell has ignored for these tests, as of all that it starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def warn(job: subprocess.Popen, script: Path) -> None:
    """Signals a job's script as Slurm does before the time limit."""
    name = options_of(script)["signal"].removeprefix("B:").partition("@")[0]
    job.send_signal(signal.Signals[f"SIG{name}"])


def cancel(job: subprocess.Popen, script: Path, number: str) -> None:
    """Ends a job as `scancel` does without a signal: its script and its tasks get SIGTERM."""
    job.terminate()
    signal_tasks(script.parent, number, signal.SIGTERM)


def job_of(environ: Mapping[str, str]) -> str:
    """Returns the number by which commands name a job; of the task of an array, alone."""
    array = environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{environ['SLURM_ARRAY_TASK_ID']}" if array else environ["SLURM_JOB_ID"]


def tasks_of(folder: Path, job: str) -> Path:
    """Returns the file with the process numbers of a job's tasks; the folder is that of the script."""
    return folder / f".tasks-{job}"


def signal_tasks(folder: Path, job: str, number: signal.Signals) -> None:
    """Sends a signal to the tasks of a job, once they have started."""
    while not tasks_of(folder, job).exists():
        time.sleep(0.05)
    for task in tasks_of(folder, job).read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(task), number)


def scancel(option: str, job: str) -> int:
    """Sends a signal to the tasks of a job, but not to its script."""
    number = signal.Signals[f"SIG{option.removeprefix('--signal=')}"]
    signal_tasks(Path(os.environ["SLURM_SUBMIT_DIR"]), job, number)
    return 0


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

    def kill(*_: object) -> None:
        for process in tasks:
            process.kill()

    signal.signal(signal.SIGTERM, kill)
    file = tasks_of(Path(os.environ["SLURM_SUBMIT_DIR"]), job_of(os.environ))
    file.with_suffix(".new").write_text(" ".join(str(process.pid) for process in tasks))
    file.with_suffix(".new").rename(file)
    while any(process.poll() is None for process in tasks):
        if "--kill-on-bad-exit=1" in given and any(process.returncode for process in tasks):
            kill()
        time.sleep(0.05)
    file.unlink()
    return max(process.returncode if process.returncode >= 0 else 128 - process.returncode for process in tasks)


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    sys.exit(scancel(*rest) if command == "scancel" else srun(rest))
