"""Checks a machine before a run: inputs, disks, memory, GPUs, network and trackers."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import torch

from toolkit.api.task import Task
from toolkit.base.console import counted, format_bytes
from toolkit.base.errors import DataError, InputError, problems_of
from toolkit.base.files import free_inodes, kind_of, why
from toolkit.base.offline import SECONDS, prepare_download, read_fetched
from toolkit.checks.check import Case, Findings, ask
from toolkit.checks.run import CHECKS
from toolkit.config.paths import source_of
from toolkit.config.sections import Config
from toolkit.data.batching.workers import num_workers
from toolkit.data.media.cache import limit_of
from toolkit.data.sources import is_files, num_bytes
from toolkit.data.staging import stage_problem
from toolkit.distributed.exchange import bytes_of
from toolkit.footprint.simulate import Footprint, simulate
from toolkit.lab.fetch import INDEX, WEIGHTS, shards
from toolkit.lab.plan.estimates import estimated
from toolkit.lab.plan.report import OF_THE_DRIVER
from toolkit.lab.plan.subject import subject_of
from toolkit.recipe import validate
from toolkit.system.launcher import FIRST_PORT, PORTS
from toolkit.system.limits import available_memory, usable_cores
from toolkit.system.memory import held_bytes


@dataclass(frozen=True)
class Found:
    """The result of one check."""

    what: str
    shown: str  # what is there; empty if it is not worth a line
    problems: tuple[str, ...] = ()  # a complete message for each


@dataclass(frozen=True)
class Needs:
    """What a run needs of each machine, as far as it can be predicted."""

    processes: int
    memory: int | None = None  # bytes of each process on its GPU, or in memory without GPUs; None if it is not known
    disk: int = 0  # bytes that the run writes into its folder
    files: int = 100
    cache: int = 0  # bytes of prepared rows
    shared: int = 0  # bytes of batches that data loader workers hold in shared memory


SIZES = "the sizes in parallel"
"""What `validate` cannot check without processes, and this tool does."""


def check_machine(
    task_type: type[Task], cfg: Config, config: str, overrides: Sequence[str], processes: int
) -> tuple[dict[str, str], list[str]]:
    """Checks everything that a run, with so many `processes` on this machine, needs of it.

    Returns:
        What is there, by what was checked; and a line for each check that could not be made.

    Raises:
        InputError: with all problems.
    """
    connect(cfg)
    findings = validate(task_type, config, overrides)
    table = list(_ask(cfg, task_type(cfg), findings, processes))
    problems = [*findings.problems, *(problem for found in table for problem in found.problems)]
    unchecked = [f"  not checked: {each}" for each in findings.unchecked if not each.startswith(SIZES)]
    if problems:
        head = f"{counted(len(problems), 'problem')} on this machine:"
        raise InputError("\n".join([head, *(f"  - {each}" for each in problems), *unchecked]))
    return {found.what: found.shown for found in table if found.shown}, unchecked


def _ask(cfg: Config, task: Task, findings: Findings, processes: int) -> Iterator[Found]:
    """Yields what each check of the machine finds."""
    world = processes * int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    yield from inputs(cfg)
    needs, reason = Needs(processes), "its settings or inputs are wrong"
    if not findings.problems:
        sizes = ask(CHECKS, Case(cfg, lambda _: task, processes=world), ["processes"]).problems
        yield Found("processes", f"{processes} here" + (f", {world} in all" if world > processes else ""), sizes)
        if not sizes:
            found: list[Needs] = []
            reasons = problems_of(lambda: found.append(needs_of(cfg, task, processes, world)))
            needs, reason = (found or [needs])[0], " ".join(reasons)
    if needs.memory is None:
        yield Found("prediction", f"none: {reason or 'DeepSpeed keeps more than is known'}")
    yield from folders(cfg, needs)
    yield from stage(cfg, task)
    yield from devices(needs)
    yield port()
    yield from trackers(cfg)


def _existing(path: Path) -> Path:
    """Returns the nearest folder around a path that exists, or the path itself."""
    return next(each for each in (path, *path.absolute().parents) if each.is_dir())


DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/kfd"))
"""Files that exist if the machine has a driver of NVIDIA's or AMD's GPUs."""


def devices(needs: Needs, environ: Mapping[str, str] = os.environ) -> Iterator[Found]:
    """Yields the findings on GPUs, memory and cores."""
    count = torch.cuda.device_count()
    yield Found("GPUs", _names(count), tuple(_missing(count, needs, environ)))
    yield _gpu_memory(needs) if count else _host_memory(needs)
    cores = usable_cores()
    yield Found("cores", f"{cores} for {needs.processes} process{'es' if needs.processes > 1 else ''}")


def _names(count: int) -> str:
    counts = Counter(map(torch.cuda.get_device_name, range(count)))
    return ", ".join(f"{number} x {name}" for name, number in counts.items()) or "none; training is on the CPU"


def _missing(count: int, needs: Needs, environ: Mapping[str, str]) -> Iterator[str]:
    if 0 < count < needs.processes:
        yield (
            f"GPUs: {needs.processes} processes need as many, and this machine has {count}; lower --processes, or ask "
            "for more GPUs"
        )
    granted = environ.get("SLURM_GPUS_ON_NODE") or ("some" if any(each.exists() for each in DRIVERS) else "")
    if count == 0 and granted not in ("", "0") and environ.get("CUDA_VISIBLE_DEVICES", "all") not in ("", "-1"):
        built = f"this torch ({torch.__version__}) is built for "
        built += f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
        yield (
            f"GPUs: the machine has {granted}, but torch finds none; {built}. Install a build that fits the driver, or "
            "set CUDA_VISIBLE_DEVICES= to train on the CPU"
        )


def _gpu_memory(needs: Needs) -> Found:
    free = min(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))
    if needs.memory is None:
        return Found("GPU memory", f"{format_bytes(free)} free on the fullest")
    needed = needs.memory + OF_THE_DRIVER
    return _memory("GPU memory", free, needed, " on the fullest GPU", f"--gpu-memory {free // 2**20}MiB ")


def _host_memory(needs: Needs) -> Found:
    free = available_memory()
    if needs.memory is None:
        return Found("memory", f"{format_bytes(free)} free")
    libraries = held_bytes(torch.device("cpu"))  # this process has imported what a run imports
    needed = needs.processes * (needs.memory + libraries)
    each = (
        f" (each process: {format_bytes(needs.memory)} for a step, {format_bytes(libraries)} for Python and libraries)"
    )
    return _memory("memory", free, needed, "", "", each)


def _memory(what: str, free: int, needed: int, where: str, options: str, parts: str = "") -> Found:
    problems = []
    if needed > free:
        problems.append(
            f"{what}: about {format_bytes(needed)} are needed{parts}, and {format_bytes(free)} are free{where}; "
            f"`toolkit plan {options}...` finds settings that fit"
        )
    return Found(what, f"{format_bytes(free)} free of about {format_bytes(needed)} needed{parts}", tuple(problems))


def port(environ: Mapping[str, str] = os.environ) -> Found:
    """Returns the finding on the port where the processes of a job meet; none is fixed outside of jobs."""
    if text := environ.get("MASTER_PORT"):
        if not text.isdecimal() or int(text) >= 2**16:
            return Found("port", "", (f"MASTER_PORT: received {text}, must be the number of a port",))
        number = int(text)
    elif "SLURM_JOB_ID" in environ:
        number = FIRST_PORT + int(environ["SLURM_JOB_ID"]) % PORTS
    else:
        return Found("port", "")
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("", number))
            held.listen()
        except OSError as error:
            reason = f"port {number}, where the processes meet, cannot be used ({error.strerror})"
            return Found("port", str(number), (f"{reason}; set MASTER_PORT to another",))
    return Found("port", f"{number} is free")


SERVERS = {
    "wandb": ("WANDB_BASE_URL", "https://api.wandb.ai", "WANDB_MODE", "offline"),
    "mlflow": ("MLFLOW_TRACKING_URI", "", "MLFLOW_TRACKING_URI", "a folder"),
}
"""By tracker: the variable with its server, its server without it, and the variable and value that need none."""


def trackers(cfg: Config, environ: Mapping[str, str] = os.environ) -> Iterator[Found]:
    """Yields a finding on each tracker: whether its server can be reached, unless it writes to this machine only."""
    for name in cfg.tracking.report_to:
        variable, usual, mode, local = SERVERS.get(name, ("", "", "", ""))
        address = urlsplit(environ.get(variable, usual))
        if address.scheme not in ("http", "https") or environ.get(mode) in ("offline", "disabled", "dryrun"):
            yield Found(f"tracker {name}", "writes to this machine")
            continue
        try:
            number = address.port or (443 if address.scheme == "https" else 80)
            socket.create_connection((str(address.hostname), number), SECONDS).close()
            yield Found(f"tracker {name}", f"{address.hostname} answers")
        except OSError as error:
            reason = f"tracking.report_to: {name} cannot reach {address.hostname} ({error}); set {mode} to {local}"
            yield Found(f"tracker {name}", "", (reason,))


LEAST_ROOM = 64 * 2**20
"""Bytes that must be free in each folder, whatever is known of the run."""
SHARED = Path("/dev/shm")
LEAST_FILES = 100


def folders(cfg: Config, needs: Needs) -> Iterator[Found]:
    """Yields findings on cache, temporary and shared memory; `toolkit.checks.run` checks the output folder."""
    import datasets

    room = max(LEAST_ROOM, needs.disk)
    yield _folder("output_dir", Path(cfg.output_dir), room, needs.files, "output_dir", tried=False)
    cache, advice = Path(datasets.config.HF_DATASETS_CACHE), "HF_HOME or HF_DATASETS_CACHE"
    yield _folder("cache", cache, max(LEAST_ROOM, needs.cache), LEAST_FILES, advice, locked=True)
    temporary, asked = Path(tempfile.gettempdir()), cfg.data.media_cache
    kept = 0 if asked in ("0", "auto") else limit_of(asked, temporary)
    yield _folder("temporary folder", temporary, LEAST_ROOM + kept, LEAST_FILES, "TMPDIR")
    yield _shared_memory(needs)


def stage(cfg: Config, task: Task) -> Iterator[Found]:
    """Yields the finding on the folder to which the data files are copied, if there is one."""
    if cfg.data.stage_to is not None:
        found: list[str | None] = []
        refusals = problems_of(lambda: found.append(stage_problem(cfg.data, task)))
        yield Found("data.stage_to", cfg.data.stage_to, (*refusals, *filter(None, found)))


def _folder(
    what: str, folder: Path, needed: int, files: int, setting: str, tried: bool = True, locked: bool = False
) -> Found:
    """Checks that a folder, which may not exist, has room for `needed` bytes in `files` files; `setting` moves it."""
    place, problems = _existing(folder), []
    use = f"set {setting} to a folder on another disk"
    if tried and (reason := _refusal(place, locked)):
        return Found(what, "", (f"{what}: {reason}; {use}",))
    free, inodes = shutil.disk_usage(place).free, free_inodes(place)
    if free < needed:
        problems.append(
            f"{what}: {format_bytes(free)} are free in {place}, and about {format_bytes(needed)} are needed; free some "
            f"space, or {use}"
        )
    if inodes is not None and inodes < files:
        problems.append(
            f"{what}: the file system of {place} has room for {inodes:,} more files (inodes), and about {files:,} are "
            f"needed; remove files, or {use}"
        )
    room = "" if inodes is None else f", {inodes:,} inodes"
    about = f" of about {format_bytes(needed)} needed"
    return Found(what, f"{folder.absolute()}: {format_bytes(free)} free{about}{room}", tuple(problems))


def _refusal(folder: Path, locked: bool) -> str:
    """Returns why files in a folder cannot be written, or locked; empty if they can."""
    from filelock import FileLock, Timeout

    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".preflight-", delete=False) as file:
            name = Path(file.name)
        try:
            if locked:
                with FileLock(name, timeout=5):
                    pass
        finally:
            name.unlink(missing_ok=True)
    except Timeout:
        return f"a file in {folder} cannot be locked within 5 s"
    except NotImplementedError:
        return f"the file system of {folder} has no locks"
    except OSError as error:
        return f"{folder} cannot be written: {why(error, folder)}"
    return ""


def _shared_memory(needs: Needs) -> Found:
    if not SHARED.is_dir():
        return Found("shared memory", "")
    free, problems = shutil.disk_usage(SHARED).free, []
    if free < needs.shared:
        held = f"data loader workers hold about {format_bytes(needs.shared)} of batches there"
        advice = "lower train.dataloader_num_workers or train.dataloader_prefetch_factor, or make it larger"
        problems.append(f"{SHARED}: {format_bytes(free)} are free, and {held}; {advice}")
    about = f" of about {format_bytes(needs.shared)} needed" if needs.shared else ""
    return Found("shared memory", f"{SHARED}: {format_bytes(free)} free{about}", tuple(problems))


PREFETCH = 2
"""Batches that each data loader worker keeps ready, if it is not set."""
OF_ROWS = 3
"""Bytes of checked and tokenised rows for a byte of a data file: the text once, and token numbers beside it."""
FILES_OF_CHECKPOINT, FILES_OF_RUN = 20, 100


def needs_of(cfg: Config, task: Task, processes: int, world: int) -> Needs:
    """Returns what a run needs of a machine that starts `processes` of its `world` processes."""
    subject = subject_of(cfg, task, gpu=torch.cuda.is_available())
    footprint = simulate(subject)
    # What DeepSpeed holds in addition is not known.
    known = cfg.parallel.backend != "deepspeed"
    memory = estimated(footprint, cfg, world).peak if known and world > 1 else footprint.peak if known else None
    workers = num_workers(cfg.train, task, subject.device)
    batches = workers * (cfg.train.dataloader_prefetch_factor or PREFETCH) * processes
    number = _checkpoints(cfg)
    return Needs(
        processes=processes,
        memory=memory,
        disk=_disk(footprint, number, adapted=cfg.model.peft.method != "none"),
        files=FILES_OF_RUN + number * FILES_OF_CHECKPOINT,
        cache=OF_ROWS * sum(_sizes(cfg)),
        shared=batches * bytes_of(subject.batch),
    )


def _disk(footprint: Footprint, checkpoints: int, adapted: bool) -> int:
    """Returns the bytes of the model and of the checkpoints that exist at once."""
    weights = footprint.parameters + footprint.buffers
    model = weights * footprint.trained // max(1, footprint.total) if adapted else weights
    return model + checkpoints * (weights + footprint.optimizer_state + footprint.copies)


def _checkpoints(cfg: Config) -> int:
    """Returns how many checkpoints there are at once, at least: the number of steps may follow from all rows."""
    save, train = cfg.checkpoint, cfg.train
    limit = None if save.save_total_limit is None else save.save_total_limit + 1  # an old one is removed afterwards
    if save.save_steps is None:
        return 1  # after a signal
    count = 2
    if isinstance(save.save_steps, int | float):
        if save.save_steps < 1:
            count = int(1 / save.save_steps) + 1
        elif train.max_steps > 0:
            count = int(train.max_steps // save.save_steps) + 1
    return count if limit is None else min(count, limit)


def _sizes(cfg: Config) -> Iterator[int]:
    for file in cfg.data.files():
        if not is_files(file):  # of which rows are only references
            try:
                yield num_bytes(file)
            except DataError:
                continue  # reported where it is read


def connect(cfg: Config) -> None:
    """Finds out whether the Hub answers, if the run names anything there; otherwise only the cache is looked at."""
    for name in (source_of(cfg).name_or_path, cfg.data.dataset_name):
        if name is not None:
            prepare_download(name)


def inputs(cfg: Config) -> Iterator[Found]:
    """Yields the findings on the fetched folder, the model and the dataset.

    That a dataset is in the cache, and that data files can be read, is checked by `toolkit.checks`.
    """
    from huggingface_hub import constants

    if cfg.offline_dir is not None:
        fetched = read_fetched(cfg.offline_dir)
        problems = tuple(problems_of(fetched.require_intact))
        yield Found("offline_dir", f"{fetched.folder}: {counted(len(fetched.files), 'file')}, all intact", problems)
    name = source_of(cfg).name_or_path
    if name is not None and kind_of(Path(name)) != "folder":
        if constants.is_offline_mode():
            problems = tuple(_not_cached(name, cfg.model.revision))
            yield Found("model", f"{name}, in the cache {constants.HF_HUB_CACHE}", problems)
        else:
            yield Found("model", f"{name}; the Hub answers, so what is not in the cache is downloaded")
    elif name is not None:
        yield Found("model", str(Path(name).absolute()), tuple(_lacking(Path(name))))


def _not_cached(name: str, revision: str | None) -> Iterator[str]:
    """Yields a message about the weights that an index names and the cache lacks."""
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, WEIGHTS, revision=revision), str):
        return
    index = try_to_load_from_cache(name, INDEX, revision=revision)
    if isinstance(index, str):  # otherwise `toolkit.checks.model` says that there are no weights
        yield from _lacking(Path(index).parent)


def _lacking(folder: Path) -> Iterator[str]:
    if kind_of(folder / WEIGHTS) == "file" or kind_of(folder / INDEX) != "file":
        return
    names = shards(folder / INDEX)
    if missing := [name for name in names if kind_of(folder / name) != "file"]:
        yield f"model.name_or_path: {', '.join(missing)} of {len(names)} files of weights are missing in {folder}"
