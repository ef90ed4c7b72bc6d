"""Draws the training loss around the models that two batch sizes find, along random, filter-normalised directions.

python docs/draw_landscape.py --output landscape.svg

Li et al. 2018 (arXiv 1712.09913): each row of a random direction has the length of the same row of the weights.
Biases and norms are not moved. Both trainings end at about the same loss.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from drawing import parser as parser_of
from drawing import write

from toolkit.document.charts import BOTTOM, RIGHT, ROW, axis, frame, line_chart, ramp
from toolkit.document.svg import Drawing, text

if TYPE_CHECKING:
    import torch

POINTS, REACH, ROWS = 25, 1.0, 64
"""Points of each side of the grid, its half width, and rows of the batch."""
STEPS = {8: 560, 128: 200}
"""Steps by rows per step."""
SIDE = 300
"""Height of a map in pixels."""
SETTINGS = ("eval.eval_steps=null", "checkpoint.save_steps=null", "train.warmup_steps=0", "train.optim=adamw_torch",
            "train.lr_scheduler_type=constant")  # fmt: skip


def trained(folder: Path, size: int, steps: int) -> Path:
    """Trains with a batch size; returns the run's folder."""
    import toolkit

    sizes = [f"train.global_batch_size={size}", f"train.per_device_train_batch_size={min(size, 32)}"]
    own = [*sizes, f"train.max_steps={steps}", f"output_dir={folder / str(size)}"]
    return toolkit.train("reviews", "smoke", [*SETTINGS, *own]).output_dir


def batch(run: Path, rows: int) -> dict[str, Any]:
    """Returns the first training rows as the inputs of a run's model."""
    import csv

    import torch
    from transformers import AutoConfig, AutoTokenizer

    with (Path(__file__).resolve().parents[1] / "recipes/data/reviews/train.csv").open(encoding="utf-8") as file:
        read = list(csv.DictReader(file))[:rows]
    tokenizer, label2id = (kind.from_pretrained(run / "model") for kind in (AutoTokenizer, AutoConfig))
    inputs = tokenizer([row["text"] for row in read], padding=True, return_tensors="pt")
    return {**inputs, "labels": torch.tensor([label2id.label2id[row["label"]] for row in read])}


def direction(weights: Mapping[str, torch.Tensor], draw: torch.Generator) -> dict[str, torch.Tensor]:
    """Returns a random direction whose rows are as long as those of the weights; zero for biases and norms."""
    import torch

    found = {}
    for name, weight in weights.items():
        drawn = torch.randn(weight.shape, generator=draw)
        if weight.dim() < 2:
            found[name] = torch.zeros_like(weight)
        else:
            lengths = weight.flatten(1).norm(dim=1) / drawn.flatten(1).norm(dim=1)
            found[name] = drawn * lengths.reshape(-1, *[1] * (weight.dim() - 1))
    return found


def losses(run: Path, places: Sequence[float], rows: int) -> np.ndarray:
    """Returns the loss on a batch, `[P, P]`, at places along two directions; the first is that of the columns."""
    import torch
    from transformers import AutoModelForSequenceClassification

    model, inputs = AutoModelForSequenceClassification.from_pretrained(run / "model").eval(), batch(run, rows)
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    draw = torch.Generator().manual_seed(0)
    across, up = direction(weights, draw), direction(weights, draw)
    found = np.empty((len(places), len(places)))
    with torch.no_grad():
        for row, b in enumerate(places):
            for column, a in enumerate(places):
                for name, weight in model.named_parameters():
                    weight.copy_(weights[name] + a * across[name] + b * up[name])
                found[row, column] = model(**inputs).loss
    return found


def heat_map(name: str, places: Sequence[float], found: np.ndarray, low: float, high: float) -> Drawing:
    """Draws a loss over two directions as colours of its logarithm, bright where it is low."""
    top, left, edge = 30.0 + ROW, 44.0, (places[1] - places[0]) / 2
    ends = np.array([places[0] - edge, places[-1] + edge])
    x, y = axis(ends, left, RIGHT, whole=True), axis(ends, top + SIDE, top, whole=True)
    wide, tall = (RIGHT - left) / len(places), SIDE / len(places)
    shares = 1 - np.log(np.clip(found, low, high) / low) / np.log(high / low)
    parts = [text(f"{name}: loss at its end {found[len(places) // 2, len(places) // 2]:.2g}", 2, 14, kind="ink")]
    parts.append(text(f"from {low:.2g} (bright) to {high:.2g} (dark), logarithmic", 2, 14 + ROW))
    parts += frame(x, y, "first direction (vertical: the second)")
    parts += [
        f'<rect x="{left + wide * column:.1f}" y="{top + SIDE - tall * (row + 1):.1f}" width="{wide:.1f}" '
        f'height="{tall:.1f}" shape-rendering="crispEdges" fill="{ramp(shares[row, column])}"/>'
        for row, column in np.ndindex(*found.shape)
    ]
    return Drawing(parts, f"Loss around the model of {name}", round(top + SIDE + BOTTOM))


def main(target: Path, points: int = POINTS, steps: Mapping[int, int] = STEPS) -> None:
    """Trains with each size, evaluates the grids, and draws."""
    places = np.linspace(-REACH, REACH, points).tolist()
    with tempfile.TemporaryDirectory() as name:
        runs = {f"batches of {size}": trained(Path(name), size, most) for size, most in steps.items()}
        grids = {each: losses(run, places, ROWS) for each, run in runs.items()}
    low, high = (float(end(list(grids.values()))) for end in (np.min, np.max))
    maps = [heat_map(each, places, found, low, high) for each, found in grids.items()]
    slices = {each: (places, found[len(places) // 2].tolist()) for each, found in grids.items()}
    title = "Loss along the first direction"
    cut = line_chart(slices, title=title, x_label="first direction", y_label=title.lower(), whole=False, point="at")
    write(target, [*maps, cut])


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    return parser_of(__doc__)


if __name__ == "__main__":
    main(parser().parse_args().output)
