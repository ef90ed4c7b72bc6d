"""Compares an exported model with its run: outputs, metrics, speed and size."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.api.batch import EvalData, looked_up
from toolkit.api.run import best_metric, overall_scores
from toolkit.base.console import format_bytes, format_value
from toolkit.base.errors import InputError, RunError
from toolkit.data.batching.batches import evaluation_loader
from toolkit.deploy.export.graph import OUTPUTS
from toolkit.deploy.trained import TrainedRun
from toolkit.document.render import table
from toolkit.engine.evaluation import evaluate

REPEATS = 3
"""Passes of each model over a batch, of which the fastest counts: other work on the machine only adds to the time."""
MASKED = 1e30
"""Outputs beyond this are masks, which some models add at padding, and say nothing about the size of outputs."""
WEIGHTS = (".safetensors", ".onnx", ".data", ".pt2")
"""Endings of the files of an export that hold the model."""


@dataclass(frozen=True)
class Pair:
    """A figure of the run's model and of the export."""

    run: float
    export: float

    def as_json(self) -> dict[str, float]:
        """Returns both by name."""
        return {"run": self.run, "export": self.export}

    def shown(self, name: str, show: Callable[[float], str]) -> tuple[str, str, str]:
        """Returns the name and both figures as text."""
        return name, show(self.run), show(self.export)


@dataclass(frozen=True)
class Parity:
    """How an exported model differs from the run's, on labelled rows, both in float32 on this CPU."""

    format: str  # name of the format
    rows: int  # number of rows
    difference: float  # largest absolute difference of an output
    largest: float  # largest absolute output of the run's model, without masks
    # largest allowed difference, relative to `largest` if that is above 1; None if it is only stated
    tolerance: float | None
    metric: str  # name of the metric that selects the best model
    metrics: Mapping[str, Pair]  # the loss and the metrics of both, without prefix
    speed: Pair  # rows per second of both
    batch_size: int  # largest number of rows of a batch
    threads: int  # number of threads
    size: Pair  # bytes of both models' weights; of the run's in float32
    notes: Mapping[str, Any] = field(default_factory=dict)  # further facts about the format

    @property
    def allowed(self) -> float | None:
        """Largest allowed absolute difference."""
        return None if self.tolerance is None else self.tolerance * max(1.0, self.largest)

    def check(self) -> None:
        """Raises a RunError if the difference is larger than allowed, infinite, or not a number."""
        allowed = self.allowed
        if math.isfinite(self.difference) and (allowed is None or self.difference <= allowed):
            return
        most = "it must be finite" if allowed is None else f"at most {allowed:.1e} is allowed"
        raise RunError(
            f"the {self.format} export differs from the run: an output by {self.difference:.1e} on {self.rows} "
            f"rows, {most} (outputs go up to {self.largest:.3g}); nothing is written"
        )

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `parity.json`."""
        return {
            "format": self.format,
            "rows": self.rows,
            "largest_difference": self.difference,
            "largest_output": self.largest,
            "allowed_difference": self.allowed,
            "metric": self.metric,
            "metric_change": self.metrics[self.metric].export - self.metrics[self.metric].run,
            "metrics": {name: pair.as_json() for name, pair in self.metrics.items()},
            "rows_per_second": self.speed.as_json(),
            "batch_size": self.batch_size,
            "threads": self.threads,
            "bytes": self.size.as_json(),
            **self.notes,
        }

    def lines(self) -> list[tuple[str, str, str]]:
        """Returns name, value of the run and value of the export, as text; the run's metric first."""
        names = sorted(self.metrics, key=lambda name: (name != self.metric, name == "loss"))
        return [
            *(self.metrics[name].shown(name, format_value) for name in names),
            self.speed.shown("rows per second", "{:,.4g}".format),
            self.size.shown("size", format_bytes),
        ]

    def markdown(self) -> str:
        """Returns the section of the model card, without its heading."""
        allowed = "" if self.allowed is None else f", at most {self.allowed:.1e} is allowed"
        layers = self.notes.get("quantised_layers")
        quantised = "" if layers is None else f" {layers} linear layers have 8-bit weights."
        return (
            f"{table(['', 'run', self.format], [list(each) for each in self.lines()])}\n\n"
            f"Compared on {self.rows} labelled rows, in float32 on a CPU with {self.threads} threads, in batches of up "
            f"to {self.batch_size} rows. Largest difference of an output: {self.difference:.1e}{allowed}.{quantised}"
        )


