"""Runs with histograms, all but pipelines with graphs: `accelerate launch histogram_runs.py OUTPUT_DIR STRATEGY...`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from finishing import finish
from runs import SGD, train
from split_runs import STRATEGIES

RUN = (
    *("data.max_train_samples=16", "data.max_eval_samples=4", "train.max_steps=2", "eval.eval_steps=null"),
    *("checkpoint.save_steps=null", "tracking.report_to=[tensorboard]", "tracking.histogram_steps=2"),
)
ROWS, BATCH = 8, 2
"""Rows of a window, and of a micro-batch."""


def main(folder: Path, *names: str) -> None:
    """Trains two steps in float64 with each strategy of `STRATEGIES`, or with `one` on one process."""
    for name in names:
        _, data_ranks, settings = STRATEGIES.get(name, (1, 1, ()))
        window = (
            f"train.per_device_train_batch_size={BATCH}",
            f"train.gradient_accumulation_steps={ROWS // BATCH // data_ranks}",
        )
        graph = f"tracking.graph={str(name not in ('one', 'pipeline')).lower()}"
        train("reviews", folder / name, *RUN, *SGD, *window, *settings, graph, double=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    finish()
