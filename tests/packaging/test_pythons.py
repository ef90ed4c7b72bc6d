"""The versions of Python that are named as supported are the same everywhere, and compile the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from deployed import read_yaml
from launching import ROOT

CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = [
    name.rpartition(" ")[2]
    for name in CONFIG["project"]["classifiers"]
    if name.startswith("Programming Language :: Python :: 3.")
]
CODE = [ROOT / name for name in ("toolkit", "recipes", "benchmarks", "deploy", "docs", "tests", "setup.py")]


def test_every_place_names_the_same_versions() -> None:
    assert PYTHONS == ["3.11", "3.12", "3.13"]
    lowest = PYTHONS[0]
    assert CONFIG["project"]["requires-python"] == f">={lowest}"
    assert CONFIG["tool"]["ruff"]["target-version"] == f"py{lowest.replace('.', '')}"
    assert CONFIG["tool"]["mypy"]["python_version"] == lowest
    jobs = read_yaml(".github/workflows/ci.yml")["jobs"]
    assert jobs["tests"]["strategy"]["matrix"]["python-version"] == PYTHONS
    assert f"Python {lowest} to {PYTHONS[-1]}" in (ROOT / "README.md").read_text(encoding="utf-8")


def found(version: str) -> str | None:
    """Returns a Python of a version that starts, if this machine has one."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    name = f"python{version}"
    try:
        told = subprocess.run([name, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return None
    return name if re.match(rf"Python {version}\.", told) else None


@pytest.mark.fast(1)
@pytest.mark.parametrize("version", PYTHONS)
def test_a_version_compiles_the_code_without_a_warning(version: str, tmp_path: Path) -> None:
    python = found(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    command = [python, "-W", "error", "-m", "compileall", "-q", "-f", *map(str, CODE)]
    environ = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert next(tmp_path.rglob("*.pyc"), None)