def measure(
    run: TrainedRun,
    exported: nn.Module,
    data: EvalData,
    folder: Path,
    name: str,
    tolerance: float | None,
    notes: Mapping[str, Any],
) -> Parity:
    """Compares an exported model, loaded back, with that of a run, both on the CPU in float32."""
    difference, largest, speed = compared(run, exported, data)
    before = evaluate(run, run.model, data, "run").metrics
    after = evaluate(run, exported, data, name).metrics
    metric = best_metric(run.cfg, run.task).name.removeprefix("eval_")
    shown = {metric, *(score.name for score in overall_scores(run.task))}
    tensors = (*run.model.parameters(), *run.model.buffers())
    in_memory = sum({each.data_ptr(): each.nbytes for each in tensors}.values())  # each counted once
    in_files = sum(file.stat().st_size for file in folder.iterdir() if file.suffix in WEIGHTS)
    return Parity(
        name, len(data.rows), difference, largest, tolerance,
        metric=metric,
        metrics={each: Pair(before[each], after[each]) for each in before if each in shown},
        speed=speed, batch_size=run.cfg.eval.per_device_eval_batch_size, threads=torch.get_num_threads(),
        size=Pair(in_memory, in_files), notes=notes,
    )  # fmt: skip


@torch.no_grad()
def compared(run: TrainedRun, exported: nn.Module, data: EvalData) -> tuple[float, float, Pair]:
    """Returns the largest difference, the largest output, and the rows per second of both, measured in turn."""
    run.model.eval()
    seconds, rows, difference, largest = [0.0, 0.0], 0, 0.0, 0.0
    for batch in evaluation_loader(data.features, run.task, run.processor, run.cfg, run.mesh):
        passes = [partial(run.task.forward, model, looked_up(batch)) for model in (run.model, exported)]
        before, after = (each() for each in passes)  # the first passes, which also prepare buffers
        for place, each in enumerate(passes):
            seconds[place] += min(_seconds(each) for _ in range(REPEATS))
        rows += len(batch["row_ids"])
        if isinstance(before, Tensor):  # of a task with a forward pass of its own
            before, after = {OUTPUTS[0]: before}, {OUTPUTS[0]: after}
        names = [name for name in OUTPUTS if name in before]
        if not names:
            raise InputError(f"the model returns none of {', '.join(OUTPUTS)}, so its export cannot be compared")
        for name in names:
            difference = _greater(difference, largest_difference(before[name], after[name]))
            largest = _greater(largest, before[name].where(before[name].abs() < MASKED, 0.0).abs().max())
    return difference, largest, Pair(*(rows / each for each in seconds))


def largest_difference(one: Tensor, other: Tensor) -> Tensor:
    """Returns the largest absolute difference; NaN if a number is NaN, infinite if the shapes differ."""
    if one.shape != other.shape:
        return torch.tensor(math.inf)
    return torch.where(one == other, 0.0, one - other).abs().max()  # equal infinities do not differ


def _seconds(compute: Callable[[], Any]) -> float:
    start = time.perf_counter()
    compute()
    return time.perf_counter() - start


def _greater(one: float, other: Tensor) -> float:
    """Returns the greater number; NaN if one of them is."""
    return float(torch.maximum(torch.tensor(one, dtype=torch.float64), other.double()))
