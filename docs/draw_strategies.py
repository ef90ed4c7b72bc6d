"""Draws what each process of a strategy holds, and which processes exchange what, for docs/parallel.md.

python docs/draw_strategies.py [--render]

Trains one step of a small BERT with each strategy on several CPU processes, and writes which part of each matrix every
process holds to docs/held.json. With `--render`, the images are drawn from that file. This is a script and not a
command of the toolkit, because the images show the strategies, not a user's run.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.api.mesh import Mesh
from toolkit.api.training import Callback
from toolkit.document.svg import WIDTH, Drawing, coloured, sheet, text

HERE = Path(__file__).resolve().parent
RECIPE, CONFIG = HERE.parent / "recipes/reviews.py", HERE.parent / "recipes/configs/reviews/smoke.yaml"
HELD, PICTURES = HERE / "held.json", HERE / "images"
SETTINGS = ("train.max_steps=1", "checkpoint.save_steps=null", "eval.eval_steps=null", "data.max_eval_samples=8")
KINDS = ("weights", "gradients", "optimizer")
DIMENSIONS = ("pipeline", "replicas", "fsdp", "tensor")
"""Outermost first, as `Mesh` numbers the processes."""
SHARDED = "weights twice per micro-batch, gradients once per window"
SUMS = "four sums of outputs per layer and micro-batch"
HIDDEN = "hidden states and their gradients, per micro-batch"


@dataclass(frozen=True)
class Strategy:
    """A strategy to draw.

    Args:
        title: its name.
        sizes: its mesh; the settings of `parallel`, unless there are others.
        travels: what the processes of each dimension exchange.
        settings: other settings.
    """

    title: str
    sizes: Mapping[str, int]
    travels: Mapping[str, str]
    settings: tuple[str, ...] = ()

    @property
    def overrides(self) -> tuple[str, ...]:
        """Its settings on the command line."""
        return self.settings or tuple(f"parallel.{name}={size}" for name, size in self.sizes.items())


STRATEGIES = {
    "ddp": Strategy("Data parallel", {"replicas": 2}, {"replicas": "gradients, once per window"}),
    "zero1": Strategy("ZeRO-1", {"replicas": 2}, {"replicas": "gradients, then new weights, once per window"},
                      ("parallel.zero_stage=1",)),
    "zero2": Strategy("ZeRO-2", {"fsdp": 2}, {"fsdp": "weights and gradients, once per window"},
                      ("parallel.zero_stage=2",)),
    "fsdp": Strategy("FSDP2", {"fsdp": 2}, {"fsdp": SHARDED}),
    "hsdp": Strategy("HSDP", {"replicas": 2, "fsdp": 2}, {"fsdp": SHARDED, "replicas": "gradients, once per window"}),
    "tensor": Strategy("Tensor parallel", {"tensor": 2}, {"tensor": SUMS}),
    "pipeline": Strategy("Pipeline", {"pipeline": 2}, {"pipeline": HIDDEN}),
    "3d": Strategy("3D: replicas, tensor, pipeline", {"replicas": 2, "tensor": 2, "pipeline": 2},
                   {"tensor": SUMS, "replicas": "gradients, once per window", "pipeline": HIDDEN}),
}  # fmt: skip
"""The strategies of the page, by the names of their images."""
Parts = dict[str, list[list[list[int]]]]
"""First indices and lengths of the parts of each matrix that a process holds."""


@dataclass
class Gradients(Callback):
    """Observes which parts of the gradients a process has before its update."""

    parts: Parts = field(default_factory=dict)

    def before_update(self) -> None:
        """Notes the parts of all matrices."""
        parameters = self.training.bare_model.named_parameters()
        self.parts = parts_of((name, p.grad) for name, p in parameters if p.grad is not None)


def parts_of(tensors: Iterable[tuple[str, Any]]) -> Parts:
    """Returns what this process holds of each matrix in the layers, and of the first and the last one."""
    from toolkit.base.shards import own_parts

    drawn = re.compile(r"word_embeddings\.weight$|encoder\.layer\.\d+\..*(?<!Norm)\.weight$|pooler\.dense\.weight$")
    return {
        name: [[list(box.start), list(box.shape)] for box in own_parts(tensor)]
        for name, tensor in tensors
        if drawn.search(name)
    }


def train(output: Path, overrides: Sequence[str]) -> None:
    """Trains on this process of a launch; the main one writes what all hold to `held.json`."""
    from accelerate.utils import gather_object

    from toolkit.engine import fit
    from toolkit.recipe import load_settings, load_task_type
    from toolkit.run import prepared_run

    task_type, gradients = load_task_type(RECIPE), Gradients()
    cfg = load_settings(task_type, CONFIG, [*SETTINGS, *overrides, f"output_dir={output / 'run'}"]).config
    with prepared_run(cfg, task_type(cfg), RECIPE) as run:
        fit(run, [gradients])
        state, _ = run.strategy.own_optimizer()
        moments = ((name.removesuffix("::exp_avg"), value) for name, value in state.items() if "::exp_avg" in name)
        own = {
            "weights": parts_of(run.strategy.own_parameters().items()),
            "gradients": gradients.parts,
            "optimizer": parts_of(moments),
        }
        held = gather_object([own])
        if run.accelerator.is_main_process:
            (output / "held.json").write_text(json.dumps(held), encoding="utf-8")


def measured(strategy: Strategy) -> list[dict[str, Parts]]:
    """Launches a training with a strategy and returns what each process holds."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file",
                   str(HERE.parent / "accelerate_configs/cpu_2proc.yaml"), "--num_processes",
                   str(math.prod(strategy.sizes.values())), __file__, scratch, *strategy.overrides]  # fmt: skip
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=HERE.parent, env=environment, check=True, capture_output=True)
        return json.loads((Path(scratch) / "held.json").read_text(encoding="utf-8"))


