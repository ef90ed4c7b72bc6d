"""Random changes of training images; every number is drawn from a generator of the row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from toolkit.modalities.options import ImageOptions

if TYPE_CHECKING:
    from PIL.Image import Image

ASPECT = (3 / 4, 4 / 3)
ERASED_VALUE = (0.02, 0.33)


def changes_pixels(options: ImageOptions) -> bool:
    """Whether `vary` has an effect; it is applied to images as they are in their files, before resizing."""
    return options.random_crop < 1 or options.horizontal_flip > 0 or options.color_jitter > 0


def vary(image: Image, options: ImageOptions, generator: np.random.Generator) -> Image:
    """Randomly crops, flips and colour-jitters an image."""
    from PIL import Image, ImageEnhance

    # All numbers are always drawn, so that one setting does not change the effect of another.
    area, ratio, left, top, flip, *factors = generator.random(8)
    if options.random_crop < 1:
        part = options.random_crop + area * (1 - options.random_crop)
        aspect = math.sqrt(math.exp(math.log(ASPECT[0]) + ratio * (math.log(ASPECT[1]) - math.log(ASPECT[0]))))
        width = max(1, round(image.width * min(1.0, math.sqrt(part) * aspect)))
        height = max(1, round(image.height * min(1.0, math.sqrt(part) / aspect)))
        x, y = round(left * (image.width - width)), round(top * (image.height - height))
        image = image.crop((x, y, x + width, y + height))
    if flip < options.horizontal_flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if options.color_jitter:
        enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        for enhancer, factor in zip(enhancers, factors, strict=True):
            image = enhancer(image).enhance(1 + options.color_jitter * (2 * factor - 1))
    return image


def erase(image: torch.Tensor, generator: np.random.Generator, probability: float, value: float) -> None:
    """Sets a rectangle of an image `[C, H, W]` to a value, with a given probability."""
    chance, area, ratio, left, top = generator.random(5)
    if chance >= probability:
        return
    full_height, full_width = image.shape[-2:]
    part = ERASED_VALUE[0] + area * (ERASED_VALUE[1] - ERASED_VALUE[0])
    aspect = 0.3 ** (1 - 2 * ratio)  # aspect ratios from 0.3 to 1 / 0.3, as in the paper
    height = min(full_height, max(1, round(full_height * math.sqrt(part * aspect))))
    width = min(full_width, max(1, round(full_width * math.sqrt(part / aspect))))
    y, x = round(top * (full_height - height)), round(left * (full_width - width))
    image[:, y : y + height, x : x + width] = value
