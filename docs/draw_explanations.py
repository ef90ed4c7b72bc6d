"""Draws a window, the memory of a step, and a resume for docs/concepts.md, docs/plan.md and docs/checkpoints.md.

python docs/draw_explanations.py [--measure]

The rows are those of the toolkit's own order of rows. The memory is that of docs/memory.json, which `--measure` writes
with `toolkit plan`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.base.console import format_bytes
from toolkit.data.batching.order import Order
from toolkit.document.charts import axis
from toolkit.document.svg import LETTER, WIDTH, Drawing, coloured, sheet, text

DOCS = Path(__file__).resolve().parent
PICTURES, MEMORY = DOCS / "images", DOCS / "memory.json"
SPLITS = {
    "1 process, batch 8": (8, 1, 1),
    "1 process, batch 2, accumulation 4": (2, 4, 1),
    "2 processes, batch 2, accumulation 2": (2, 2, 2),
    "4 processes, batch 2": (2, 1, 4),
}
"""Batch size, accumulation and processes, by title."""
ROWS, CELL = 20, 20
MODEL = ("model.from_config.num_hidden_layers=8", "model.from_config.hidden_size=256", "task.block_size=64",
         "model.from_config.intermediate_size=1024", "train.per_device_train_batch_size=16",
         "train.global_batch_size=16")  # fmt: skip
SAVINGS = {
    "AdamW, float32, micro-batch of 16": (),
    "train.mixed_precision=bf16": ("train.mixed_precision=bf16",),
    "train.activation_checkpointing=full": ("train.activation_checkpointing=full",),
    "micro-batches of 4": ("train.per_device_train_batch_size=4",),
    "train.optim=adafactor": ("train.optim=adafactor",),
}
"""Settings of each bar, by its title."""
PARTS = {"parameters": "weights", "gradients": "gradients", "optimizer_state": "optimizer state",
         "weight_copies": "weights in bf16", "activations": "activations",
         "working": "logits, working memory"}  # fmt: skip


def box(series: int, x: float, y: float, width: float, label: str = "", faint: bool = False) -> str:
    """Returns a cell with a label in the middle."""
    opacity = 0.08 if faint else 0.3
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{CELL - 2}"'
    drawn = coloured(series, f'<rect {size} rx="2" fill-opacity="{opacity}" stroke-width="0.8"/>')
    return drawn + text(label, x + width / 2, y + 14, "middle", "ink")


def order(batch: int, accumulation: int, processes: int) -> Order:
    """Returns the order of the rows that are drawn."""
    return Order(num_rows=ROWS, batch_size=batch, accumulation=accumulation, data_size=processes, seed=42)


def window() -> Drawing:
    """Draws two windows, of which the second is short, in several splits."""
    last = order(8, 1, 1).windows_per_epoch - 1
    parts = [
        text("rows of a step", 2, 14, kind="ink"),
        text("first step", 100, 34),
        text("last step of an epoch", 290, 34),
    ]
    top = 56.0
    for title, split in SPLITS.items():
        rows = order(*split)
        parts.append(text(title, 2, top, kind="ink"))
        top += 8
        for rank in range(split[2]):
            if split[2] > 1:
                parts.append(text(f"process {rank}", 2, top + 14))
            for index, left in ((0, 100.0), (last, 290.0)):
                across = left
                for batch in rows.micro_batches(0, index, rank):
                    cells = [str(row) for row in batch] or ["-"]
                    parts += [
                        box(rank, across + CELL * i, top, CELL - 2, cell, cell == "-") for i, cell in enumerate(cells)
                    ]
                    across += CELL * len(cells) + 5
            top += CELL
        top += 22
    parts.append(text("gaps: micro-batches; -: a micro-batch without rows", 2, top))
    return Drawing(parts, "The rows of two steps in several splits", round(top + 8))


def memory(found: Mapping[str, Mapping[str, int]]) -> Drawing:
    """Draws the parts of the memory of a step for several settings, and the peak."""
    parts, left, line = [], 2.0, 14
    for series, name in enumerate(PARTS.values()):
        if left + 33 + LETTER * len(name) > WIDTH:
            left, line = 2.0, line + 18
        parts += [box_of_part(series, left, line - 10, 12, 12), text(name, left + 17, line)]
        left += 33 + LETTER * len(name)
    totals = np.array([sum(each[part] for part in PARTS) for each in found.values()]) / 2**20
    scale, top = axis(totals, 2, WIDTH - 12, zero=True), line + 26.0
    for title, each in found.items():
        parts.append(text(f"{title}: peak {format_bytes(each['peak'])}", 2, top, kind="ink"))
        begin = 0.0
        for series, part in enumerate(PARTS):
            ends = scale.place(np.array([begin, begin := begin + each[part] / 2**20]))
            parts.append(box_of_part(series, ends[0], top + 6, ends[1] - ends[0], 16))
        peak = float(scale.place(np.array([each["peak"] / 2**20]))[0])
        parts.append(f'<path d="M{peak:.1f} {top + 3:.1f}v22" stroke="currentColor" stroke-width="2"/>')
        top += 46
    places = scale.place(np.array([value for value, _ in scale.ticks]))
    parts += [text(name, place, top, "middle") for place, (_, name) in zip(places, scale.ticks, strict=True)]
    parts.append(text("MiB; line: the peak (not all parts exist at the same time)", 2, top + 20))
    return Drawing(parts, "Memory of a step by part, for several settings", round(top + 28))


def box_of_part(series: int, x: float, y: float, width: float, height: float) -> str:
    """Returns a filled rectangle in the colour of a part."""
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}"'
    return coloured(series, f'<rect {size} stroke="none"/>')


STEPS, SAVED, KILLED = 10, 4, 7


def resume() -> Drawing:
    """Draws a run, the same run killed between two checkpoints, and its resume, with the rows of every step."""
    rows = order(2, 1, 1)
    column = (WIDTH - 8) / STEPS
    parts = [text(f"each cell: a step with its two rows; checkpoint: every {SAVED} steps", 2, 14)]
    top = 42.0
    for title, steps in (
        ("without interruption", range(STEPS)),
        (f"killed in step {KILLED + 1}", range(KILLED)),
        ("resumed from the newest checkpoint: the same rows", range(SAVED, STEPS)),
    ):
        parts.append(text(title, 2, top, kind="ink"))
        for step in steps:
            label = " ".join(map(str, rows.window(0, step).tolist()))
            lost = title.startswith("killed") and step >= SAVED
            parts.append(box(1 if lost else 0, 4 + column * step, top + 6, column - 3, label, lost))
            if (step + 1) % SAVED == 0:
                parts.append(saved(4 + column * (step + 1) - 1.5, top + 4))
        if title.startswith("killed"):
            parts.append(text("x", 4 + column * KILLED + column / 2, top + 20, "middle", "ink"))
        top += 54
    parts.append(text("green: checkpoints; orange: done again", 2, top - 6))
    return Drawing(parts, "A run, the same run when it is killed, and its resume", round(top + 2))


def saved(x: float, y: float) -> str:
    """Returns the mark of a checkpoint."""
    return coloured(2, f'<path d="M{x:.1f} {y:.1f}v22" stroke-width="3"/>')


def measured() -> dict[str, dict[str, int]]:
    """Returns the planned memory of every bar, in bytes by part."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for title, settings in SAVINGS.items():
            file = Path(folder) / "plan.json"
            command = ["plan", "language_modeling", "--config", "smoke", "--output", str(file), *MODEL, *settings]
            subprocess.run([sys.executable, "-m", "toolkit", *command], check=True, stdout=subprocess.DEVNULL)
            footprint: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["footprint"]
            found[title] = {part: footprint[part] for part in (*PARTS, "peak")}
            found[title]["working"] += footprint["logits"]
    return found


def rendered(found: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Returns the pictures by the names of their files."""
    drawn = {"window": window(), "memory": memory(found), "resume": resume()}
    return {f"{name}.svg": sheet([drawing]) for name, drawing in drawn.items()}


def main(arguments: Sequence[str]) -> None:
    """Measures if `--measure` is given, and draws."""
    if "--measure" in arguments:
        MEMORY.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    for name, picture in rendered(json.loads(MEMORY.read_text(encoding="utf-8"))).items():
        (PICTURES / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