LEFT, SIDE, GAP, LANE = 84, 16, 2, 9
"""Pixels: the width of the words on the left, the longest side of a matrix, and distances."""


def picture(strategy: Strategy, held: Sequence[Mapping[str, Parts]]) -> Drawing:
    """Draws the matrices of every process, filled where it holds them, and the groups that exchange something."""
    meshes = [Mesh(**strategy.sizes, rank=rank) for rank in range(len(held))]
    column = (WIDTH - LEFT) / len(held)
    rows = rows_of(held[0]["weights"] | held[-1]["weights"], 6 if len(held) < 8 else 3)
    complete = {name: extent([each["weights"].get(name, []) for each in held]) for row in rows for name in row}
    side = min(SIDE, (column - 8) / max(map(len, rows)) - GAP)
    words = [text(strategy.title, 2, 14, kind="ink"), text("process", 2, 38), text("reads rows", 2, 56)]
    for rank, mesh in enumerate(meshes):
        words.append(text(str(rank), LEFT + (rank + 0.5) * column, 38, "middle", "ink"))
        words.append(text("ABCDEFGH"[mesh.data_rank], LEFT + (rank + 0.5) * column, 56, "middle"))
    parts, top = [], 68.0
    height = len(rows) * (side + GAP)
    for number, kind in enumerate(KINDS):
        words.append(text(kind, 2, top + height / 2 + 4))
        outlines, filled = [], []
        for rank, process in enumerate(held):
            left = LEFT + (rank + 0.5) * column - max(map(len, rows)) * (side + GAP) / 2
            for row, names in enumerate(rows):
                wide = (max(map(len, rows)) * (side + GAP)) / len(names) - GAP
                for place, name in enumerate(names):
                    corner = left + place * (wide + GAP), top + row * (side + GAP)
                    outlines.append(rectangle(corner, (wide, side)))
                    filled += scaled(process[kind].get(name, []), complete[name], corner, (wide, side))
        gathered = 0.18 if kind == "weights" and strategy.sizes.get("fsdp", 1) > 1 else 0.0
        box = f'<path d="{"".join(outlines)}" fill-opacity="{gathered}" stroke-width="0.6" stroke-opacity="0.6"/>'
        parts.append(coloured(number, box, f'<path d="{"".join(filled)}" stroke="none"/>'))
        top += height + 10
    if strategy.sizes.get("fsdp", 1) > 1:
        words.append(text("light: gathered while it is needed", 2, top + 8))
        top += 20
    for dimension, what in strategy.travels.items():
        lanes = lanes_of(strategy.sizes, dimension)
        words += [text(dimension, 2, top + 12), text(what, 2, top + 12 + LANE * len(lanes) + 10)]
        parts += [lane(groups, LEFT, column, top + 8 + LANE * number) for number, groups in enumerate(lanes)]
        top += LANE * len(lanes) + 34
    return Drawing([*parts, *words], f"{strategy.title}: what each process holds and sends", round(top))


