"""Runs whose checkpoints an earlier commit wrote into tests/data/checkpoints, and the rest of these runs.

`PYTHONPATH=<checkout of the commit> python former_runs.py save NAME NAME` trains there until step `SAVED_STEP` and
stops, with `launching.fork` for two processes. Of its files, the checkpoint and `metrics.jsonl` are kept.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from finishing import finish
from runs import ROOT, train_recipe

from toolkit.api.training import Callback

DATA = ROOT / "tests/data/checkpoints"
RUNS = {"loop": ("engine=loop",), "trainer": ("engine=trainer",), "sharded": ("parallel.fsdp=2",)}
"""Settings of the saved runs; `sharded` was written by two processes."""
SAVED_STEP = 4


class Stop(Callback):
    """Stops a run in the middle of its second epoch, as if it had been killed."""

    def __init__(self) -> None:
        """Waits for its training."""

    def before_update(self) -> None:
        if self.training.state.step == SAVED_STEP:
            raise KeyboardInterrupt


def train(folder: Path, processes: int, *settings: str, observer: Callback | None = None) -> None:
    """Trains in a folder, with windows of 8 rows on any number of processes."""
    os.chdir(DATA)  # paths of the model and the rows are relative
    size = f"train.per_device_train_batch_size={4 // processes}"
    train_recipe(
        ROOT / "recipes/reviews.py", Path("config.yaml"), size, *settings, f"output_dir={folder}", observer=observer
    )


def resume(name: str, folder: Path, processes: int) -> None:
    """Continues a copy of a saved run to its end."""
    settings = [setting for setting in RUNS[name] if processes == 2 or not setting.startswith("parallel.")]
    train(folder, processes, *settings, "checkpoint.resume=auto")


if __name__ == "__main__":
    action, name, folder = sys.argv[1:]
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if action == "save":
        form = "full" if processes == 1 else "sharded"
        with suppress(KeyboardInterrupt):
            train(Path(folder), processes, *RUNS[name], f"checkpoint.format={form}", observer=Stop())
    else:
        resume(name, Path(folder), processes)
    finish()
