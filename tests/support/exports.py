"""Exports finished runs, and predicts with the exported script."""

from __future__ import annotations

import csv
import io
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest.mock import patch

from commands import run_command

BLOCKED = "import sys, runpy; sys.modules['toolkit'] = None; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
"""Runs a script in which `import toolkit` fails."""


def exported(run: Path, folder: Path) -> Path:
    """Returns a folder with the files of the exported zip."""
    assert run_command("export", run, "--format", "zip", "--output", folder / "colleague.zip") == 0
    with zipfile.ZipFile(folder / "colleague.zip") as zipped:
        zipped.extractall(folder / "unzipped")
    return folder / "unzipped"


def write_rows(path: Path, rows: list[dict[str, str]]) -> Path:
    """Writes rows as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def toolkit_answers(run: Path, file: Path) -> list[dict[str, str]]:
    """Returns the rows that `toolkit predict` writes."""
    output = file.with_suffix(".answers.csv")
    assert run_command("predict", run, "--input", file, "--output", output) == 0
    with output.open(newline="", encoding="utf-8") as answers:
        return list(csv.DictReader(answers))


def script_answers(folder: Path, *arguments: str | Path) -> list[dict[str, str]]:
    """Returns the rows that the script of an exported run prints, run in this process."""
    printed = io.TextIOWrapper(io.BytesIO())
    with patch("sys.argv", ["predict.py", *map(str, arguments)]), patch("sys.stdout", printed):
        runpy.run_path(str(folder / "predict.py"))
    printed.seek(0)
    return list(csv.DictReader(printed))


def isolated_answers(folder: Path, *arguments: str | Path) -> str:
    """Returns what the script prints in a process that cannot import the toolkit."""
    command = [sys.executable, "-c", BLOCKED, "predict.py", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, check=True).stdout


def assert_equal_answers(run: Path, folder: Path, file: Path, tolerance: float) -> None:
    """Asserts that the script answers as `toolkit predict` does, also where a row has no answer."""
    source = (folder / "predict.py").read_text(encoding="utf-8")
    assert "toolkit" not in source
    expected, found = toolkit_answers(run, file), script_answers(folder, file)
    assert len(found) == len(expected) > 1
    for ours, theirs in zip(expected, found, strict=True):
        assert {**theirs, "score": ""} == {
            name: value for name, value in (ours | {"score": ""}).items() if name != "error"
        }
        score, other = ours.get("score", ""), theirs.get("score", "")
        assert (score == "") == (other == "")
        assert not score or abs(float(score) - float(other)) <= tolerance