def rows_of(names: Iterable[str], longest: int) -> list[list[str]]:
    """Returns the matrices before the layers, of each layer, and after them, in rows that are at most so long."""
    layers: dict[float, list[str]] = {}
    for name in names:
        found = re.search(r"layer\.(\d+)\.", name)
        layers.setdefault(float(found[1]) if found else -1.0 if "embeddings" in name else math.inf, []).append(name)
    return [
        layers[number][i : i + longest] for number in sorted(layers) for i in range(0, len(layers[number]), longest)
    ]


def extent(parts: Iterable[Sequence[Sequence[Sequence[int]]]]) -> list[int]:
    """Returns the shape of a matrix, from the parts that all processes hold."""
    ends = [[first + length for first, length in zip(*box, strict=True)] for held in parts for box in held]
    return [max(each) for each in zip(*ends, strict=True)]


def rectangle(corner: tuple[float, float], size: tuple[float, float]) -> str:
    """Returns a rectangle as a part of an SVG path."""
    return f"M{corner[0]:.1f} {corner[1]:.1f}h{size[0]:.1f}v{size[1]:.1f}h{-size[0]:.1f}z"


def scaled(
    boxes: Iterable[Sequence[Sequence[int]]],
    shape: Sequence[int],
    corner: tuple[float, float],
    size: tuple[float, float],
) -> list[str]:
    """Returns the held parts of a matrix as rectangles; its rows go down, its columns to the right."""
    down, right = size[1] / shape[0], size[0] / shape[1]
    return [
        rectangle((corner[0] + start[1] * right, corner[1] + start[0] * down), (length[1] * right, length[0] * down))
        for start, length in boxes
        if math.prod(length)
    ]


def lanes_of(sizes: Mapping[str, int], dimension: str) -> list[list[list[int]]]:
    """Returns the groups of processes along a dimension, in lanes of groups that do not overlap."""
    shape = [sizes.get(name, 1) for name in DIMENSIONS]
    ranks = np.arange(math.prod(shape)).reshape(shape)
    groups = np.moveaxis(ranks, DIMENSIONS.index(dimension), -1).reshape(-1, sizes[dimension]).tolist()
    lanes: list[list[list[int]]] = []
    for group in groups:
        free = next((each for each in lanes if each[-1][-1] < group[0]), None)
        if free is None:
            lanes.append([group])
        else:
            free.append(group)
    return lanes


def lane(groups: Iterable[Sequence[int]], left: float, column: float, y: float) -> str:
    """Returns a line for each group of processes, with a dot for each process."""
    parts = []
    for group in groups:
        places = [left + (rank + 0.5) * column for rank in group]
        parts.append(f'<path d="M{places[0]:.1f} {y:.1f}H{places[-1]:.1f}" stroke-width="2"/>')
        parts += [f'<circle cx="{place:.1f}" cy="{y:.1f}" r="3.5" stroke="none"/>' for place in places]
    return coloured(3, *parts)


def rendered(found: Mapping[str, Sequence[Mapping[str, Parts]]]) -> dict[str, str]:
    """Returns the images by the names of their files."""
    return {f"strategy_{name}.svg": sheet([picture(STRATEGIES[name], held)]) for name, held in found.items()}


def main(*arguments: str) -> None:
    """Measures unless told to render only, then draws; in a launched process, trains."""
    if "RANK" in os.environ:
        train(Path(arguments[0]), arguments[1:])
        return
    if "--render" not in arguments:
        found = {name: measured(strategy) for name, strategy in STRATEGIES.items()}
        lines = (f'"{name}": {json.dumps(held, separators=(",", ":"))}' for name, held in found.items())
        HELD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for name, picture in rendered(json.loads(HELD.read_text(encoding="utf-8"))).items():
        (PICTURES / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
