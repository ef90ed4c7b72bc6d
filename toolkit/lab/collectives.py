"""Measures what collective operations between processes cost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from toolkit.base.console import format_bytes, format_seconds
from toolkit.base.errors import RunError
from toolkit.base.outputs import output_folder
from toolkit.distributed.collectives import objects_of_all
from toolkit.distributed.exchange import share_sent
from toolkit.document.blocks import Cell, Figure, Page, Section, Table, Text
from toolkit.document.charts import line_chart
from toolkit.lab.jobs.jobs import Launch
from toolkit.lab.tool import Report, run_apart
from toolkit.report.sections import bytes_cell

SIZES = tuple(2**10 * 4**power for power in range(9))
"""Bytes of the tensors: 1 KiB to 64 MiB. Of a tensor that is split or gathered, these are the bytes of the whole."""
LEAST_ROUNDS, MOST_ROUNDS = 5, 50
SECONDS = 0.4
"""Time for each operation and size, within these numbers of rounds."""
WARM_UP = 2
TIMEOUT_SECONDS = 600.0
"""Without it, processes that cannot reach each other would wait for half an hour."""
BUCKET_BYTES = 16 * 2**20
"""Bytes of the all-reduce whose bandwidth stands for that of gradients, of the order of a bucket of them."""


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "all_reduce": lambda whole, part: dist.all_reduce(whole),
    "all_gather": lambda whole, part: dist.all_gather_into_tensor(whole, part),
    "reduce_scatter": lambda whole, part: dist.reduce_scatter_tensor(part, whole),
    "broadcast": lambda whole, part: dist.broadcast(whole, src=0),
}
"""Each gets a tensor, and the part of it that belongs to this process."""
USES = {
    "all_reduce": "gradients of data parallelism, outputs of tensor parallelism",
    "all_gather": "weights of FSDP and ZeRO",
    "reduce_scatter": "gradients of FSDP and ZeRO",
    "broadcast": "weights at the start, batches of the first process",
}
"""What a run needs each operation for."""
TIMES, BANDWIDTHS = "Time of each operation", "Bandwidth of each operation"


def factor(operation: str, processes: int) -> float:
    """Returns the part of the tensor that each process sends at least: the factor of nccl-tests' bus bandwidth."""
    share = share_sent(processes)
    return {"all_reduce": 2 * share, "broadcast": 1.0}.get(operation, share)


def bandwidth(launch: Launch) -> float:
    """Returns the bytes per second that each process of a launch sends in an all-reduce; RunError if it fails."""
    found = run_apart("collectives", {"sizes": [BUCKET_BYTES], "operations": ["all_reduce"]}, launch, TIMEOUT_SECONDS)
    return factor("all_reduce", launch.processes) * BUCKET_BYTES / float(found["seconds"]["all_reduce"][0])


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Times operations with tensors of `sizes` bytes: all, or those named in `operations`.

    The `seconds` of each operation and size are the median over rounds; a round lasts until its last process has
    finished.
    """
    device = _begin()
    seconds: dict[str, list[float]] = {name: [] for name in job.get("operations", OPERATIONS)}
    for size in job["sizes"]:
        whole, part = _tensors(size, device)
        for name, found in seconds.items():
            found.append(_time(partial(OPERATIONS[name], whole, part), device))
    return {"seconds": seconds, "backend": dist.get_backend(), "device": device.type}


def _begin() -> torch.device:
    """Joins the group of the launched processes; returns this process's device."""
    local, of_machine = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if 0 < of_machine <= torch.cuda.device_count():
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return device
    dist.init_process_group("gloo")
    return torch.device("cpu")


