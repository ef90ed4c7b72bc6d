"""Images and encoded image files for tests."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def noise(*shape: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def encoded(picture: Image.Image, form: str = "PNG", **arguments) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **arguments)
    return buffer.getvalue()


def write_batches(mirror: Path, images: dict[str, list[tuple[int, Image.Image]]], cut: int = 0) -> None:
    """Writes CIFAR-10's binary version from classes and images by batch; the last `cut` bytes of each are missing."""
    with tarfile.open(mirror / "cifar-10-binary.tar.gz", "w:gz", compresslevel=1) as archive:
        for batch in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
            planes = ((number, image.split()) for number, image in images.get(batch, []))
            content = b"".join(bytes([number]) + b"".join(map(Image.Image.tobytes, each)) for number, each in planes)
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{batch}.bin")
            member.size = max(0, len(content) - cut)
            archive.addfile(member, io.BytesIO(content))


def drawn(number: int, index: int) -> Image.Image:
    """Draws an image that differs by row, column, colour, class and number."""
    image = Image.new("RGB", (32, 32), (number * 20, index, 7))
    image.putpixel((31, 0), (1, 2, 3))
    return image
