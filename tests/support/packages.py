"""Builds the wheel of the repository's files, without a network."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from launching import ROOT

OFFLINE = ("--no-index", "--no-deps", "--disable-pip-version-check")


def repository_files() -> list[str]:
    """Returns the files of the repository, also those that are new, without what git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in listed if name and (ROOT / name).is_file()]


def copy_repository(folder: Path) -> Path:
    """Copies the repository's files into a new folder, so that nothing is built in the repository."""
    for name in repository_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def build_wheel(source: Path, folder: Path) -> Path:
    """Builds the wheel of a source folder into another folder; returns the file."""
    _run("-m", "pip", "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", folder, ".", cwd=source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def build_source(source: Path, folder: Path) -> Path:
    """Builds the source distribution of a source folder; returns the folder with its files, unpacked."""
    _run("setup.py", "-q", "sdist", "--dist-dir", folder, cwd=source)
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder / packed.name.removesuffix(".tar.gz")


def install(wheel: Path, folder: Path) -> Path:
    """Installs a wheel alone, without what it depends on, into a folder."""
    _run("-m", "pip", "install", *OFFLINE, "--target", folder, wheel, cwd=folder.parent)
    return folder


def content(wheel: Path) -> dict[str, str]:
    """Returns the sha256 of each file of a wheel by its name."""
    with zipfile.ZipFile(wheel) as file:
        return {name: hashlib.sha256(file.read(name)).hexdigest() for name in file.namelist()}


def _run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run([sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
