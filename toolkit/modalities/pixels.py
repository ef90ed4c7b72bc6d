"""What an image processor does, in two parts: resizing to bytes, and the numbers that the bytes stand for.

The second part is a table of 256 numbers per channel, which the processor itself computes, so that looking up gives
its own numbers, bit for bit, on every device. Bytes are a quarter of the numbers to keep and to move.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from toolkit.api.batch import Processor, look_up

if TYPE_CHECKING:
    from PIL.Image import Image

VALUES = 256
ERASED = VALUES
"""Position in a table of the value of erased pixels: 0, the mean after normalisation."""
PROBES = ((37, 61), (400, 300))
"""Width and height of the images with which a processor is tried."""


def resized(processor: Processor, images: list[Image]) -> np.ndarray:
    """Returns images `[B, C, H, W]` as bytes, resized and cropped by a processor that has a table."""
    made = processor(images=images, do_rescale=False, do_normalize=False, return_tensors="np")
    pixels: np.ndarray = made["pixel_values"]
    return pixels


@lru_cache(maxsize=4)
def table(processor: Processor) -> torch.Tensor | None:
    """Returns the numbers of bytes, `[C, 257]` float32 with 0 for erased pixels.

    None for processors whose numbers depend on more than one byte of the resized image: they are tried on noise.
    """
    channels = len(processor.image_mean)
    ramp = np.arange(VALUES, dtype=np.uint8).reshape(16, 16)
    try:
        as_is = processor(images=[_image(ramp, channels)], do_resize=False, do_center_crop=False, return_tensors="pt")
        numbers = as_is["pixel_values"].reshape(channels, VALUES)
        found = torch.cat([numbers, torch.zeros(channels, 1)], dim=1)
        generator = np.random.default_rng(0)
        for width, height in PROBES:
            noise = _image(generator.integers(0, VALUES, (height, width, channels), dtype=np.uint8), channels)
            bytes_, whole = resized(processor, [noise]), processor(images=[noise], return_tensors="pt")["pixel_values"]
            if bytes_.dtype != np.uint8 or not torch.equal(look_up(found, torch.from_numpy(bytes_)), whole):
                return None
    except Exception:  # processors of models' own code may refuse any of these arguments, with any error
        return None
    return found


def _image(pixels: np.ndarray, channels: int) -> Image:
    from PIL import Image

    return Image.fromarray(pixels.squeeze()).convert("L" if channels == 1 else "RGB")
