"""What the scripts share that train for a lesson and draw."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from toolkit.document.charts import Line
from toolkit.document.svg import Drawing, sheet


def parser(description: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a script's command line."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--output", type=Path, required=True, help="the picture to write")
    return made


def curve(run: Path, name: str) -> Line:
    """Returns steps and values of a figure in a run's `metrics.jsonl`."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    points = [(line["step"], line[name]) for line in lines if name in line]
    return [step for step, _ in points], [value for _, value in points]


def write(target: Path, drawings: Sequence[Drawing]) -> None:
    """Writes drawings as one SVG file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(sheet(drawings), encoding="utf-8")
