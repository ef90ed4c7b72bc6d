"""Checks GPUs, memory, the port where processes meet, and trackers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from toolkit.base.console import format_bytes
from toolkit.base.offline import SECONDS
from toolkit.config.sections import Config
from toolkit.lab.preflight.found import Found, Needs
from toolkit.system.launcher import FIRST_PORT, PORTS
from toolkit.system.limits import available_memory, usable_cores

DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/kfd"))
"""Files that exist if the machine has a driver of NVIDIA's or AMD's GPUs."""
OF_THE_DRIVER = 512 * 2**20
"""Bytes that a GPU's driver reserves per process."""


def devices(needs: Needs, environ: Mapping[str, str] = os.environ) -> Iterator[Found]:
    """Yields the findings on GPUs, memory and cores."""
    import torch

    count = torch.cuda.device_count()
    yield Found("GPUs", _names(count), tuple(_missing(count, needs, environ)))
    yield _gpu_memory(needs) if count else _host_memory(needs)
    cores = usable_cores()
    yield Found("cores", f"{cores} for {needs.processes} process{'es' if needs.processes > 1 else ''}")


def _names(count: int) -> str:
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(count)]
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return ", ".join(f"{number} x {name}" for name, number in counts.items()) or "none; training is on the CPU"


def _missing(count: int, needs: Needs, environ: Mapping[str, str]) -> Iterator[str]:
    import torch

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
    import torch

    free = min(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))
    if needs.memory is None:
        return Found("GPU memory", f"{format_bytes(free)} free on the fullest")
    needed = needs.memory + OF_THE_DRIVER
    return _memory("GPU memory", free, needed, " on the fullest GPU", f"--gpu-memory {free // 2**20}MiB ")


def _host_memory(needs: Needs) -> Found:
    free = available_memory()
    if needs.memory is None:
        return Found("memory", f"{format_bytes(free)} free")
    return _memory("memory", free, needs.memory * needs.processes, "", "")


def _memory(what: str, free: int, needed: int, where: str, options: str) -> Found:
    problems = []
    if needed > free:
        problems.append(
            f"{what}: about {format_bytes(needed)} are needed, and {format_bytes(free)} are free{where}; "
            f"`toolkit plan {options}...` finds settings that fit"
        )
    return Found(what, f"{format_bytes(free)} free of about {format_bytes(needed)} needed", tuple(problems))


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
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("", number))
        held.listen()
    except OSError as error:
        reason = (
            f"port {number}, where the processes meet, cannot be used ({error.strerror}); set MASTER_PORT to another"
        )
        return Found("port", str(number), (reason,))
    finally:
        held.close()
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
