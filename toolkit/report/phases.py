"""The section of a report about time: the phases of training, and what their seconds mean on this device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.api.run import Run
from toolkit.base.console import format_duration
from toolkit.document.blocks import Block, Cell, Table, Text
from toolkit.system.phases import OTHER, PHASES

MEANINGS = {**PHASES, OTHER: "all else, for instance the code between these phases"}
"""The phases, and what the report says about them."""
ON_GPUS = (
    "The clock is that of the CPU, which hands work over to the GPU and goes on. So forward, backward and update are "
    "the time to hand it over, and the wait for the GPU is in clip, where the norm of the gradient is read. "
    "`toolkit profile` waits for the GPU after each phase."
)


def time_section(run: Run, seconds: Mapping[str, float]) -> list[Block]:
    """Returns the content of the section: `time_table`, and what the numbers do not show."""
    table = time_table(seconds)
    if table is None:
        return []
    notes = []
    if run.mesh.size > 1:
        notes = ["Times are those of the main process.", run.strategy.hidden_exchange]
    if run.accelerator.device.type != "cpu":
        notes.append(ON_GPUS)
    about = "Time since training was started or resumed, until the model was complete."
    return [Text(about), table, *(Text(note) for note in notes if note)]


def time_table(seconds: Mapping[str, float]) -> Table | None:
    """Returns a table of the phases that took time, in the order of a step; None if none did.

    Args:
        seconds: seconds by phase.
    """
    total = sum(seconds.values())
    rows: list[list[Any]] = [
        [name, Cell(format_duration(seconds[name]), seconds[name]), share_cell(seconds[name] / total), meaning]
        for name, meaning in MEANINGS.items()
        if seconds.get(name)
    ]
    return Table(["phase", "time", "share", "what it is"], rows, sortable=True) if rows else None


def share_cell(share: float) -> Cell:
    """Returns a share of a whole as a cell, shaded by its size."""
    return Cell(f"{share:.1%}", share, shade=share)
