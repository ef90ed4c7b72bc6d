"""Records the steps of a training: rows, metrics, random state and gradients."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from toolkit.api.training import Callback
from toolkit.base.files import sha256
from toolkit.models.load import batch_dependence

DEPENDENCE = "batch-dependence.json"
"""File with the reasons why a model's rows depend on each other, beside the gradients."""
COORDINATES = 2**20
"""Maximum number of recorded coordinates of a gradient, evenly spaced over all parameters."""


class Trace(Callback):
    """Writes a trace, one file per rank; `kill` is the step, or None and the epochs, after which it kills itself."""

    def __init__(self, folder: Path, gradients: bool, kill: Sequence[Any] | None) -> None:
        self._folder, self._gradients, self._kill = folder, gradients, kill
        self._rank = int(os.environ.get("RANK", "0"))

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = (self._folder / f"rank-{self._rank}.jsonl").open("a")
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def before_update(self) -> None:
        """Records the gradient of a step before the optimizer uses it."""
        self.gradient(self.training.state.step + 1, self.training.bare_model)

    def gradient(self, step: int, model: nn.Module) -> None:
        """Records the gradient of a model at a step."""
        if not self._gradients or self._rank > 0:
            return
        (self._folder / DEPENDENCE).write_text(json.dumps(batch_dependence(model)))
        gradients = [p.grad.detach().flatten() for p in model.parameters() if p.grad is not None]
        stride = max(1, sum(len(gradient) for gradient in gradients) // COORDINATES)
        sample = np.concatenate([gradient[::stride].double().cpu().numpy() for gradient in gradients])
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
        np.savez(self._folder / f"gradient-{step}.npz", sample=sample, norm=norm)

    def after_step(self, record: Mapping[str, float]) -> None:
        """Records a step, and kills the process if it is the step for that."""
        step = self.training.state.step
        rows = [[int(row) for row in batch["row_ids"] if row >= 0] for batch in self.training.window]
        # The state after the step shows whether two runs drew the same random numbers.
        state = sha256(torch.get_rng_state().numpy().tobytes())[:16]
        self._file.write(json.dumps({"step": step, "rows": rows, "random": state, **record}) + "\n")
        self._file.flush()
        if self._kill is not None:
            at, after = self._kill
            if step == at or (at is None and record["epoch"] >= after):
                os.kill(os.getpid(), signal.SIGKILL)


def read_trace(folder: Path, training: str, rank: int = 0) -> list[dict[str, Any]]:
    """Reads the steps of one rank, in training order."""
    text = (folder / "traces" / training / f"rank-{rank}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def read_gradients(folder: Path, training: str) -> dict[int, tuple[float, np.ndarray]]:
    """Reads the norm and the sampled coordinates of a training's gradients, by step."""
    found = {}
    for file in (folder / "traces" / training).glob("gradient-*.npz"):
        with np.load(file) as arrays:
            found[int(file.stem.split("-")[1])] = float(arrays["norm"]), arrays["sample"]
    return dict(sorted(found.items()))


def window(folder: Path, training: str, processes: int, index: int) -> list[int]:
    """Returns the rows of one window over all ranks, sorted."""
    traces = (read_trace(folder, training, rank) for rank in range(processes))
    return sorted(row for trace in traces for part in trace[index]["rows"] for row in part)


def first_difference(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], names: Mapping[str, str]
) -> str | None:
    """Returns a sentence about the first difference of two traces in `names`, causes first with likely reasons."""
    for left, right in zip(one, other, strict=False):
        for name, points_to in names.items():
            if left[name] != right[name]:
                return f"step {left['step']}: {name.replace('_', ' ')} {left[name]} against {right[name]}: {points_to}"
    if len(one) != len(other):
        return f"{len(one)} steps against {len(other)}: one of them ended early"
    return None


def weight_difference(one: Path, other: Path, file: str, tolerance: float = 0.0) -> str | None:
    """Returns a sentence about the first tensor that differs between two safetensors files by more than `tolerance`."""
    from safetensors.torch import load_file

    left, right = load_file(one / file), load_file(other / file)
    if left.keys() != right.keys():
        return f"{file}: only one of the two has {', '.join(sorted(left.keys() ^ right.keys())[:3])}"
    for name, value in left.items():
        largest = (value.double() - right[name].double()).abs().max()
        if not torch.equal(value, right[name]) and not largest <= tolerance:
            return f"{file}: {name} differs by up to {largest:.2g}"
    return None
