"""Runs whose report takes longer than the timeout of collectives: `accelerate launch slow_report.py OUTPUT_DIR`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from finishing import finish

import toolkit
import toolkit.run
from toolkit.main import main as recipe_main
from toolkit.recipe import load_task_type
from toolkit.report import results

ROOT = Path(__file__).resolve().parents[2]
RECIPE, CONFIG = ROOT / "recipes/reviews.py", ROOT / "recipes/configs/reviews/smoke.yaml"
SETTINGS = ("train.max_steps=1", "data.max_train_samples=24", "data.max_eval_samples=9")
ROWS = [{"text": "A fine pair of boots."}, {"text": "It broke at once."}, {"text": "Good."}]
LIMIT_SECONDS = 2.0
FIT = toolkit.run.fit
WRITE = results.write_report


def main(output: Path) -> None:
    """Trains three times: from Python, from Python with a failing report, and through a recipe's command line."""
    rank = os.environ["RANK"]
    toolkit.run.fit = with_a_limit_after_training
    results.write_report = slow(LIMIT_SECONDS + 1.5, WRITE)
    result = toolkit.train(RECIPE, CONFIG, [*SETTINGS, f"output_dir={output / 'python'}"])
    assert (result.output_dir / "report.md").exists(), "train returned before everything was written"
    allow(timedelta(minutes=5))
    trained = toolkit.load(result.output_dir)
    said = {"metrics": dict(result.metrics), "records": trained.predict(ROWS), "scores": trained.evaluate(
        [{**row, "label": "positive"} for row in ROWS])}  # fmt: skip
    toolkit.run.fit = FIT
    results.write_report = refuse
    try:
        toolkit.train(RECIPE, CONFIG, [*SETTINGS, "train.mixed_precision=bf16", f"output_dir={output / 'failing'}"])
    except toolkit.RunError as error:
        said["error"] = str(error)
    (output / f"said-{rank}.json").write_text(json.dumps(said))
    toolkit.run.fit = with_a_limit_after_training
    results.write_report = slow(LIMIT_SECONDS + 1.5, alone)
    sys.argv[0] = str(RECIPE)
    recipe_main(load_task_type(RECIPE), ["--config", str(CONFIG), *SETTINGS, f"output_dir={output / 'recipe'}"])


def with_a_limit_after_training(*arguments: Any) -> Any:
    """Trains, then sets a short timeout for collectives."""
    result = FIT(*arguments)
    allow(timedelta(seconds=LIMIT_SECONDS))
    return result


def allow(time: timedelta) -> None:
    torch.distributed.distributed_c10d._set_pg_timeout(time)


def slow(seconds: float, write: Callable[..., None]) -> Callable[..., None]:
    def late(*arguments: Any) -> None:
        time.sleep(seconds)
        write(*arguments)

    return late


def refuse(*arguments: Any) -> None:
    raise KeyError("no curves")


def alone(run: Any, *arguments: Any) -> None:
    """Writes the report, and whether the process group still exists."""
    (run.output_dir / "group").write_text(str(torch.distributed.is_initialized()))
    WRITE(run, *arguments)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    finish()
