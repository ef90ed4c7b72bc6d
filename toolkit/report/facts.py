"""`run.json`: configuration, code, data and machine recorded at the start, checksums at the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.api.state import Milestones
from toolkit.base.console import warn
from toolkit.base.errors import InputError
from toolkit.base.files import (
    file_sha256,
    finite,
    kind_of,
    read_json,
    sha256,
    working_folder,
    write_bytes,
    write_json,
    write_text,
)
from toolkit.base.run_folder import RunFolder
from toolkit.base.trust import trust, trust_run
from toolkit.checkpoint.manifest import reason
from toolkit.config import dump_config
from toolkit.models.origin import FILES
from toolkit.system.environment import checkout, hardware, versions

if TYPE_CHECKING:
    from toolkit.api.run import Run
    from toolkit.data.loading import CheckedRows


MODEL = ("model/**/*",)
"""Files of the model, without its card, which is meant to be edited."""
DECISION = ("decision.json", "calibration.*")
"""Files that `toolkit calibrate` writes."""
RESULTS = ("predictions*.jsonl", "report.*", "curves.svg", "confusion_*.png", *DECISION)
"""Files that are written after the model."""
BEFORE = (
    *("config.yaml", "metrics.jsonl", "uncommitted.diff", "bad_rows.jsonl", "processor/**/*", "base/**/*"),
    *("snapshots/*", "system*.jsonl"),
)
"""Files that are written until then, and again by a session that resumes the run."""
_SEAL = "sha256"


def digests(folder: Path, patterns: Iterable[str]) -> dict[str, str]:
    """Returns the sha256 of each file of a run that matches one of the patterns, by its path in the run's folder."""
    card = RunFolder(folder).model_card
    files = sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file() and file != card)
    return {file.relative_to(folder).as_posix(): file_sha256(file) for file in files}


def forget(folder: Path, patterns: Iterable[str], entries: Collection[str] = ()) -> dict[str, Any]:
    """Drops stale checksums and `entries` from `run.json` before files are rewritten; returns its content, if intact.

    Call it before the first file changes: a run that is killed in between is not finished, but not damaged either.
    """
    file = RunFolder(folder).facts
    anywhere = [pattern.replace("/**", "") for pattern in patterns]  # here, `*` also stands for folders
    try:
        facts = read_json(file)
        known = facts.get("files", {})
        files = {name: known[name] for name in known if not any(fnmatchcase(name, each) for each in anywhere)}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    left = {name: value for name, value in facts.items() if name not in entries}
    if "files" in left:
        left["files"] = files
    if left != facts:
        left = sealed(left)
        write_json(file, left)
    return left


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of `run.json` with its own sha256."""
    content = {name: value for name, value in facts.items() if name != _SEAL}
    as_read = json.loads(json.dumps(finite(content)))  # keys are strings
    return {**content, _SEAL: sha256(json.dumps(as_read, sort_keys=True, separators=(",", ":")))}


def is_intact(facts: Mapping[str, Any]) -> bool:
    """Whether the content of `run.json` is as it was written; assumed of older versions, which have no checksum."""
    return _SEAL not in facts or facts[_SEAL] == sealed(facts)[_SEAL]


def damaged(folder: Path, facts: Mapping[str, Any], within: str = "") -> list[str]:
    """Returns the damages of a finished run, one phrase for each file whose path begins with `within`.

    The facts are the content of its `run.json`; older versions have no checksums.
    """
    problems = [] if is_intact(facts) else ["run.json is not as it was written (its sha256 differs)"]
    written = facts.get("files", {})
    if not isinstance(written, Mapping):
        return [*problems, "run.json has no usable files"]
    for name, expected in written.items():
        if not name.startswith(within):
            continue
        file = folder / name
        try:
            if kind_of(file) != "file":
                problems.append(f"{name} is missing")
            elif file_sha256(file) != expected:
                problems.append(f"{name} is not as it was written (its sha256 differs)")
        except OSError as error:
            problems.append(f"{name}: {reason(error)}")
    return problems + [f"{name} is not of the run" for name in _added_to_model(folder, written)]


def _added_to_model(folder: Path, written: Mapping[str, str]) -> list[str]:
    """Returns which files in `model/` are not among those that were written there, if it is known which were."""
    files = RunFolder(folder)
    present = [path for path in files.model.rglob("*") if not path.is_dir() and path != files.model_card]
    names = sorted(path.relative_to(folder).as_posix() for path in present)
    known = any(name.startswith(f"{files.model.name}/") for name in written)
    return [name for name in names if known and name not in written]


def require_intact_model(folder: Path) -> None:
    """Refuses a finished run whose model or facts are not as they were written, and warns of changed settings.

    Raises InputError naming the files.
    """
    files = RunFolder(folder)
    facts = read_json(files.facts)
    if problems := damaged(folder, facts, "model/"):
        raise InputError(f"{folder}: the model is damaged: {'; '.join(problems)}. `toolkit verify` checks all files")
    expected = facts.get("files", {}).get(files.config.name)
    if expected is not None and file_sha256(files.config) != expected:
        warn(f"{files.config} is not as the run wrote it; its settings are used as they are now")


MOST_DIFF_BYTES = 2**20


def write_start(run: Run, rows: CheckedRows, recipe: Path, milestones: Milestones) -> None:
    """Writes `config.yaml` (resolved), `run.json`, and, if there are any, bad rows and uncommitted changes.

    All checks have passed. Until there are new results, `run.json` keeps those of the session before a resume.
    """
    from toolkit.data.table import write_bad_rows

    cfg, files = run.cfg, RunFolder(run.output_dir)
    if recipe.is_file():  # a task that was typed into an interpreter has none
        trust(recipe)
    former = forget(files.path, BEFORE)
    write_text(files.config, dump_config(cfg))
    if any(run.data.bad_rows.values()):
        write_bad_rows(rows.tables, files.bad_rows)
    facts = {
        "recipe": str(recipe.absolute()),
        "command": [sys.executable, *sys.argv],
        "working_directory": str(working_folder()),
        "seed": cfg.seed,
        "engine": cfg.engine,
        "num_processes": run.mesh.size,
        "mesh": run.mesh.sizes,
        "total_steps": milestones.total_steps,
        "rows_per_step": cfg.train.rows_per_step(run.mesh.data_size),
        "logging_steps": milestones.log_every,
        "versions": versions(),
        "git": note_code(recipe.absolute().parent, files.path),
        "hardware": hardware(),
        "energy_source": run.system.source,
        "data_fingerprints": dict(rows.fingerprints),
        "model_files": {key.removeprefix(FILES): value for key, value in run.identity.items() if key.startswith(FILES)},
        "num_rows": {split: len(part) for split, part in rows.splits.items()},
        "bad_rows": dict(run.data.bad_rows),
        "omissions": [asdict(each) for each in run.data.omissions],
        "labels": {split: dict(counts) for split, counts in rows.findings.labels.items()},
        "task_state": run.task.state,
        "resolved": dict(run.resolved),
        "metric_for_best_model": run.best.name,
        "greater_is_better": run.best.greater_is_better,
    }
    kept = {name: former[name] for name in ("result", "memory", "files") if name in former}
    trust_run(files.path, facts)
    write_json(files.facts, sealed(facts | kept))


def note_code(folder: Path, output_dir: Path) -> dict[str, Any] | None:
    """Describes the git checkout of the code and saves uncommitted changes, of large ones only the sha256."""
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
