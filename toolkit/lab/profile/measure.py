"""Times, traces and counts steps of a training, one after the other: each would change what the others measure."""

from __future__ import annotations

import cProfile
import pstats
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.autograd.profiler import record_function
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from toolkit.api.batch import IGNORE_INDEX, Batch
from toolkit.api.run import Run
from toolkit.api.training import Callback
from toolkit.data.batching.batches import Windows
from toolkit.distributed.collectives import objects_of_all
from toolkit.engine.training import training_batches
from toolkit.footprint.simulate import DTYPES
from toolkit.lab.jobs.training import trained
from toolkit.lab.profile.trace import RANGE, UNFUSED, Operation, Reading, read_trace
from toolkit.models.unpadded.families import DROPOUTS, NothingToGain, Refused, coverage
from toolkit.system.limits import usable_cores
from toolkit.system.phases import WHOLE, active_clock


class FlopCount(TorchDispatchMode):
    """Counts this process's operations, unlike torch's FlopCounterMode also if tensors are split over processes."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and counts it if there is a formula for it."""
        named, higher = kwargs or {}, isinstance(func, HigherOrderOperator)
        if not higher and any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the operations on local tensors come here afterwards
        result = func(*args, **named)
        formula = flop_registry.get(func if higher else func._overloadpacket)
        if formula is not None:
            self.total += int(formula(*args, **named, out_val=result))
        return result


class Stages(Callback):
    """After `skipped` steps, times `steps` by phase, traces as many, and counts the operations of one."""

    def __init__(self, skipped: int, steps: int) -> None:
        self.skipped, self.steps = skipped, steps
        self.seconds: dict[str, float] = {}
        """Seconds of each phase in all timed steps."""
        self.shapes: list[Shape] = []
        """Sizes of all micro-batches of the timed steps."""
        self.counted: list[Shape] = []
        """The same of the step whose operations were counted."""
        self.flops = FlopCount()
        self.hidden_exchange = 0.0
        """Seconds of a timed step in which DDP's backward pass had nothing to do but wait for other processes."""
        self.profiler = profile(profile_memory=True)
        self._range = ExitStack()
        self._waits: list[float] = []

    @property
    def last(self) -> int:
        """Number of steps that the run must have."""
        return self.skipped + 2 * self.steps + 1

    def before_update(self) -> None:
        """Notes how long the exchange of a timed step's gradient took beyond its computation."""
        wrapped: Any = self.training.model
        if self._is_timed(self.training.state.step + 1) and isinstance(wrapped, DistributedDataParallel):
            facts = wrapped._get_ddp_logging_data()
            waits = facts.get("backward_comm_time", 0) - facts.get("backward_compute_comm_overlap_time", 0)
            self._waits.append(max(0, waits) / 1e9)

    def after_step(self, record: Mapping[str, float]) -> None:
        """Ends a stage after its last step, and begins the next one."""
        step, batches = self.training.state.step, self.training.window
        if self._is_timed(step):
            self.shapes += [shape_of(batch) for batch in batches]
        if step == self.skipped:
            self._begin_timing()
        elif step == self.skipped + self.steps:
            self._end_timing()
            self._begin_tracing()
        elif step == self.skipped + 2 * self.steps:
            self._end_tracing()
            self.flops.__enter__()
        elif step == self.last:
            self.flops.__exit__(None, None, None)
            self.counted = [shape_of(batch) for batch in batches]

    def _is_timed(self, step: int) -> bool:
        return self.skipped < step <= self.skipped + self.steps

    def _begin_timing(self) -> None:
        wrapped: Any = self.training.model
        if isinstance(wrapped, DistributedDataParallel):
            wrapped._set_ddp_runtime_logging_sample_rate(1)
        if self.training.run.accelerator.device.type != "cpu":
            torch.accelerator.synchronize()
            _clock().watcher = lambda before, after: torch.accelerator.synchronize()
        self.seconds = _clock().seconds()

    def _end_timing(self) -> None:
        begun, now = self.seconds, _clock().seconds()
        self.seconds = {phase: now[phase] - begun[phase] for phase in now if phase not in WHOLE}
        self.hidden_exchange = sum(self._waits) / len(self._waits) if self._waits else 0.0

    def _begin_tracing(self) -> None:
        self.profiler.start()
        self._annotate("", _clock().phase)
        _clock().watcher = self._annotate

    def _end_tracing(self) -> None:
        _clock().watcher = None
        self._range.close()
        if self.training.run.accelerator.device.type != "cpu":
            torch.accelerator.synchronize()
        self.profiler.stop()

    def _annotate(self, before: str, after: str) -> None:
        """Ends the trace's range of a phase, and begins that of the next one."""
        self._range.close()
        self._range.enter_context(record_function(RANGE + after))


