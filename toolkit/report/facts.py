"""What a run was: configuration, code, data, machine. Written before training starts."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from toolkit.config import dump_config, flatten
from toolkit.config.sections import Config
from toolkit.data.prepare import CheckedRows
from toolkit.task import Task

PACKAGES = (
    "finetune-toolkit", "torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "evaluate",
    "scikit-learn", "numpy",
)  # fmt: skip

EXTRAS = ("bitsandbytes", "peft", "schedulefree", "torchao")
"""Packages that numbers depend on where they are installed."""


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    for package in EXTRAS:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


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
        "task_state": task.state,
    }
    write_json(output_dir / "run.json", facts)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, whole or not at all; JSON has no infinity and no NaN, which become null."""
    write_text(path, json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def write_text(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _git(folder: Path) -> dict[str, Any] | None:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed_files": len(git("status", "--porcelain").splitlines())}
    except (OSError, subprocess.SubprocessError):  # no git, or not a checkout
        return None


def hardware() -> dict[str, Any]:
    """Returns what this machine is."""
    import psutil
    import torch

    return {
        "machine": platform.machine(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
