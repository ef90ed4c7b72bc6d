"""Runs jobs in this process, one of one or several: `python -m toolkit.lab.certify.worker JOBS.json`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.base.exits import leave_group
from toolkit.base.run_folder import RunFolder
from toolkit.config.overrides import written
from toolkit.config.sections import Config
from toolkit.lab.certify.trace import Trace
from toolkit.recipe import load_settings, load_task_type

QUIET = ("dropout", "drop_path", "drop_rate", "_pdrop", "layerdrop", "_drop")
"""Parts of the names of settings that make a model draw numbers, and of their probabilities."""
MASKS = ("mask_time_prob", "mask_feature_prob")


def main(file: str) -> None:
    """Runs the jobs of a file, in order; the first that fails is the last."""
    work = json.loads(Path(file).read_text())
    for job in work["jobs"]:
        folder = Path(work["folder"]) / job["name"]
        try:
            _run(work, job, folder)
        except Exception as error:
            folder.mkdir(exist_ok=True)
            (folder / "error.txt").write_text(f"{type(error).__name__}: {error}")
            raise
    leave_group()


def _run(work: dict[str, Any], job: dict[str, Any], folder: Path) -> None:
    from toolkit.run import prepared_run, run

    task_type, recipe = load_task_type(work["recipe"]), Path(work["recipe"])
    output_dir = folder.parent / (job["goes_on"] or job["name"])
    overrides = [*job["overrides"], f"output_dir={output_dir}"]
    if job["model_of"]:
        model = str(RunFolder(folder.parent / job["model_of"]).model)
        overrides += written({"model.from_config": None, "model.revision": None, "model.name_or_path": model})

    def load(*more: str) -> Config:
        settings = [*overrides, *more]
        return load_settings(task_type, work["config"], settings).config

    cfg = load()
    if job["still"]:
        cfg = load(*written({f"model.config_overrides.{name}": 0.0 for name in _random_settings(cfg)}))
    folder.mkdir(exist_ok=True)
    # A folder of its own: the run wants its output folder empty.
    kill = (work["kill_at"], work["kill_after"]) if job["killed"] else None
    with Trace(folder.parent / "traces" / job["name"], job["gradients"], kill) as trace:
        if job["plain"]:
            from toolkit.lab.certify.plain_trainer import one_update

            with prepared_run(cfg, task_type(cfg), recipe) as prepared:
                one_update(prepared, trace)
        else:
            run(cfg, task_type(cfg), recipe, observer=trace)


def _random_settings(cfg: Config) -> Iterator[str]:
    """Names the fields of a model's configuration that are probabilities of leaving something out."""
    from toolkit.models.load import load_model_config

    for name, value in load_model_config(cfg.model).to_dict().items():
        random = any(part in name for part in QUIET) or name in MASKS
        if random and isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1:
            yield name


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main(sys.argv[1])