def _tensors(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns a tensor of about `size` bytes that all processes can split, and one of a process's part."""
    world = dist.get_world_size()
    part = torch.ones(max(1, size // 4 // world), device=device)
    return torch.ones(len(part) * world, device=device), part


def _time(operation: Callable[[], None], device: torch.device) -> float:
    """Returns the seconds of an operation."""
    for _ in range(WARM_UP):
        first = _round(operation, device)
    # All processes must agree on the number of rounds.
    first = max(objects_of_all(first))
    rounds = min(MOST_ROUNDS, max(LEAST_ROUNDS, round(SECONDS / max(first, 1e-9))))
    own = torch.tensor([_round(operation, device) for _ in range(rounds)], dtype=torch.float64)
    slowest = torch.stack(objects_of_all(own)).amax(0)
    return float(slowest.median())


def _round(operation: Callable[[], None], device: torch.device) -> float:
    dist.barrier()
    start = time.perf_counter()
    operation()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


@dataclass(frozen=True)
class Operation:
    """What an operation costs: a latency, that of the smallest tensor, plus bytes by bandwidth (Hockney 1994)."""

    seconds: Sequence[float]
    bytes_per_second: Sequence[float]
    latency: float
    bandwidth: float
    half_size: float  # bytes of a tensor that takes as long as the latency

    @staticmethod
    def of(seconds: Sequence[float], share: float, sizes: Sequence[int]) -> Operation:
        """Returns the costs of an operation of which each process sends a `share` of the tensor."""
        latency = min(seconds)
        bandwidth = share * sizes[-1] / max(seconds[-1] - latency, 1e-12)
        rates = [share * size / time for size, time in zip(sizes, seconds, strict=True)]
        return Operation(seconds, rates, latency, bandwidth, latency * bandwidth / share)


@dataclass(frozen=True, kw_only=True)
class Collectives(Report):
    """The costs of all operations."""

    FILE = "collectives"
    sizes: Sequence[int]
    operations: Mapping[str, Operation]
    backend: str
    device: str
    processes: int
    command: str

    def page(self) -> Page:
        """Returns what each operation costs, and its times and bandwidths by size."""
        lines = {_shown(name): (self.sizes, each.seconds) for name, each in self.operations.items()}
        chart = line_chart(lines, title=TIMES, x_label="bytes", y_label="seconds", log=True, log_x=True)
        how = (
            f"{self.processes} processes on {self.device}, through {self.backend}. Times are medians over rounds, and "
            "a round lasts until its last process has finished. Bytes are those of the whole tensor. Bandwidth is what "
            "each process must send at least, per second (the bus bandwidth of nccl-tests), so it can be compared with "
            "that of the network."
        )
        sections = [
            Section("Result", [self._summary(), Text(how)]),
            Section("Sizes", [Figure(TIMES, chart, file="collectives.svg"), *self._by_size()]),
        ]
        lead = "What exchanging tensors costs here, from 1 KiB to 64 MiB."
        return Page(f"Collective operations of {self.processes} processes", lead, sections)

    def on_terminal(self) -> list[Table]:
        """Returns the tables of times and of bandwidths, and what each operation costs."""
        return [*self._by_size(), self._summary()]

    def _by_size(self) -> list[Table]:
        every = self.operations.values()
        times = [[Cell(format_seconds(value), value) for value in each.seconds] for each in every]
        rates = [[Cell(_rate(value), value) for value in each.bytes_per_second] for each in every]
        sizes = [*map(bytes_cell, self.sizes)]
        header = ["bytes", *map(_shown, self.operations)]
        return [
            Table(header, [*zip(sizes, *columns, strict=True)], caption=caption)
            for caption, columns in ((TIMES, times), (BANDWIDTHS, rates))
        ]

    def _summary(self) -> Table:
        rows = [
            [
                _shown(name), Cell(format_seconds(each.latency), each.latency),
                Cell(_rate(each.bandwidth), each.bandwidth), bytes_cell(each.half_size), USES[name],
            ]
            for name, each in self.operations.items()
        ]  # fmt: skip
        return Table(["operation", "latency", "bandwidth", "mostly latency below", "for"], rows, caption="Result")


def _shown(name: str) -> str:
    return name.replace("_", "-")


def _rate(bytes_per_second: float) -> str:
    return f"{format_bytes(bytes_per_second)}/s"


def time_operations(launch: Launch, output: Path, command: str) -> Collectives:
    """Makes the folder for the results, and times the operations between the processes of a launch.

    Raises InputError if there are too few processes or GPUs, or the folder is not empty; RunError if the processes
    cannot reach each other.
    """
    launch.check(2)
    output_folder(output)
    try:
        measured = run_apart("collectives", {"sizes": SIZES}, launch, TIMEOUT_SECONDS)
    except RunError as error:
        raise RunError(f"these processes cannot exchange data: {error}") from error
    return report_of(measured, launch.processes, command)


def report_of(measured: Mapping[str, Any], processes: int, command: str) -> Collectives:
    """Returns the report of what `measure` returned for all `SIZES`."""
    seconds = measured["seconds"].items()
    operations = {name: Operation.of(each, factor(name, processes), SIZES) for name, each in seconds}
    return Collectives(
        sizes=SIZES, operations=operations, backend=measured["backend"], device=measured["device"],
        processes=processes, command=command,
    )  # fmt: skip
