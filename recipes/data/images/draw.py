"""Draws the sample pictures: leaves, tools and fruits of 32 by 32 pixels.

python recipes/data/images/draw.py FOLDER

Training and validation share no kind: an oak leaf, a hammer or a pear is in one of them only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDE, SCALE = 32, 4
PER_KIND = {"train": 12, "validation": 8}
Colour = tuple[int, int, int]
Pen = ImageDraw.ImageDraw
Drawing = Callable[[Pen, np.random.Generator], None]


def colour(generator: np.random.Generator, *base: int, spread: int = 35) -> Colour:
    """Returns a colour near a base colour."""
    red, green, blue = np.clip(np.array(base) + generator.integers(-spread, spread + 1, 3), 0, 255).tolist()
    return red, green, blue


def leaf(width: float, teeth: int, depth: float, green: Colour) -> Drawing:
    """A leaf: an outline of a given width with teeth or lobes, and its veins."""

    def draw(pen: Pen, generator: np.random.Generator) -> None:
        fill = colour(generator, *green)
        width_now = width * generator.uniform(0.85, 1.15)
        outline = []
        for side in (1, -1):
            for step in range(33):
                part = step / 32 if side == 1 else 1 - step / 32
                bump = 1 - depth * (0.5 + 0.5 * math.cos(2 * math.pi * teeth * part)) if teeth else 1.0
                half = 45 * width_now * math.sin(math.pi * part) ** 0.8 * bump
                outline.append((64 + side * half, 14 + 84 * part))
        pen.polygon(outline, fill=fill)
        vein = (fill[0] // 2, fill[1] // 2, fill[2] // 2)
        pen.line([(64, 16), (64, 116)], fill=vein, width=4)
        for height in (40, 58, 76):
            reach = 26 * width_now
            pen.line([(64 - reach, height - 12), (64, height), (64 + reach, height - 12)], fill=vein, width=2)

    return draw


def tool(head: Callable[[Pen, Colour], None]) -> Drawing:
    """A tool: a wooden handle with a metal head."""

    def draw(pen: Pen, generator: np.random.Generator) -> None:
        pen.rectangle([59, 34, 69, 118], fill=colour(generator, 150, 100, 50))
        head(pen, colour(generator, 130, 135, 145, spread=25))

    return draw


def hammer(pen: Pen, metal: Colour) -> None:
    """Draws a hammer's head."""
    pen.rectangle([30, 16, 98, 38], fill=metal)


def spade(pen: Pen, metal: Colour) -> None:
    """Draws a spade's blade."""
    pen.polygon([(42, 8), (86, 8), (86, 44), (64, 60), (42, 44)], fill=metal)


def rake(pen: Pen, metal: Colour) -> None:
    """Draws a rake's teeth."""
    pen.rectangle([22, 28, 106, 38], fill=metal)
    for x in range(24, 108, 16):
        pen.rectangle([x, 8, x + 5, 32], fill=metal)


def axe(pen: Pen, metal: Colour) -> None:
    """Draws an axe's blade."""
    pen.polygon([(56, 16), (72, 16), (104, 4), (110, 52), (72, 40), (56, 40)], fill=metal)


def hoe(pen: Pen, metal: Colour) -> None:
    """Draws a hoe's blade."""
    pen.polygon([(58, 20), (72, 20), (72, 34), (36, 58), (24, 46)], fill=metal)


def fruit(shape: list[tuple[float, float, float, float]], skin: Colour) -> Drawing:
    """A fruit: ellipses, a light spot and a stalk."""

    def draw(pen: Pen, generator: np.random.Generator) -> None:
        fill = colour(generator, *skin)
        stretch = generator.uniform(0.9, 1.1)
        for x, y, half_width, half_height in shape:
            half_width *= stretch
            pen.ellipse([x - half_width, y - half_height, x + half_width, y + half_height], fill=fill)
        x, y, half_width, half_height = shape[0]
        light = tuple(min(255, part + 60) for part in fill)
        pen.ellipse([x - half_width / 2, y - half_height / 2, x - half_width / 5, y - half_height / 6], fill=light)
        top = min(y - half_height for _, y, _, half_height in shape)
        pen.line([(64, top + 4), (70, top - 14)], fill=(90, 60, 30), width=5)

    return draw


KINDS: dict[str, dict[str, dict[str, Drawing]]] = {
    "train": {
        "leaf": {
            "oak": leaf(0.9, 4, 0.45, (90, 130, 50)),
            "willow": leaf(0.3, 0, 0.0, (110, 150, 80)),
            "beech": leaf(0.75, 0, 0.0, (60, 120, 40)),
        },
        "tool": {"hammer": tool(hammer), "spade": tool(spade), "rake": tool(rake)},
        "fruit": {
            "apple": fruit([(50, 70, 30, 36), (78, 70, 30, 36)], (190, 40, 40)),
            "pear": fruit([(64, 82, 34, 32), (64, 48, 20, 30)], (180, 190, 70)),
            "cherry": fruit([(42, 84, 22, 22), (88, 84, 22, 22)], (150, 20, 50)),
        },
    },
    "validation": {
        "leaf": {"birch": leaf(0.65, 7, 0.2, (80, 140, 60)), "chestnut": leaf(0.5, 9, 0.15, (70, 115, 50))},
        "tool": {"axe": tool(axe), "hoe": tool(hoe)},
        "fruit": {
            "plum": fruit([(64, 70, 30, 38)], (100, 50, 120)),
            "orange": fruit([(64, 70, 38, 38)], (230, 140, 40)),
        },
    },
}


def picture(draw: Drawing, generator: np.random.Generator) -> Image.Image:
    """Draws one object, turned and moved a little, on a plain ground."""
    canvas = Image.new("RGB", (SIDE * SCALE, SIDE * SCALE), ground := colour(generator, 205, 205, 200, spread=45))
    draw(ImageDraw.Draw(canvas), generator)
    move = tuple(generator.integers(-8, 9, 2).tolist())
    canvas = canvas.rotate(
        generator.uniform(-30, 30), Image.Resampling.BICUBIC, translate=(move[0], move[1]), fillcolor=ground
    )
    return canvas.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def main(folder: Path) -> None:
    """Writes `folder/<split>/<class>/<kind>-<number>.png`."""
    for split, classes in KINDS.items():
        for name, kinds in classes.items():
            for kind, draw in kinds.items():
                for number in range(PER_KIND[split]):
                    generator = np.random.default_rng([sum(map(ord, split + kind)), number])
                    path = folder / split / name / f"{kind}-{number:02}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    picture(draw, generator).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
