"""Runs with dropout in split layers, one of which stops and resumes: `accelerate launch tensor_runs.py OUTPUT_DIR`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from finishing import finish
from runs import train
from stopping import DROPOUT, StoppedError, stopper

SETTINGS = (*DROPOUT, "parallel.tensor=2")


def main(output: Path) -> None:
    """Trains `through`, and `resumed` in two parts."""
    train("reviews", output / "through", *SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        stopper(patch)(6)
        with pytest.raises(StoppedError):
            train("reviews", output / "resumed", *SETTINGS)
    train("reviews", output / "resumed", *SETTINGS, "checkpoint.resume=auto")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    finish()
