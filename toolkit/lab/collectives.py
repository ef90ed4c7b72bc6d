"""Measures what collective operations cost, and shows it as tables, in words, and as a page."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from toolkit.base.console import format_bytes
from toolkit.base.files import write_json, write_text
from toolkit.distributed.collectives import objects_of_all
from toolkit.distributed.exchange import share_sent
from toolkit.document import render
from toolkit.document.blocks import Cell, Code, Figure, Section, Table, Text
from toolkit.document.charts import line_chart
from toolkit.document.svg import Drawing, sheet

SIZES = tuple(2**10 * 4**power for power in range(9))
"""Bytes of the tensors: 1 KiB to 64 MiB. Of a tensor that is split or gathered, these are the bytes of the whole."""
LEAST_ROUNDS, MOST_ROUNDS = 5, 50
SECONDS = 0.4
"""Time for each operation and size, within these numbers of rounds."""
WARM_UP = 2


def _all_reduce(whole: Tensor, part: Tensor) -> None:
    dist.all_reduce(whole)


def _all_gather(whole: Tensor, part: Tensor) -> None:
    dist.all_gather_into_tensor(whole, part)


def _reduce_scatter(whole: Tensor, part: Tensor) -> None:
    dist.reduce_scatter_tensor(part, whole)


def _broadcast(whole: Tensor, part: Tensor) -> None:
    dist.broadcast(whole, src=0)


OPERATIONS: dict[str, Callable[[Tensor, Tensor], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
}


def factor(operation: str, processes: int) -> float:
    """Returns the part of the tensor that each process sends at least: the factor of nccl-tests' bus bandwidth."""
    share = share_sent(processes)
    return {"all_reduce": 2 * share, "broadcast": 1.0}.get(operation, share)


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Times operations with every size in the group of the launched processes.

    Args:
        job: `sizes`: bytes of the tensors; `operations`: their names, if not all.

    Returns:
        `seconds`: by operation, those of each size, the median over rounds; a round lasts until its last process has
        finished. `backend` and `device`: what the processes use.
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


Found = Mapping[str, Any]
"""Contents of `collectives.json`."""
TIMES, BANDWIDTHS = "Time of each operation", "Bandwidth of each operation"
USES = {
    "all_reduce": "gradients of data parallelism, outputs of tensor parallelism",
    "all_gather": "weights of FSDP and ZeRO",
    "reduce_scatter": "gradients of FSDP and ZeRO",
    "broadcast": "weights at the start, batches of the first process",
}
"""What a run needs each operation for."""


def found_of(measured: Mapping[str, Any], sizes: Sequence[int], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what was found as JSON values.

    Time is a latency plus bytes by bandwidth (Hockney 1994): the shortest time, that of a small tensor, is the latency,
    and what the largest one takes beyond it gives the bandwidth.
    """
    operations = {}
    for name, seconds in measured["seconds"].items():
        share = factor(name, facts["processes"])
        latency = min(seconds)
        bandwidth = share * sizes[-1] / max(seconds[-1] - latency, 1e-12)
        operations[name] = {
            "seconds": seconds,
            "bytes_per_second": [share * size / time for size, time in zip(sizes, seconds, strict=True)],
            "latency": latency,
            "bandwidth": bandwidth,
            "half_size": latency * bandwidth / share,
        }
    return {"sizes": list(sizes), "operations": operations, "backend": measured["backend"],
            "device": measured["device"], **facts}  # fmt: skip


def duration(seconds: float) -> str:
    """Returns a short time with three digits and a unit."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def tables(found: Found) -> list[Table]:
    """Returns the tables of times and of bandwidths."""
    operations = found["operations"]
    header = ["bytes", *map(_shown, operations)]

    def rows(key: str, show: Any) -> list[list[Any]]:
        columns = [[Cell(show(value), value) for value in each[key]] for each in operations.values()]
        return [[Cell(format_bytes(size), size), *cells] for size, *cells in zip(found["sizes"], *columns, strict=True)]

    return [
        Table(header, rows("seconds", duration), caption=TIMES),
        Table(header, rows("bytes_per_second", lambda rate: f"{format_bytes(rate)}/s"), caption=BANDWIDTHS),
    ]


def summary(found: Found) -> Table:
    """Returns the table of what each operation costs."""
    rows = [
        [
            _shown(name), Cell(duration(each["latency"]), each["latency"]),
            Cell(f"{format_bytes(each['bandwidth'])}/s", each["bandwidth"]),
            Cell(format_bytes(each["half_size"]), each["half_size"]), USES[name],
        ]
        for name, each in found["operations"].items()
    ]  # fmt: skip
    return Table(["operation", "latency", "bandwidth", "mostly latency below", "for"], rows, caption="Result")


def _shown(name: str) -> str:
    return name.replace("_", "-")


def drawing(found: Found) -> Drawing:
    """Returns the times as a drawing."""
    lines = {_shown(name): (found["sizes"], each["seconds"]) for name, each in found["operations"].items()}
    return line_chart(lines, title=TIMES, x_label="bytes", y_label="seconds", log=True, log_x=True)


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    figure = Figure(TIMES, drawing(found), file="collectives.svg")
    return [
        Section("Result", [summary(found), Text(_how(found))]),
        Section("Sizes", [figure, *tables(found)]),
        Section("Command", [Code(found["command"], "bash")]),
    ]


def _how(found: Found) -> str:
    return (
        f"{found['processes']} processes on {found['device']}, through {found['backend']}. Times are medians over "
        "rounds, and a round lasts until its last process has finished. Bytes are those of the whole tensor. Bandwidth "
        "is what each process must send at least, per second (the bus bandwidth of nccl-tests), so it can be compared "
        "with that of the network."
    )


def write(found: Found, folder: Path) -> None:
    """Writes `collectives.json`, the page as HTML and Markdown, and the chart."""
    title = f"Collective operations of {found['processes']} processes"
    lead = "What exchanging tensors costs here, from 1 KiB to 64 MiB."
    write_json(folder / "collectives.json", found)
    write_text(folder / "collectives.svg", sheet([drawing(found)]))
    write_text(folder / "collectives.md", render.render_markdown(title, lead, sections(found)))
    write_text(folder / "collectives.html", render.render_html(title, lead, sections(found)))
