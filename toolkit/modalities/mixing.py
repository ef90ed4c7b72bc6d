"""Mixtures of two images (MixUp and CutMix).

Which row another one is mixed with, how, and how much, are functions of seed, epoch and row. Papers mix rows of a batch
with each other; then the mixture would depend on how a window is cut into batches.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from toolkit.modalities.options import ImageOptions

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def mixes(options: ImageOptions) -> bool:
    """Whether training images are mixed."""
    return options.mixup_alpha > 0 or options.cutmix_alpha > 0


def mixed(image: Tensor, other: Tensor, options: ImageOptions, generator: np.random.Generator) -> tuple[Tensor, float]:
    """Returns the mixture of two images `[C, H, W]`, and the first one's share of it."""
    # All numbers are always drawn, so that one setting does not change the effect of another.
    choice, left, top = generator.random(3)
    alphas = options.mixup_alpha, options.cutmix_alpha
    shares = [float(generator.beta(alpha, alpha)) if alpha else 1.0 for alpha in alphas]
    if not options.cutmix_alpha or (options.mixup_alpha and choice < 0.5):
        return shares[0] * image + (1 - shares[0]) * other, shares[0]
    # A rectangle of the image's aspect around a uniform centre, cut at the border.
    height, width = image.shape[-2:]
    side = math.sqrt(1 - shares[1])
    (y1, y2), (x1, x2) = _extent(top, height, side), _extent(left, width, side)
    result = image.clone()
    result[:, y1:y2, x1:x2] = other[:, y1:y2, x1:x2]
    return result, 1 - (y2 - y1) * (x2 - x1) / (height * width)


def _extent(centre: float, size: int, part: float) -> tuple[int, int]:
    """Returns the first and last + 1 position of a part of a side around a centre, from 0 to 1."""
    half, middle = int(size * part) // 2, int(centre * size)
    return max(0, middle - half), min(size, middle + half)
