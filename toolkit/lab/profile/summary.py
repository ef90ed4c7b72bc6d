"""What was measured on all processes, as the figures of `profile.json`."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

Found = Mapping[str, Any]
"""Contents of `profile.json`."""


def found_of(measured: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of a profile, without advice.

    Args:
        measured: the result of `toolkit.lab.profile.worker.measure`.
        facts: further facts.
    """
    ranks, trace = measured["ranks"], measured["trace"]
    seconds = {phase: fmean(rank["seconds"][phase] for rank in ranks) for phase in ranks[0]["seconds"]}
    step = sum(seconds.values())
    counting = [rank for rank in ranks if rank["counts"]]
    return {
        "phases": {phase: {"seconds": each, "share": each / step} for phase, each in seconds.items()},
        "step_seconds": step,
        "rows_per_second": sum(rank["rows"] for rank in counting) / step,
        "memory": {"before": measured["memory"], "phases": trace["memory"]},
        "operations": trace["operations"],
        "kernels": trace["kernels"],
        "launches": _launches(measured, step),
        "flops": _flops(ranks, step),
        "padding": _padding(measured, counting),
        "loading": measured["loading"],
        "exchange": _exchange(ranks, trace, step),
        "attention": measured["attention"],
        "machine": measured["machine"],
        "processes": len(ranks),
        **facts,
    }


def _launches(measured: Mapping[str, Any], step: float) -> dict[str, Any]:
    """Returns how much of a step its operations would take if each had nothing to compute."""
    leaves, smallest = measured["trace"]["leaves"], measured["machine"]["smallest_operation"]
    on_gpu = measured["machine"]["device"] != "cpu"
    return {
        "operations": leaves,
        "smallest_seconds": smallest,
        "share": leaves * smallest / step,
        "busy": measured["trace"]["busy_seconds"] / step if on_gpu else None,
    }


def _flops(ranks: list[Mapping[str, Any]], step: float) -> dict[str, Any]:
    """Returns the operations of a step on all processes, and how they compare with matrix products alone."""
    flops, rate = (sum(rank[name] for rank in ranks) for name in ("flops", "matmul_rate"))
    return {"step": flops, "second": flops / step, "matmul_second": rate, "utilisation": flops / step / rate}


def _padding(measured: Mapping[str, Any], counting: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the share of padding among the positions of all rows; None if they have no masks."""
    positions, real = (sum(rank[name] for rank in counting) for name in ("positions", "real"))
    return {
        "share": 1 - real / positions if positions else None,
        "computed": not measured["unpadded"],
        "can_be_left_out": measured["can_leave_out_padding"],
    }


def _exchange(ranks: list[Mapping[str, Any]], trace: Mapping[str, Any], step: float) -> dict[str, Any]:
    """Returns the shares of a step in which processes did nothing but exchange, and in which any exchange went on.

    The process that comes last waits for nobody: what the others take longer than it is waiting.
    """
    own = [rank["seconds"]["exchange"] + rank["hidden_exchange"] for rank in ranks]
    return {
        "share": fmean(own) / step,
        "waiting": (fmean(own) - min(own)) / step,
        "in_flight": trace["exchange_seconds"] / step,
    }
