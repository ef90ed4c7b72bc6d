"""What a run was: configuration, code, data, machine. Written before training starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from toolkit.api.run import best_metric
from toolkit.api.supports import state_of
from toolkit.api.task import Task
from toolkit.base.environment import _git, hardware, versions
from toolkit.base.files import write_json, write_text
from toolkit.config import dump_config, flatten
from toolkit.config.sections import Config
from toolkit.data.prepare import CheckedRows


def identity(cfg: Config, rows: CheckedRows, num_processes: int) -> dict[str, Any]:
    """Returns what a resumed run must share with the run it goes on with, by dotted key."""
    return {
        **flatten(cfg),
        "num_processes": num_processes,
        "data.num_train_rows": len(rows.splits["train"]),  # a validation file added later would change it
        **{f"data.fingerprint.{split}": value for split, value in rows.fingerprints.items()},
    }


def write_start(cfg: Config, task: Task, rows: CheckedRows, recipe: Path, num_processes: int, output_dir: Path) -> None:
    """Writes `config.yaml` (resolved) and `run.json`."""
    write_text(output_dir / "config.yaml", dump_config(cfg))
    best = best_metric(cfg, task)
    facts = {
        "recipe": str(recipe.absolute()),
        "command": [sys.executable, *sys.argv],
        "seed": cfg.seed,
        "engine": cfg.engine,
        "num_processes": num_processes,
        "versions": versions(),
        "git": _git(recipe.absolute().parent),
        "hardware": hardware(),
        "data_fingerprints": dict(rows.fingerprints),
        "num_rows": {split: len(part) for split, part in rows.splits.items()},
        "bad_rows": dict(rows.bad_rows),
        "task_state": state_of(task),
        "metric_for_best_model": best.name,
        "greater_is_better": best.greater_is_better,
    }
    write_json(output_dir / "run.json", facts)
