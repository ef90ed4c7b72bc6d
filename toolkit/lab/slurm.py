"""Writes job scripts for Slurm: what a run needs, how its processes meet, and how it stops and goes on."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

    command: Sequence[str]
    """The command line that writes it."""
    work: Work
    words: Sequence[str]
    """Arguments of `toolkit <work>`: recipe, configuration, options and overrides."""
    name: str
    nodes: int
    gpus: int
    """GPUs of each machine; 0 trains on their CPUs."""
    cpus: int
    """Cores of each process."""
    seconds: int
    lead: int
    """Seconds between the signal and the time limit, `seconds`."""
    launcher: Launcher
    multi_node: str
    """Configuration file of `accelerate launch` for several machines."""
    activate: str
    """Shell command that makes `toolkit` available; empty if it is."""
    output_dir: str
    """Output folder of the run; with `seed`, the folder with those of all tasks."""
    array: int | None = None
    seed: int | None = None
    """The seed of the first task, if each task of the array has its own."""
    interface: str | None = None
    offline: bool = True
    trackers: Sequence[str] = ()
    options: Sequence[str] = ()
    """Further options of `sbatch`, without dashes."""
    preflight: bool = False
    staged: bool = False
    """Whether the settings copy the data to each machine."""

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

    Raises:
        InputError: if it is none.
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


def shown_time(seconds: int) -> str:
    """Returns a time limit as Slurm writes it."""
    days, rest = divmod(seconds, 86400)
    return f"{f'{days}-' if days else ''}{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def script(job: Job) -> str:
    """Returns the job script."""
    lines = [*_head(job), "", *_environment(job), "", *_settings(job), *_start(job), *_end(job)]
    return "\n".join(lines) + "\n"


def _head(job: Job) -> Iterator[str]:
    yield "#!/bin/bash"
    yield f"# Written by: {' '.join(shlex.join(job.command).splitlines())}"
    yield "#"
    if job.work == "train":
        yield f"# {job.lead} s before the time limit, Slurm signals this script. The run then saves a"
        yield "# checkpoint, and the job returns to the queue, as it does after a preemption or the"
        yield "# failure of a machine. It resumes from the newest checkpoint."
    else:
        yield "# The tasks of an array share the work. A task whose time is over returns to the queue, and"
        yield "# goes on with what is left."
    yield "# A job that is cancelled (scancel) does not return."
    yield ""
    gpus = [f"gpus-per-node={job.gpus}"] if job.gpus else []
    tasks, cpus = (job.per_node, job.cpus) if job.by_task else (1, job.cpus * job.per_node)
    log = "%x-%A_%a.log" if job.array else "%x-%j.log"
    array = [f"array=1-{job.array}"] if job.array else []
    for option in (
        *(f"job-name={job.name}", f"nodes={job.nodes}", f"ntasks-per-node={tasks}", *gpus, f"cpus-per-task={cpus}"),
        *(f"time={shown_time(job.seconds)}", *job.options, *array, f"output={log}", "open-mode=append", "requeue"),
        f"signal=B:USR1@{job.lead}",
    ):
        name, equals, value = option.partition("=")
        yield f"#SBATCH --{name}{equals}{value and shlex.quote(value)}"


def _environment(job: Job) -> Iterator[str]:
    yield 'cd "$SLURM_SUBMIT_DIR" || exit 2'
    if job.activate:
        yield f"{job.activate} || exit 2"
    if job.offline:
        yield "export HF_HUB_OFFLINE=1 # compute nodes have no internet"
        modes = {"wandb": "WANDB_MODE=offline"}
        yield from (f"export {modes[each]}" for each in job.trackers if each in modes)
    one = job.by_task or job.per_node == 1
    yield f"export OMP_NUM_THREADS={'$SLURM_CPUS_PER_TASK' if one else f'$((SLURM_CPUS_PER_TASK / {job.per_node}))'}"
    if job.interface:
        name = shlex.quote(job.interface)
        yield f"export NCCL_SOCKET_IFNAME={name} GLOO_SOCKET_IFNAME={name}"
    if job.work == "train":
        yield 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        ports = f"{FIRST_PORT} + SLURM_JOB_ID % {PORTS}"
        yield "# Jobs on one machine have different ports; a port that is set goes first."
        yield f"export MASTER_ADDR MASTER_PORT=${{MASTER_PORT:-$(({ports}))}}"
        if not job.by_task:
            yield "# Otherwise the launcher kills its processes 30 s after the signal."
            yield f"export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={job.lead - SPARE_SECONDS}"
    if not job.staged:
        yield "# To copy the data to each machine first, add data.stage_to=/dev/shm/... or a folder on its own disk."


def _settings(job: Job) -> Iterator[str]:
    if job.work != "train":
        return
    yield "settings=(checkpoint.resume=auto)"
    yield f"output={shlex.quote(job.output_dir)}"
    if job.seed is not None:
        yield f"seed=$(({job.seed - 1} + SLURM_ARRAY_TASK_ID))"
        yield "output=$output/seed-$seed"
        yield 'settings+=("seed=$seed" "output_dir=$output")'
    if job.preflight:
        machines = '--nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1'
        check = shlex.join(["toolkit", "preflight", *job.words])
        yield f"srun {machines} \\"
        yield f'    {check} "${{settings[@]}}" --processes {job.per_node} || exit 2'
    yield 'newest() { ls -t "$output/checkpoints" 2> /dev/null | head -n 1; }'
    yield "before=$(newest)"


def _start(job: Job) -> Iterator[str]:
    """Yields the lines that start the run and wait for it."""
    yield f"job={'${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID' if job.array else '$SLURM_JOB_ID'}"
    yield "stopped= cancelled="
    if job.work == "train":
        yield "# srun kills its processes when it receives SIGTERM; scancel sends SIGTERM to the processes."
        yield "trap 'stopped=1; scancel --signal=TERM \"$job\"' USR1"
        yield "trap 'cancelled=1' TERM"
        yield from _launch(job)
    else:
        yield "run= told="
        yield "set -m # the run gets a group of its own, to which the signal is sent once"
        yield 'tell() { [ -z "$run" ] || [ -n "$told" ] || { told=1; kill -INT -- "-$run"; }; }'
        yield "trap 'stopped=1; tell' USR1"
        yield "trap 'cancelled=1; tell' TERM"
        yield f"{shlex.join(['toolkit', job.work, *job.words])} {_share(job)}&"
    yield "run=$!"
    if job.work != "train":
        yield '[ -z "$stopped$cancelled" ] || tell # a signal that came before there was a run'
    yield 'while kill -0 "$run" 2> /dev/null; do # a signal ends the wait, but the run is still saving'
    yield '    wait "$run"'
    yield "done"
    yield 'wait "$run"'
    yield "code=$?"


def _launch(job: Job) -> Iterator[str]:
    run = shlex.join(job.words)
    cpus = '--cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1'
    if job.launcher == "srun":
        yield f"srun {cpus} \\"
        yield f'    toolkit train {run} "${{settings[@]}}" &'
        return
    options = _torchrun(job) if job.launcher == "torchrun" else _accelerate(job)
    on_each_machine = " \\\n    ".join([f"exec {options[0]}", *options[1:], '-m toolkit train "$@"'])
    yield f"on_each_machine={shlex.quote(on_each_machine)}"
    yield f'srun {cpus} bash -c "$on_each_machine" toolkit \\'
    yield f'    {run} "${{settings[@]}}" &'


def _torchrun(job: Job) -> list[str]:
    return [
        "torchrun",
        f'--nnodes {job.nodes} --nproc-per-node {job.per_node} --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID"',
        '--rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT"',
        f"--rdzv-conf {IS_HOST}",
    ]


def _accelerate(job: Job) -> list[str]:
    # The backend in a configuration file has no effect. On one machine, c10d would always use the same port.
    meet = [f"--rdzv_backend c10d --rdzv_conf {IS_HOST}"] if job.nodes > 1 else []
    return [
        f"accelerate launch --config_file {shlex.quote(job.multi_node)}",
        f'--num_machines {job.nodes} --num_processes {job.nodes * job.per_node} --machine_rank "$SLURM_NODEID"',
        '--main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"',
        *meet,
    ]


def _share(job: Job) -> str:
    if job.work == "compare":
        return f'--part "$SLURM_ARRAY_TASK_ID/{job.array}" ' if job.array else ""
    hours = shown_time(job.seconds - job.lead)
    days, _, rest = hours.rpartition("-")
    if days:
        rest = f"{int(rest[:2]) + 24 * int(days)}{rest[2:]}"
    return f"--time {rest} "


def _end(job: Job) -> Iterator[str]:
    again = '[ "$code" -eq 143 ] || { [ -n "$stopped" ] && [ "$code" -ne 0 ] && [ "$code" -ne 2 ]; }'
    if job.work == "search":  # after its own time, a search ends with 0, and its trials have saved
        again = f'{{ [ -n "$stopped" ] && [ "$code" -ne 2 ]; }} || [ "$SECONDS" -ge {job.seconds - job.lead} ]'
    yield f'if [ -z "$cancelled" ] && {{ {again}; }}; then'
    if job.work == "train":  # otherwise a run that is too slow to save would return for ever
        yield '    if [ "$(newest)" = "$before" ]; then'
        yield '        echo "No checkpoint was written, so the job does not return to the queue: use a longer" \\'
        yield '            "--time or --lead, or save more often (checkpoint.save_steps)." >&2'
        yield '        exit "$code"'
        yield "    fi"
    yield '    scontrol requeue "$job" && exit 0'
    yield "fi"
    yield 'exit "$code"'
