"""What a training did, step by step: rows, figures, random numbers, gradients."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from toolkit.models.load import batch_dependence

if TYPE_CHECKING:
    from torch import nn

    from toolkit.api.task import Batch

DEPENDENCE = "batch-dependence.json"
"""File with the reasons why a model's rows depend on each other, beside the gradients."""
COORDINATES = 2**20
"""Most coordinates of a gradient that are kept, evenly spaced over all parameters."""


class Trace:
    """Writes a trace, a file per rank; an observer of runs, and a context manager.

    Args:
        folder: where it goes.
        gradients: whether gradients are kept, on the first rank.
        kill: the step at whose end this process kills itself (or None), and otherwise the epochs after which it does;
            None for neither.
    """

    def __init__(self, folder: Path, gradients: bool, kill: Sequence[Any] | None) -> None:
        self._folder, self._gradients, self._kill = folder, gradients, kill
        self._rank = int(os.environ.get("RANK", "0"))

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = (self._folder / f"rank-{self._rank}.jsonl").open("a")
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def gradient(self, step: int, model: nn.Module) -> None:
        """Keeps the gradient that a step is about to use."""
        if not self._gradients or self._rank > 0:
            return
        (self._folder / DEPENDENCE).write_text(json.dumps(batch_dependence(model)))
        gradients = [p.grad.detach().flatten() for p in model.parameters() if p.grad is not None]
        stride = max(1, sum(len(gradient) for gradient in gradients) // COORDINATES)
        sample = np.concatenate([gradient[::stride].double().cpu().numpy() for gradient in gradients])
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
        np.savez(self._folder / f"gradient-{step}.npz", sample=sample, norm=norm)

    def step(self, step: int, batches: Sequence[Batch], record: Mapping[str, float]) -> None:
        """Writes down a step, and ends the process if it is the one for that."""
        import torch

        rows = [[int(row) for row in batch["row_ids"] if row >= 0] for batch in batches]
        # What the step drew is seen in the state that it left.
        state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:16]
        self._file.write(json.dumps({"step": step, "rows": rows, "random": state, **record}) + "\n")
        self._file.flush()
        if self._kill is not None:
            at, after = self._kill
            if step == at or (at is None and record["epoch"] >= after):
                os.kill(os.getpid(), signal.SIGKILL)


def read_trace(folder: Path, training: str, rank: int = 0) -> list[dict[str, Any]]:
    """Reads one rank's steps, in the order in which they were done."""
    text = (folder / "traces" / training / f"rank-{rank}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def read_gradients(folder: Path, training: str) -> dict[int, tuple[float, np.ndarray]]:
    """Reads norm and sample of a training's gradients, by step."""
    found = {}
    for file in (folder / "traces" / training).glob("gradient-*.npz"):
        with np.load(file) as arrays:
            found[int(file.stem.split("-")[1])] = float(arrays["norm"]), arrays["sample"]
    return dict(sorted(found.items()))


def window(folder: Path, training: str, processes: int, index: int) -> list[int]:
    """Returns the rows of one window over all ranks, sorted."""
    return sorted(
        row for rank in range(processes) for part in read_trace(folder, training, rank)[index]["rows"] for row in part
    )


def first_difference(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], names: Mapping[str, str]
) -> str | None:
    """Says where two traces part.

    Args:
        one: steps.
        other: steps.
        names: what is compared, and what a difference in it points to; in the order of cause and effect.

    Returns:
        A sentence about the first step that differs, or None.
    """
    for left, right in zip(one, other, strict=False):
        for name, points_to in names.items():
            if left[name] != right[name]:
                return f"step {left['step']}: {name.replace('_', ' ')} {left[name]} against {right[name]}: {points_to}"
    if len(one) != len(other):
        return f"{len(one)} steps against {len(other)}: one of them ended early"
    return None


def weight_difference(one: Path, other: Path, file: str) -> str | None:
    """Says which tensor of two safetensors files differs first, or None if they hold the same bits."""
    import torch
    from safetensors.torch import load_file

    left, right = load_file(one / file), load_file(other / file)
    if left.keys() != right.keys():
        return f"{file}: other tensors: {', '.join(sorted(left.keys() ^ right.keys())[:3])}"
    for name, value in left.items():
        if not torch.equal(value, right[name]):
            most = (value.double() - right[name].double()).abs().max()
            return f"{file}: {name} differs by up to {most:.2g}"
    return None
