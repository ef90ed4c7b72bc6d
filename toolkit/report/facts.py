"""Records a run's configuration, code, data and machine before training starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.api.mesh import Mesh
from toolkit.api.milestones import Milestones
from toolkit.api.run import Run, best_metric
from toolkit.api.supports import state_of
from toolkit.api.task import Task
from toolkit.base.environment import checkout, hardware, versions
from toolkit.base.files import read_json, write_json, write_text, written_whole
from toolkit.base.run_folder import RunFolder
from toolkit.base.trust import trust
from toolkit.config import dump_config
from toolkit.config.sections import Config
from toolkit.data.loading import CheckedRows
from toolkit.report.intact import of_former_session, sealed

MOST_DIFF_BYTES = 2**20


def write_start(
    cfg: Config,
    task: Task,
    rows: CheckedRows,
    recipe: Path,
    mesh: Mesh,
    milestones: Milestones,
    resolved: Mapping[str, Any],
    output_dir: Path,
) -> None:
    """Writes `config.yaml` (resolved), `run.json`, and `uncommitted.diff` if the recipe's checkout has changes."""
    files = RunFolder(output_dir)
    if recipe.is_file():  # a task that was typed into an interpreter has none
        trust(recipe)
    write_text(files.config, dump_config(cfg))
    best = best_metric(cfg, task)
    facts = {
        "recipe": str(recipe.absolute()),
        "command": [sys.executable, *sys.argv],
        "working_directory": str(Path.cwd()),
        "seed": cfg.seed,
        "engine": cfg.engine,
        "num_processes": mesh.size,
        "mesh": mesh.sizes,
        "total_steps": milestones.total_steps,
        "logging_steps": milestones.log_every,
        "versions": versions(),
        "git": _code(recipe.absolute().parent, output_dir),
        "hardware": hardware(),
        "data_fingerprints": dict(rows.fingerprints),
        "num_rows": {split: len(part) for split, part in rows.splits.items()},
        "bad_rows": dict(rows.bad_rows),
        "labels": {split: dict(counts) for split, counts in rows.findings.labels.items()},
        "task_state": state_of(task),
        "resolved": dict(resolved),
        "metric_for_best_model": best.name,
        "greater_is_better": best.greater_is_better,
    }
    write_json(files.facts, sealed(facts | _former_result(files.facts)))


def write_resolved(run: Run) -> None:
    """Adds to `run.json` what settings of `auto` became once the model was built."""
    file = RunFolder(run.output_dir).facts
    write_json(file, sealed(read_json(file) | {"resolved": dict(run.resolved)}))


def _former_result(file: Path) -> dict[str, Any]:
    """Returns the result of the session before a resume, which stays until there is another one."""
    try:
        former = read_json(file)
        kept = {name: former[name] for name in ("result", "memory", "files") if name in former}
        return {**kept, "files": of_former_session(kept["files"])} if "files" in kept else kept
    except (OSError, ValueError, TypeError, AttributeError):  # a new run, or a damaged file
        return {}


def _code(folder: Path, output_dir: Path) -> dict[str, Any] | None:
    """Describes the git checkout of the code and saves uncommitted changes in the output folder.

    Of changes larger than `MOST_DIFF_BYTES`, only the sha256 is recorded.
    """
    file = RunFolder(output_dir).diff
    file.unlink(missing_ok=True)  # from an earlier session
    state = checkout(folder)
    if state is None:
        return None
    diff = state.diff or b""
    kept = 0 < len(diff) <= MOST_DIFF_BYTES
    if kept:
        with written_whole(file, "wb") as opened:
            opened.write(diff)
    return {
        "commit": state.commit,
        "changed_files": state.changed_files,
        "untracked": state.untracked,
        "diff": file.name if kept else None,
        "diff_sha256": state.diff_sha256,
    }