@dataclass(frozen=True)
class Shape:
    """The size of a micro-batch."""

    values: int  # numbers of its inputs
    positions: int  # positions of its sequences, of the source and of the target; 0 if its rows have no masks
    real: int  # those of them that are no padding
    rows: int  # its rows


def shape_of(batch: Batch) -> Shape:
    """Returns the size of a micro-batch."""
    inputs = {name: value for name, value in batch["inputs"].items() if isinstance(value, Tensor)}
    masks = [value for name, value in inputs.items() if name.endswith("attention_mask") and value.dim() == 2]
    real = [value != 0 for value in masks]
    if "decoder_input_ids" in inputs and "decoder_attention_mask" not in inputs:
        real.append(batch["labels"] != IGNORE_INDEX)
    return Shape(
        values=sum(value.numel() for value in inputs.values()),
        positions=sum(value.numel() for value in real),
        real=sum(int(value.sum()) for value in real),
        rows=int((batch["row_ids"] >= 0).sum()),
    )


def _clock() -> Any:
    clock = active_clock()
    assert clock is not None, "a step is part of a training"
    return clock


TOOLKIT = Path(__file__).resolve().parents[2]
LIBRARIES = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
LEAST_SHARE = 0.2
"""Share of the time in one function, from which it is named."""

Place: TypeAlias = tuple[str, int, str]
"""File, line and name of a function."""


@dataclass(frozen=True)
class Loading:
    """The time to load windows."""

    seconds: float  # of a window, in one process
    # the function of the recipe or the toolkit with the most time, its calls of libraries included; None if no function
    # has much of it
    function: str | None = None
    place: str | None = None  # its file and line
    function_seconds: float = 0.0  # its seconds of a window


def time_loading(run: Run, windows: int) -> Loading:
    """Loads the first windows of a finished run twice in this process: once timed, once with each call recorded."""
    made = Windows(*training_batches(run, workers=0))
    begun = time.perf_counter()
    count = sum(1 for _ in islice(made, windows))
    seconds = (time.perf_counter() - begun) / max(1, count)
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in islice(Windows(*training_batches(run, workers=0)), windows):
        pass
    profiler.disable()
    return slowest(profiler, seconds, max(1, count))


