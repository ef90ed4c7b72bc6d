"""Exports finished runs, and predicts with the exported script."""

from __future__ import annotations

import csv
import io
import json
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from commands import run_command
from runs import assert_close

ISOLATED = """
import runpy, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
for folder, file in list(zip(sys.argv[2::2], sys.argv[3::2])):
    sys.argv, sys.stdout = ["predict.py", file], open(file + ".printed", "w")
    runpy.run_path(folder + "/predict.py", run_name="__main__")
    sys.stdout.close()
"""
"""Runs scripts where the import of some packages fails, and writes what they print beside their inputs."""


def exported(run: Path, folder: Path) -> Path:
    """Returns a folder with the files of the exported zip."""
    assert run_command("export", run, "--format", "zip", "--overwrite", "--output", folder / "colleague.zip") == 0
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
    assert run_command("predict", run, "--input", file, "--output", output, "--overwrite") == 0
    return read_table(output)


def read_table(file: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file with commas or semicolons."""
    return _rows(file.read_bytes().decode())


def _rows(text: str) -> list[dict[str, str]]:
    header = text.partition("\n")[0]
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;", key=header.count)))


def script_answers(folder: Path, *arguments: str | Path) -> list[dict[str, str]]:
    """Returns the rows that the script of an exported run prints, run in this process, where it cannot import ours."""
    content = io.BytesIO()
    printed = io.TextIOWrapper(content)
    ours = {name: None for name in sys.modules if name.partition(".")[0] in ("toolkit", "recipes")}
    with (
        patch.dict(sys.modules, ours | {"toolkit": None}),
        patch("sys.argv", ["predict.py", *map(str, arguments)]),
        patch("sys.stdout", printed),
    ):
        runpy.run_path(str(folder / "predict.py"))
    printed.flush()
    return _rows(content.getvalue().decode())


def exported_as(run: Path, name: str, folder: Path, *more: str) -> tuple[Path, dict[str, Any]]:
    """Returns the folder of a run in a format, and its `parity.json`."""
    output = folder / f"{name} of {run.name}"
    assert run_command("export", run, "--format", name, "--output", output, *more) == 0
    return output, json.loads((output / "parity.json").read_text())


def isolated_answers(inputs: Mapping[Path, Path], without: Sequence[str] = ("toolkit",)) -> list[list[dict[str, str]]]:
    """Returns the rows that scripts print in a process that cannot import the toolkit.

    Args:
        inputs: the file to predict for the folder of each exported run.
        without: packages that cannot be imported.
    """
    pairs = [str(path) for pair in inputs.items() for path in pair]
    command = [sys.executable, "-c", ISOLATED, ",".join(without), *pairs]
    done = subprocess.run(command, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [read_table(Path(f"{file}.printed")) for file in inputs.values()]


def assert_equal_answers(run: Path, folder: Path, file: Path, tolerance: float, without: Sequence[str] = ()) -> None:
    """Asserts that the script answers as `toolkit predict` does, also where a row has no answer.

    Args:
        run: the run.
        folder: the files of its export.
        file: the rows.
        tolerance: allowed relative or absolute difference of numbers.
        without: columns that the script does not write.
    """
    expected = [{name: cell for name, cell in row.items() if name not in without} for row in toolkit_answers(run, file)]
    assert_same_answers(expected, script_answers(folder, file), tolerance)


def assert_same_answers(expected: list[dict[str, str]], found: list[dict[str, str]], tolerance: float) -> None:
    """Asserts that rows have the same columns, but for `error`, and the same cells; numbers up to a tolerance."""
    assert len(found) == len(expected) > 1
    for ours, theirs in zip(expected, found, strict=True):
        assert list(theirs) == [name for name in ours if name in theirs]
        assert ours.keys() - theirs.keys() <= {"error"}
        for name in theirs.keys() - {"error"}:
            assert_close(_value(ours[name]), _value(theirs[name]), tolerance, name)


def _value(cell: str) -> Any:
    """Returns a number, list or mapping that a cell holds; otherwise its text."""
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def code_lines(folder: Path) -> int:
    """Returns the number of lines of the script, without blank lines, comments and its docstring."""
    source = (folder / "predict.py").read_text(encoding="utf-8")
    compile(source, "predict.py", "exec")
    assert max(map(len, source.splitlines())) <= 120, source
    code = source.partition('"""')[2].partition('"""')[2]
    return sum(not line.lstrip().startswith("#") for line in code.splitlines() if line.strip())
