"""Layouts of processes, and runs that are saved under one and resumed under another."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from finishing import finish
from runs import train

LAYOUTS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "one": (1, 1, ()),
    "ddp2": (2, 2, ()),
    "zero1": (2, 2, ("parallel.zero_stage=1",)),
    "fsdp2": (2, 2, ("parallel.fsdp=2",)),
    "tensor2": (2, 1, ("parallel.tensor=2",)),
    "context2": (2, 1, ("parallel.context=2",)),
    "pipeline2": (2, 1, ("parallel.pipeline=2",)),
    "fsdp2-tensor2": (4, 2, ("parallel.fsdp=2", "parallel.tensor=2")),
    "fsdp2-context2": (4, 2, ("parallel.fsdp=2", "parallel.context=2")),
    "fsdp2-pipeline2": (4, 2, ("parallel.fsdp=2", "parallel.pipeline=2")),
    "zero1-tensor2": (4, 2, ("parallel.zero_stage=1", "parallel.tensor=2", "parallel.sequence=true")),
}
"""Number of processes, of data ranks, and settings of each layout."""
RUN = (
    *("data.max_train_samples=29", "data.max_eval_samples=5", "train.max_steps=5", "train.ema_decay=0.5"),
    *("train.optim=adamw_torch", "train.learning_rate=0.01", "train.max_grad_norm=0.5", "train.warmup_steps=0"),
    *("checkpoint.save_steps=3", "checkpoint.save_total_limit=null", "eval.eval_steps=null"),
)
"""29 rows in windows of 8: the checkpoint of step 3 is in the middle of the first epoch of four steps."""
SAVED_STEP = 3
FORMATS = {layout: "full" if layout in ("one", "fsdp2") else "sharded" for layout in LAYOUTS}
"""Format in which each layout saves; every layout reads both."""


ROUND = [layout for layout in LAYOUTS if layout != "one"]
PAIRS = [
    *((layout, layout) for layout in LAYOUTS),
    *((layout, "one") for layout in ROUND),
    *(("one", layout) for layout in ROUND),
    *zip(ROUND, [*ROUND[1:], ROUND[0]], strict=True),
    *(("ddp2", "fsdp2-context2"), ("fsdp2-context2", "ddp2")),
]
"""Writers and readers: each layout resumes itself, one process, the next layout, and is resumed by these."""


def settings(layout: str) -> tuple[str, ...]:
    """Returns the settings of a layout, in which each window has 8 rows."""
    _, data_size, parallel = LAYOUTS[layout]
    batch = 2 if data_size == 1 else 4 // data_size
    return (*RUN, *parallel, f"train.per_device_train_batch_size={batch}",
            f"train.gradient_accumulation_steps={8 // batch // data_size}")  # fmt: skip


def save(output: Path, task: str, layout: str, *overrides: str) -> None:
    """Trains to the end under a layout, keeping all checkpoints."""
    train(task, output / f"{task}-{layout}", *settings(layout), *overrides, double=True)


def resume(output: Path, task: str, writer: str, reader: str) -> None:
    """Resumes the run of one layout at `SAVED_STEP` under another, in another folder."""
    checkpoint = output / f"{task}-{writer}" / "checkpoints" / f"step-{SAVED_STEP}"
    folder = output / f"{task}-{writer}-then-{reader}"
    train(task, folder, *settings(reader), f"checkpoint.resume={checkpoint}", double=True)


def main(action: str, output: Path, *tasks: str) -> None:
    """Saves or resumes all runs for this number of processes."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    own = [name for name, (processes, _, _) in LAYOUTS.items() if processes == world]
    for task in tasks:
        for layout in own:
            if action == "save":
                save(output, task, layout, f"checkpoint.format={FORMATS[layout]}")
            else:
                for writer, reader in PAIRS:
                    if reader == layout:
                        resume(output, task, writer, reader)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
    finish()
