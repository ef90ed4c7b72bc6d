"""Records a run's configuration, code, data and machine when training starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from toolkit.api.run import Run
from toolkit.api.state import Milestones
from toolkit.api.task import state_of
from toolkit.base.files import write_bytes, write_json, write_text
from toolkit.base.run_folder import RunFolder
from toolkit.base.trust import trust, trust_run
from toolkit.config import dump_config
from toolkit.data.loading import CheckedRows
from toolkit.data.table import write_bad_rows
from toolkit.report.intact import BEFORE, forget, sealed
from toolkit.system.environment import checkout, hardware, versions

MOST_DIFF_BYTES = 2**20


def write_start(run: Run, rows: CheckedRows, recipe: Path, milestones: Milestones) -> None:
    """Writes `config.yaml` (resolved), `run.json`, and, if there are any, bad rows and uncommitted changes.

    Until there are new results, `run.json` keeps those of the session before a resume.

    Args:
        run: the run, which nothing can refuse any more.
        rows: its checked rows.
        recipe: the recipe's file.
        milestones: its steps.
    """
    cfg, files = run.cfg, RunFolder(run.output_dir)
    if recipe.is_file():  # a task that was typed into an interpreter has none
        trust(recipe)
    former = forget(files.path, BEFORE)
    write_text(files.config, dump_config(cfg))
    if any(rows.bad_rows.values()):
        write_bad_rows(rows.tables, files.bad_rows)
    facts = {
        "recipe": str(recipe.absolute()),
        "command": [sys.executable, *sys.argv],
        "working_directory": str(Path.cwd()),
        "seed": cfg.seed,
        "engine": cfg.engine,
        "num_processes": run.mesh.size,
        "mesh": run.mesh.sizes,
        "total_steps": milestones.total_steps,
        "logging_steps": milestones.log_every,
        "versions": versions(),
        "git": _code(recipe.absolute().parent, files.path),
        "hardware": hardware(),
        "energy_source": run.system.source,
        "data_fingerprints": dict(rows.fingerprints),
        "num_rows": {split: len(part) for split, part in rows.splits.items()},
        "bad_rows": dict(rows.bad_rows),
        "labels": {split: dict(counts) for split, counts in rows.findings.labels.items()},
        "task_state": state_of(run.task),
        "resolved": dict(run.resolved),
        "metric_for_best_model": run.best.name,
        "greater_is_better": run.best.greater_is_better,
    }
    kept = {name: former[name] for name in ("result", "memory", "files") if name in former}
    trust_run(files.path, facts)
    write_json(files.facts, sealed(facts | kept))


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
        write_bytes(file, diff)
    return {
        "commit": state.commit,
        "changed_files": state.changed_files,
        "untracked": state.untracked,
        "diff": file.name if kept else None,
        "diff_sha256": state.diff_sha256,
    }
