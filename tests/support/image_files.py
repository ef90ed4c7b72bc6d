"""Images and encoded image files for tests."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def noise(*shape: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def encoded(picture: Image.Image, form: str = "PNG", **arguments) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **arguments)
    return buffer.getvalue()
