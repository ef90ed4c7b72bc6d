"""The section of a report about memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.api.run import Run
from toolkit.base.console import format_bytes
from toolkit.document.blocks import Block, Cell, Table, Text
from toolkit.system.memory import MEMORY, MemoryUse

PASSING = ("rest", "train_peak")
"""Parts of `MEMORY` that exist during a step only; on a CPU they are measured as memory of the process."""


def holds_all(run: Run) -> bool:
    """Returns whether each process holds the complete model and optimizer, of which the memory is predicted."""
    return not run.mesh.is_split and run.cfg.parallel.zero_stage is None


def memory_section(run: Run, memory: MemoryUse, predicted: Mapping[str, int] | None) -> list[Block]:
    """Returns the content of the section: `memory_table`, and what cannot be compared."""
    notes = []
    if not holds_all(run):
        notes.append("The model or its optimizer is split over the processes; no prediction is shown for that.")
    elif predicted is not None and run.accelerator.device.type == "cpu":
        notes.append(
            "On a CPU, activations are measured as memory of the process, which includes what libraries allocate and "
            "keep; they are predicted as tensors only, so no ratio is shown."
        )
    return [*memory_table(memory, predicted, run.accelerator.device.type), *map(Text, notes)]


def memory_table(memory: MemoryUse, predicted: Mapping[str, int] | None = None, device: str = "cuda") -> list[Block]:
    """Returns a table of measured and predicted memory by part.

    Args:
        memory: measured bytes.
        predicted: predicted bytes by the names of `MEMORY`, may be incomplete; None without a prediction.
        device: type of the device.
    """
    rows: list[list[Any]] = []
    for part, words in MEMORY.items():
        count = getattr(memory, part)
        row: list[Any] = [words, _bytes(count)]
        if predicted is not None:
            guess = predicted.get(part)
            compared = guess is not None and count and (device != "cpu" or part not in PASSING)
            row += [None if guess is None else _bytes(guess), guess / count if compared else None]
        rows.append(row)
    header = ["part", "measured", *(["predicted", "predicted / measured"] if predicted is not None else [])]
    return [
        Text(
            f"Memory of the main process above the {format_bytes(memory.baseline)} in use before the model was "
            f"built; its peak was {format_bytes(memory.peak)} in total, including evaluations and rows."
        ),
        Table(header, rows),
    ]


def _bytes(count: int) -> Cell:
    return Cell(format_bytes(count), count)
