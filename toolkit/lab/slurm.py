"""Writes job scripts for Slurm: what a run needs, how its processes meet, and how it stops and resumes."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolkit.api.task import Task, reads_files
from toolkit.base.errors import InputError
from toolkit.config.sections import Config
from toolkit.system.launcher import FIRST_PORT, PORTS

Launcher = Literal["srun", "torchrun", "accelerate"]
Work = Literal["train", "compare", "search"]
OWN_CORES = 2
"""Cores of a process without data loader workers: its own, and one for checkpoints that a thread writes."""
WORKERS = 6
"""Data loader workers for which cores are asked if their number is `auto` and inputs are read from files."""
LEAST_LEAD, MOST_LEAD, SHARE_OF_LEAD = 180, 900, 0.05
"""Seconds between the signal and the end of the job, and the part of the job's time that they are in between."""
SPARE_SECONDS = 20
"""Seconds before the end of the job in which a launcher ends its processes."""
IS_HOST = '"is_host=$([ "$SLURM_NODEID" -eq 0 ] && echo true || echo false)"'
"""Whether a machine is the one at which the launchers meet, as they and the shell write it."""


@dataclass(frozen=True)
class Job:
    """A job to write."""

    command: Sequence[str]  # the command line that writes it
    work: Work
    words: Sequence[str]  # arguments of `toolkit <work>`: recipe, configuration, options and overrides
    name: str
    nodes: int
    gpus: int  # GPUs of each machine; 0 trains on their CPUs
    cpus: int  # cores of each process
    seconds: int
    lead: int  # seconds between the signal and the time limit, `seconds`
    launcher: Launcher
    multi_node: str  # configuration file of `accelerate launch` for several machines
    activate: str  # shell command that makes `toolkit` available; empty if it is
    output_dir: str  # output folder of the run; with `seed`, the folder with those of all tasks
    array: int | None = None
    seed: int | None = None  # the seed of the first task, if each task of the array has its own
    interface: str | None = None
    master_address: str | None = None  # suffix of the first machine's name, or a shell command (with a space)
    cpu_bind: str | None = None
    offline: bool = True
    trackers: Sequence[str] = ()
    options: Sequence[str] = ()  # further options of `sbatch`, without dashes
    preflight: bool = False
    staged: bool = False  # whether the settings copy the data to each machine

    @property
    def per_node(self) -> int:
        """Processes of a run on each machine."""
        return max(1, self.gpus)

    @property
    def by_task(self) -> bool:
        """Whether each process is a task of Slurm; otherwise a task is a machine."""
        return self.work == "train" and self.launcher == "srun"


def cores_of(cfg: Config, task: Task, processes: int) -> int:
    """Returns the cores that each process of a run needs, where the first one of a machine prepares the rows."""
    asked = cfg.train.dataloader_num_workers
    workers = asked if isinstance(asked, int) else WORKERS if reads_files(task) else 0
    return max(OWN_CORES + workers, math.ceil((cfg.data.preprocessing_num_workers or 1) / processes))


def lead_of(seconds: int) -> int:
    """Returns the seconds before the time limit at which a job is signalled, if nothing else is asked for."""
    return min(MOST_LEAD, max(LEAST_LEAD, round(SHARE_OF_LEAD * seconds)))


