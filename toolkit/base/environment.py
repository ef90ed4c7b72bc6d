"""Versions, hardware and the state of the checkout."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

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
