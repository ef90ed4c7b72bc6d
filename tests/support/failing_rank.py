"""The reviews recipe with a fault on the last rank: `accelerate launch failing_rank.py <arguments of the recipe>`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from toolkit.engine.session import Session
from toolkit.main import main
from toolkit.recipe import load_task_type

FAULT_STEP = 3


def check_update(self, grad_norm, batches):
    """Fails on the last rank only; the other ranks would wait for it forever."""
    if self.state.step + 1 == FAULT_STEP and os.environ["RANK"] == "1":
        (Path(self.run.output_dir) / "failed_at").write_text(str(time.time()))
        raise ValueError("a fault on one rank")


if __name__ == "__main__":
    Session.check_update = check_update
    recipe = Path(__file__).resolve().parents[2] / "recipes" / "reviews.py"
    sys.argv[0] = str(recipe)
    main(load_task_type(recipe))
