"""Versions, hardware and the state of the git checkout."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from toolkit.base.files import sha256

PACKAGES = (
    "finetune-toolkit", "torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "evaluate",
    "scikit-learn", "numpy",
)  # fmt: skip
EXTRAS = ("bitsandbytes", "peft", "schedulefree", "torchao")
"""Optional packages that results depend on."""

MOST_UNTRACKED = 100
GIT_SECONDS = 10.0
STATUS = ("-c", "core.quotepath=off", "status", "--porcelain=v2", "--branch", "--untracked-files=normal")
# Every option is explicit: the user's git configuration could produce a diff that does not apply.
FORMAT = ("--binary", "--full-index", "--no-color", "--no-relative", "--src-prefix=a/", "--dst-prefix=b/")
DIFF = ("diff", *FORMAT, "--no-ext-diff", "--no-textconv", "HEAD")


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that results depend on."""
    found = {package: _version(package) or "not installed as a package" for package in PACKAGES}
    further = {package: number for package in EXTRAS if (number := _version(package))}
    return {"python": platform.python_version()} | found | further


@cache  # a package's metadata takes 3 ms to read, and a run asks six times
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Checkout:
    """The state of a git checkout."""

    commit: str  # full hash
    changed_files: int  # number of files that `git status` lists
    untracked: list[str]  # the untracked ones, at most `MOST_UNTRACKED`; their content is not in the diff
    diff: bytes | None  # of tracked files, for `git apply` in the top folder; None if git failed within `GIT_SECONDS`

    @property
    def diff_sha256(self) -> str | None:
        """The sha256 of the diff: None if there are no changes, `unknown` if the diff is not available."""
        if self.diff is None:
            return "unknown"
        return sha256(self.diff) if self.diff else None


def checkout(folder: Path) -> Checkout | None:
    """Returns the state of the git checkout that contains a folder; None if there is none, or git is missing."""
    try:
        status = git(folder, *STATUS).decode(errors="replace").splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    commit = next((line.split()[-1] for line in status if line.startswith("# branch.oid ")), "(initial)")
    if commit == "(initial)":
        return None
    changes = [line for line in status if not line.startswith("#")]
    untracked = [line[2:] for line in changes if line.startswith("? ")]
    diff: bytes | None = b""
    if len(untracked) < len(changes):
        try:
            diff = git(folder, *DIFF)
        except (OSError, subprocess.SubprocessError):
            diff = None
    return Checkout(commit, len(changes), untracked[:MOST_UNTRACKED], diff)


def git(folder: Path, *arguments: str) -> bytes:
    """Runs git in a folder and returns its output; raises SubprocessError if it fails or takes over `GIT_SECONDS`."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, timeout=GIT_SECONDS, check=True).stdout


def hardware() -> dict[str, Any]:
    """Returns a description of this machine: system, CPUs, memory and GPUs."""
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