def slowest(profiler: cProfile.Profile, seconds: float, windows: int) -> Loading:
    """Returns the function with most of a profiler's time, scaled to the `seconds` of a window without it."""
    stats: dict[Place, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    spent: dict[Place, float] = {}
    for place, (_, _, own, _, _) in stats.items():
        if (owner := _owner(place, stats)) is not None:
            spent[owner] = spent.get(owner, 0.0) + own
    most = max(spent.values(), default=0.0)
    if not spent or most < LEAST_SHARE * sum(own for _, _, own, _, _ in stats.values()):
        return Loading(seconds)
    file, line, name = max(spent, key=lambda each: spent[each])
    return Loading(seconds, name, f"{Path(file).name}:{line}", min(most / windows, seconds))


def _owner(place: Place, stats: Mapping[Place, Any]) -> Place | None:
    """Returns the function that is not a library's on whose behalf a function mostly runs; None if there is none."""
    seen = set()
    while _is_library(place):
        seen.add(place)
        callers = {caller: times for caller, times in stats[place][4].items() if caller in stats and caller not in seen}
        if not callers:
            return None
        place = max(callers, key=lambda caller: callers[caller][3])
    return place


def _is_library(place: Place) -> bool:
    """Whether a function is built in, or from a library other than the toolkit."""
    file = Path(place[0])
    in_library = any(map(file.is_relative_to, LIBRARIES)) and not file.is_relative_to(TOOLKIT)
    return not file.is_absolute() or in_library


SIZE = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices, by type of device."""
ROUNDS, CALLS = 5, 1000


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Returns the floating-point operations per second of a product of two square matrices, the fastest of `ROUNDS`."""
    size = SIZE.get(device.type, 4096)
    one, other = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = min(_timed(device, lambda: torch.mm(one, other)) for _ in range(ROUNDS + 1))
    return 2 * size**3 / seconds


def smallest_operation(device: torch.device) -> float:
    """Returns the seconds of an operation on one number: no operation of a step takes less, however little it does."""
    number = torch.zeros(1, device=device)

    def repeated() -> None:
        for _ in range(CALLS):
            number.add_(1)

    with torch.no_grad():
        return min(_timed(device, repeated) for _ in range(ROUNDS)) / CALLS


def _compute_dtype(run: Run) -> torch.dtype:
    """Returns the type in which matrix products are computed; fp8 ones are compared with those in bfloat16."""
    return DTYPES.get(run.accelerator.mixed_precision, next(run.model.parameters()).dtype)


def _timed(device: torch.device, function: Callable[[], object]) -> float:
    """Returns the seconds of a call, with the device's work."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
    begun = time.perf_counter()
    function()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - begun


MOST_OPERATIONS = 15
"""Operations that are returned, those with the most time."""


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains the job of `toolkit.lab.jobs.training.trained`, and measures some of the steps.

    The job has `skipped` and `steps` (see `Stages`), and `trace`, the file for the trace of the first rank.

    Returns:
        `ranks`: the measurements of each process (`_of_rank`); `trace`: the first one's trace, per step; `loading`,
        `attention`, `memory` and `machine` of the first one.
    """
    stages = Stages(job["skipped"], job["steps"])
    with trained(job, stages) as (run, result):
        ranks = objects_of_all(_of_rank(run, stages))
        rates = objects_of_all(matmul_rate(run.accelerator.device, _compute_dtype(run)))
        if not run.accelerator.is_main_process:
            return {}
        stages.profiler.export_chrome_trace(job["trace"])
        reading = read_trace(Path(job["trace"]))
        return {
            "ranks": [rank | {"matmul_rate": rate} for rank, rate in zip(ranks, rates, strict=True)],
            "trace": _per_step(reading, stages.steps),
            "loading": asdict(time_loading(run, stages.steps)),
            "attention": _attention(run, reading),
            "unpadded": run.unpadded,
            "can_leave_out_padding": run.unpadded or _can_leave_out_padding(run),
            "memory": result.memory.parameters + result.memory.optimizer_state,
            "machine": _machine(run),
        }


def _of_rank(run: Run, stages: Stages) -> dict[str, Any]:
    """Returns what this process measured: `seconds` of a step by phase, and sums over the timed steps."""
    values, counted = (sum(shape.values for shape in shapes) for shapes in (stages.shapes, stages.counted))
    return {
        "seconds": {phase: seconds / stages.steps for phase, seconds in stages.seconds.items()},
        "hidden_exchange": stages.hidden_exchange,
        # The counted step has other rows than the timed ones; operations grow nearly in proportion to inputs.
        "flops": stages.flops.total * values / (counted * stages.steps) if counted else 0.0,
        "counts": run.mesh.counts,
        **_sizes(stages.shapes, stages.steps),
    }


def _sizes(shapes: Sequence[Shape], steps: int) -> dict[str, float]:
    names = ("rows", "positions", "real")
    return {name: sum(getattr(shape, name) for shape in shapes) / steps for name in names}


def _per_step(reading: Reading, steps: int) -> dict[str, Any]:
    return {
        "operations": _top(reading.operations, steps),
        "kernels": _top(reading.kernels, steps),
        "leaves": reading.leaves / steps,
        "memory": {name: each | {"kept": each["kept"] // steps} for name, each in reading.memory.items()},
        "exchange_seconds": reading.exchange_seconds / steps,
        "busy_seconds": reading.busy_seconds / steps,
    }


def _top(operations: Mapping[str, Operation], steps: int) -> list[dict[str, Any]]:
    """Returns the operations with the most time; `share` is that of the time of all."""
    whole = sum(each.seconds for each in operations.values())
    top = sorted(operations.items(), key=lambda item: -item[1].seconds)[:MOST_OPERATIONS]
    return [
        {"name": name, "calls": each.calls / steps, "seconds": each.seconds / steps, "share": each.seconds / whole}
        for name, each in top
    ]


def _attention(run: Run, reading: Reading) -> dict[str, Any]:
    """Returns how attention is computed, and its share of the time of all operations if that is step by step."""
    config = run.model.config
    whole = sum(each.seconds for each in reading.operations.values())
    unfused = sum(each.seconds for name, each in reading.operations.items() if name in UNFUSED)
    fields = [name for name in DROPOUTS if isinstance(value := getattr(config, name, None), float) and value > 0]
    return {
        "implementation": getattr(config, "_attn_implementation", None),
        "can_be_fused": bool(getattr(type(run.model), "_supports_sdpa", False)),
        "dropout": fields[0] if fields else None,
        "share": unfused / whole if whole else 0.0,
    }


def _can_leave_out_padding(run: Run) -> bool:
    covered = coverage(run.model.config, run.cfg.model.attn_implementation)
    return not isinstance(covered, NothingToGain | Refused)


def _machine(run: Run) -> dict[str, Any]:
    device = run.accelerator.device
    return {
        "device": device.type,
        "gpus": torch.cuda.device_count(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "smallest_operation": smallest_operation(device),
        "precision": run.accelerator.mixed_precision,
    }
