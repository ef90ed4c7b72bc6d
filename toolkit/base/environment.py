"""Versions, hardware and the state of the checkout."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "finetune-toolkit", "torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "evaluate",
    "scikit-learn", "numpy",
)  # fmt: skip
EXTRAS = ("bitsandbytes", "peft", "schedulefree", "torchao")
"""Packages that numbers depend on where they are installed."""

MOST_UNTRACKED = 100
GIT_SECONDS = 10.0
STATUS = ("-c", "core.quotepath=off", "status", "--porcelain=v2", "--branch", "--untracked-files=normal")
# All spelled out: a user's own settings of git could make a diff that does not apply.
FORMAT = ("--binary", "--full-index", "--no-color", "--no-relative", "--src-prefix=a/", "--dst-prefix=b/")
DIFF = ("diff", *FORMAT, "--no-ext-diff", "--no-textconv", "HEAD")


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


@dataclass(frozen=True)
class Checkout:
    """The state of a git checkout.

    Args:
        commit: full hash.
        changed_files: how many files `git status` lists.
        untracked: those of them that git does not track, at most `MOST_UNTRACKED`; their content is in no diff.
        diff: changes of tracked files since the commit, for `git apply` in the checkout's top folder; empty if there
            are none, None if there are, but git did not make a diff of them within `GIT_SECONDS`.
    """

    commit: str
    changed_files: int
    untracked: list[str]
    diff: bytes | None

    @property
    def diff_sha256(self) -> str | None:
        """Tells two diffs apart: None where there are no changes, `unknown` where there is no diff of them."""
        if self.diff is None:
            return "unknown"
        return hashlib.sha256(self.diff).hexdigest() if self.diff else None


def checkout(folder: Path) -> Checkout | None:
    """Returns the state of the git checkout that a folder is in; None if it is in none, or there is no git."""
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
    """Runs git in a folder, and returns what it prints.

    Raises:
        OSError: if there is no git.
        subprocess.SubprocessError: if it fails, or takes more than `GIT_SECONDS`.
    """
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, timeout=GIT_SECONDS, check=True).stdout


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
