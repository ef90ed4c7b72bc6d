"""Image files: which can be decoded, and how their pixels become grey or RGB."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.api.batch import BadRow
from toolkit.data.media.files import open_file, raise_unless_file

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "HEIF")
"""Supported image formats; Pillow's other decoders start external programs or are rarely maintained."""
FRAMES = "frames"
"""Key of the number of frames of a decoded image's file, in `info`."""
DEPTHS = {2**8: 1, 2**12: 2**4, 2**16: 2**8}
"""Divisors that give 8 bits, by the bound of the values in an image of 16 bits."""
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "I", "I;16", "I;16B", "I;16L")
"""Pixel modes with a defined range of values, which can be converted to grey or RGB."""


def decode(file: Mapping[str, Any], max_pixels: int, small: bool = False) -> Image:
    """Reads an image (the first frame of an animation) and applies its EXIF orientation; `info[FRAMES]` counts frames.

    With `small`, a JPEG is read whole, at an eighth of its size, in half to a third of the time.

    Raises:
        BadRow: if the file is not an image, is corrupt, or has more than `max_pixels` pixels (checked before decoding).
        DataError: if the machine could not read it just now.
    """
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings(), open_file(file) as opened:
            # Pillow warns about its own size limit, and about metadata that is not needed here.
            warnings.simplefilter("ignore")
            image = Image.open(opened, formats=image_formats())
            width, height = image.size
            if width * height > max_pixels:
                raise BadRow(f"{file['name']}: {width}x{height} pixels; task.image.max_pixels allows {max_pixels:,}")
            if small:
                image.draft("L", (max(1, width // 8), max(1, height // 8)))
            image.load()
            _require_clear_pixels(image, file["name"])
            turned = ImageOps.exif_transpose(image)
            turned.info[FRAMES] = getattr(image, "n_frames", 1)
            return turned
    except BadRow:
        raise
    except Exception as error:  # each decoder has its own exception types
        raise_unless_file(file["name"], error)
        raise BadRow(f"{file['name']}: {_reason(error, file['name'])}") from error


@cache
def image_formats() -> tuple[str, ...]:
    """Returns the formats that can be decoded; HEIF (photos of iPhones, .heic) needs the extra `heic`."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return tuple(name for name in FORMATS if name != "HEIF")
    register_heif_opener()
    return FORMATS


def _require_clear_pixels(image: Image, name: str) -> None:
    """Rejects pixel modes without a defined range of values, because conversion would clip most values."""
    values = np.asarray(image) if image.mode == "I" else np.zeros(1)
    if image.mode not in MODES or values.min() < 0 or values.max() > 65535:
        raise BadRow(f"{name}: unsupported pixel mode {image.mode!r}; save it as 8- or 16-bit grey or RGB")


def _reason(error: Exception, name: str) -> str:
    from PIL import Image, UnidentifiedImageError

    if name.lower().endswith((".heic", ".heif")) and "HEIF" not in image_formats():
        return (
            "HEIC images need pillow-heif, which is not installed; pip install 'finetune-toolkit[heic]', or convert "
            "them to JPEG"
        )
    if isinstance(error, UnidentifiedImageError):
        return f"not an image in a supported format ({', '.join(image_formats())})"
    if isinstance(error, Image.DecompressionBombError):
        return f"too many pixels for any task.image.max_pixels ({error})"
    return f"cannot be decoded: {error or type(error).__name__}"


def depth(image: Image) -> int:
    """Returns the bound of the values of an image of 16 bits, which may be of 8 or 12, by its largest; 0 for others."""
    if not image.mode.startswith("I"):
        return 0
    largest = np.asarray(image).max()
    return next(bound for bound in DEPTHS if largest < bound)


def as_channels(image: Image, channels: int) -> Image:
    """Converts an image to grey (1 channel) or RGB (3)."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip at 255 instead of scaling
        values = np.asarray(image)
        image = Image.fromarray((values // DEPTHS[depth(image)]).astype(np.uint8))
    if "transparency" in image.info:  # avoids Pillow's warning about transparency, which is dropped
        image = image.convert("RGBA")
    return image.convert("L" if channels == 1 else "RGB")
