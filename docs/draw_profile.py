"""Draws where the time of a step goes, as `toolkit profile` measures it, for several ways to compute the same step.

python docs/draw_profile.py --output profile.svg
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from drawing import parser as parser_of
from drawing import write

from toolkit.document.charts import RIGHT, ROW, axis
from toolkit.document.svg import LETTER, WIDTH, Drawing, coloured, text

SIZE, BAR, GAP = "train.per_device_train_batch_size", 20, 30 + ROW
WAYS = {
    "16 micro-batches of 1 row": [f"{SIZE}=1"],
    "1 micro-batch of 16 rows": [f"{SIZE}=16"],
    "1 micro-batch, activation checkpointing": [f"{SIZE}=16", "train.activation_checkpointing=full"],
}
"""Settings of each way to compute a step of 16 rows."""


def phases(folder: Path, settings: list[str]) -> dict[str, float]:
    """Returns the milliseconds of each phase of a step."""
    command = [sys.executable, "-m", "toolkit", "profile", "language_modeling", "--config", "smoke", *settings]
    subprocess.run([*command, "--output", folder], check=True, stdout=subprocess.DEVNULL)
    found = json.loads((folder / "profile.json").read_text(encoding="utf-8"))["phases"]
    return {name: 1000 * phase["seconds"] for name, phase in found.items()}


def drawn(found: Mapping[str, Mapping[str, float]]) -> Drawing:
    """Draws the phases of each way as a bar of parts, the names of phases above."""
    names = [name for name in next(iter(found.values())) if any(each[name] for each in found.values())]
    parts, left, line = [text("time of a step by phase, ms", 2, 14, kind="ink")], 2.0, 1
    for series, name in enumerate(names):
        if left > 2 and left + 17 + LETTER * len(name) > WIDTH:
            left, line = 2.0, line + 1
        parts.append(coloured(series, f'<rect x="{left:.1f}" y="{4 + ROW * line}" width="12" height="12"/>'))
        parts.append(text(name, left + 17, 14 + ROW * line))
        left += 33 + LETTER * len(name)
    top = 12 + ROW * (line + 1)
    scale = axis(np.array([sum(each.values()) for each in found.values()]), 12, RIGHT - 12, zero=True)
    for row, (way, each) in enumerate(found.items()):
        y, ends = top + GAP * row, scale.place(np.cumsum([0.0, *(each[name] for name in names)]))
        parts.append(text(f"{way}: {sum(each.values()):.0f} ms", 12, y + 14, kind="ink"))
        parts += [
            coloured(series, f'<rect x="{begin:.1f}" y="{y + ROW}" width="{end - begin:.1f}" height="{BAR}"/>')
            for series, (begin, end) in enumerate(pairwise(ends))
        ]
    bottom = top + GAP * len(found)
    ticks = zip(scale.place(np.array([value for value, _ in scale.ticks])), scale.ticks, strict=True)
    parts += [text(name, place, bottom + 12, "middle") for place, (_, name) in ticks]
    return Drawing(parts, "Time of a step by phase", bottom + 20)


def main(target: Path, ways: Mapping[str, list[str]] = WAYS) -> None:
    """Profiles each way, and draws."""
    with tempfile.TemporaryDirectory() as name:
        found = {way: phases(Path(name) / str(place), settings) for place, (way, settings) in enumerate(ways.items())}
    write(target, [drawn(found)])


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    return parser_of(__doc__)


if __name__ == "__main__":
    main(parser().parse_args().output)
