"""Profiles steps of a training; called in separate processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from toolkit.distributed.collectives import objects_of_all
from toolkit.lab.jobs.training import trained
from toolkit.lab.profile.loader import time_loading
from toolkit.lab.profile.machine import compute_dtype, matmul_rate, smallest_operation
from toolkit.lab.profile.measure import Shape, Stages
from toolkit.lab.profile.trace import UNFUSED, Operation, Reading, read_trace
from toolkit.models.unpadded.families import DROPOUTS, NothingToGain, Refused, coverage
from toolkit.system.limits import usable_cores

if TYPE_CHECKING:
    from toolkit.api.run import Run

MOST_OPERATIONS = 15
"""Operations that are returned, those with the most time."""


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains, and measures some of the steps.

    Args:
        job: as for `toolkit.lab.jobs.training.trained`, and `skipped` and `steps` (see `Stages`), and `trace`, the file
            for the trace of the first rank.

    Returns:
        `ranks`: what each process measured of its steps (`_of_rank`); `trace`: what the trace of the first one says,
        per step; `loading`, `attention`, `memory` and `machine` of the first one.
    """
    stages = Stages(job["skipped"], job["steps"])

    def changed(run: Run) -> Run:
        stages.run = run
        return run

    with trained(job, stages, changed) as (run, result):
        ranks = objects_of_all(_of_rank(run, stages))
        rates = objects_of_all(_matmul_rate(run))
        if not run.accelerator.is_main_process:
            return {}
        stages.write_trace(Path(job["trace"]))
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


def _matmul_rate(run: Run) -> float:
    parameters = next(run.model.parameters()).dtype
    return matmul_rate(run.accelerator.device, compute_dtype(run.accelerator.mixed_precision, parameters))


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