def seconds_of(text: str) -> int:
    """Returns a time limit of Slurm in seconds: `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`.

    Raises InputError if it is none.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if found is None:
        raise InputError(f"--time: received {text}, must be a time such as 4:00:00 or 2-00:00:00 (days-hours)")
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if not total:
        raise InputError(f"--time: received {text}, must be more than nothing")
    return total


_GPUS = re.compile(r"\bgpu(?::(?!\d+\b)[^:,]+)?(?::(\d+))?")
"""GPUs in `gres`: `gpu`, `gpu:4` or `gpu:a100:4`."""
OWN_OPTIONS = frozenset((
    "job-name", "nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gres", "cpus-per-task", "time", "array",
    "output", "open-mode", "requeue", "no-requeue", "signal",
))  # fmt: skip
"""Options of `sbatch` that a script has from options of its own, or must have as they are."""


def option_problems(gres: str | None, gpus: int, lines: Sequence[str]) -> list[str]:
    """Returns the problems of `gres` with another number of GPUs than of processes, and of further options."""
    found = []
    if (asked := _GPUS.search(gres or "")) and int(asked[1] or 1) != gpus:
        found.append(f"--gres: received {gres}, but --gpus is {gpus}; give both the same number of GPUs")
    for line in lines:
        name = re.split(r"[= ]", line.strip().lstrip("-"), maxsplit=1)[0]
        if "\n" in line or not re.fullmatch(r"[a-z][a-z0-9-]+", name):
            found.append(f"--sbatch: received {line!r}, must be a long option of sbatch such as hint=nomultithread")
        elif name in OWN_OPTIONS:
            found.append(f"--sbatch: received {line!r}, but the script sets {name}; use the options of toolkit slurm")
    return found


def shown_time(seconds: int) -> str:
    """Returns a time limit as Slurm writes it."""
    days, rest = divmod(seconds, 86400)
    return f"{f'{days}-' if days else ''}{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def script(job: Job) -> str:
    """Returns the job script."""
    import jinja2

    template = Path(__file__).with_name("templates") / "slurm.sh"
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["quote"] = shlex.quote
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        job=job,
        train=job.work == "train",
        written_by=" ".join(shlex.join(job.command).splitlines()),
        options=_options(job),
        words=shlex.join(job.words),
        on_each_machine=_on_each_machine(job),
        share=_share(job),
        bound=f" --cpu-bind={shlex.quote(job.cpu_bind)}" if job.cpu_bind else "",
        first_port=FIRST_PORT,
        ports=PORTS,
        spare_seconds=SPARE_SECONDS,
    )


def _options(job: Job) -> Iterator[str]:
    """Yields the options of `sbatch`."""
    by_gres = any(option.startswith("gres=") and _GPUS.search(option) for option in job.options)
    gpus = [f"gpus-per-node={job.gpus}"] if job.gpus and not by_gres else []
    tasks, cpus = (job.per_node, job.cpus) if job.by_task else (1, job.cpus * job.per_node)
    log = "%x-%A_%a.log" if job.array else "%x-%j.log"
    array = [f"array=1-{job.array}"] if job.array else []
    for option in (
        *(f"job-name={job.name}", f"nodes={job.nodes}", f"ntasks-per-node={tasks}", *gpus, f"cpus-per-task={cpus}"),
        *(f"time={shown_time(job.seconds)}", *job.options, *array, f"output={log}", "open-mode=append", "requeue"),
        f"signal=B:USR1@{job.lead}",
    ):
        name, equals, value = option.partition("=")
        yield f"{name}{equals}{value and shlex.quote(value)}"


def _on_each_machine(job: Job) -> str:
    """Returns what `torchrun` or `accelerate` start with on each machine."""
    if job.launcher == "torchrun":
        parts = [
            "torchrun",
            f'--nnodes {job.nodes} --nproc-per-node {job.per_node} --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID"',
            '--rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT"',
            f"--rdzv-conf {IS_HOST}",
        ]
    else:
        # The backend in a configuration file has no effect. On one machine, c10d would always use the same port.
        parts = [
            f"accelerate launch --config_file {shlex.quote(job.multi_node)}",
            f'--num_machines {job.nodes} --num_processes {job.nodes * job.per_node} --machine_rank "$SLURM_NODEID"',
            '--main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"',
            *([f"--rdzv_backend c10d --rdzv_conf {IS_HOST}"] if job.nodes > 1 else []),
        ]
    return " \\\n    ".join([f"exec {parts[0]}", *parts[1:], '-m toolkit train "$@"'])


def _share(job: Job) -> str:
    """Returns the options with which a task of an array does its part."""
    if job.work == "compare":
        return f'--part "$SLURM_ARRAY_TASK_ID/{job.array}" ' if job.array else ""
    hours = shown_time(job.seconds - job.lead)
    days, _, rest = hours.rpartition("-")
    if days:
        rest = f"{int(rest[:2]) + 24 * int(days)}{rest[2:]}"
    return f"--time {rest} "
