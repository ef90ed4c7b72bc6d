"""Images: decoding, augmentation, image processors."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from toolkit.api.random import RowRandom
from toolkit.api.task import BadRow, Processor
from toolkit.base.errors import DataError, pretrained_error
from toolkit.config.sections import ModelConfig
from toolkit.data.files import open_file
from toolkit.modalities.options import ImageOptions

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedConfig

AUTO_PROCESSOR = "AutoImageProcessor"
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "HEIF")
"""Supported image formats; Pillow's other decoders start external programs or are rarely maintained."""
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "I", "I;16", "I;16B", "I;16L")
"""Pixel modes with a defined range of values, which can be converted to grey or RGB."""
ASPECT = (3 / 4, 4 / 3)
ERASED = (0.02, 0.33)
DEFAULT_SIZE = 224
THUMBNAIL = 96
"""Longer side of an image in a report, in pixels."""


def auto_model(config: PreTrainedConfig) -> str:
    """Returns the name of the auto class for classification."""
    return "AutoModelForImageClassification"


def feature() -> Any:
    """Returns the Arrow type of a checked value."""
    from datasets import Value

    return {"path": Value("string"), "bytes": Value("binary"), "name": Value("string")}


def check(file: Mapping[str, Any], options: Any) -> Mapping[str, Any]:
    """Decodes an image once, so that corrupt files are found before training.

    Returns:
        The reference, unchanged.

    Raises:
        BadRow: if the file cannot be used, with its name and the reason.
    """
    decode(file, options.image.max_pixels)
    return file


def decode(file: Mapping[str, Any], max_pixels: int) -> Image:
    """Reads an image (the first frame of an animation) and applies its EXIF orientation.

    Args:
        file: a reference with the file's `name` and location.
        max_pixels: largest number of pixels, checked before decoding.

    Returns:
        The decoded image.

    Raises:
        BadRow: if the file is not an image, is corrupt, or has more than `max_pixels` pixels.
    """
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings(), open_file(file) as opened:
            # Pillow warns about its own size limit, and about metadata that is not needed here.
            warnings.simplefilter("ignore")
            image = Image.open(opened, formats=_formats())
            width, height = image.size
            if width * height > max_pixels:
                raise BadRow(f"{file['name']}: {width}x{height} pixels; task.image.max_pixels allows {max_pixels:,}")
            image.load()
            _refuse_unclear_pixels(image, file["name"])
            return ImageOps.exif_transpose(image)
    except BadRow:
        raise
    except Exception as error:  # each decoder has its own exception types
        raise BadRow(f"{file['name']}: {_reason(error, file['name'])}") from error


@cache
def _formats() -> tuple[str, ...]:
    """Returns the formats that can be decoded; HEIF (photos of iPhones, .heic) needs the extra `heic`."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return tuple(name for name in FORMATS if name != "HEIF")
    register_heif_opener()
    return FORMATS


def _refuse_unclear_pixels(image: Image, name: str) -> None:
    """Refuses pixel modes without a defined range of values, because conversion would clip most values."""
    values = np.asarray(image) if image.mode == "I" else np.zeros(1)
    if image.mode not in MODES or values.min() < 0 or values.max() > 65535:
        raise BadRow(f"{name}: unsupported pixel mode {image.mode!r}; save it as 8- or 16-bit grey or RGB")


def _reason(error: Exception, name: str) -> str:
    from PIL import Image, UnidentifiedImageError

    if name.lower().endswith((".heic", ".heif")) and "HEIF" not in _formats():
        return (
            "HEIC images need pillow-heif, which is not installed; pip install 'finetune-toolkit[heic]', or convert "
            "them to JPEG"
        )
    if isinstance(error, UnidentifiedImageError):
        return f"not an image in a supported format ({', '.join(_formats())})"
    if isinstance(error, Image.DecompressionBombError):
        return f"too many pixels for any task.image.max_pixels ({error})"
    return f"cannot be decoded: {error or type(error).__name__}"


def as_channels(image: Image, channels: int) -> Image:
    """Converts an image to grey (1 channel) or RGB (3)."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip at 255 instead of scaling
        image = Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
    if "transparency" in image.info:  # avoids Pillow's warning about transparency, which is dropped
        image = image.convert("RGBA")
    return image.convert("L" if channels == 1 else "RGB")


def load_processor(source: str, model: ModelConfig, options: Any) -> Processor:
    """Loads the image processor of a pretrained model, a run or a checkpoint, without torchvision.

    Args:
        source: Hub id or folder.
        model: for `trust_remote_code`, and `revision` if the source is `name_or_path`.
        options: the task's options; `image.size` replaces the processor's size.

    Returns:
        The image processor.

    Raises:
        InputError: if it cannot be loaded.
    """
    from transformers import AutoImageProcessor

    revision = model.revision if source == model.name_or_path else None
    try:
        # Always the same backend, because torchvision's resampling gives different results.
        processor = AutoImageProcessor.from_pretrained(
            source, revision=revision or "main", trust_remote_code=model.trust_remote_code, backend="pil"
        )
    except Exception as error:  # Hub, file format and class errors are all caused by this setting
        raise pretrained_error("model.name_or_path", source, error) from error
    if options.image.size is not None:
        for name in ("size", "crop_size"):
            if sides := getattr(processor, name, None):
                setattr(processor, name, {side: options.image.size for side, value in dict(sides).items() if value})
    return processor


def new_processor(texts: Iterator[str], config: PreTrainedConfig, options: Any) -> Processor:
    """Creates a processor that resizes images to the new model's size and scales pixel values to [-1, 1]."""
    from transformers import ViTImageProcessorPil

    height, width = _sides(config, options.image)
    half = [0.5] * config.num_channels
    return ViTImageProcessorPil(size={"height": height, "width": width}, image_mean=half, image_std=half)


def _sides(config: PreTrainedConfig, options: ImageOptions) -> tuple[int, int]:
    size = options.size or getattr(config, "image_size", None) or DEFAULT_SIZE
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def configure(config: PreTrainedConfig, processor: Processor, new: bool) -> None:
    """Does nothing, because the processor is created for the model."""


def check_model(config: PreTrainedConfig, options: Any) -> list[str]:
    """Returns what is wrong between a model and the task's image options, as full messages."""
    channels = getattr(config, "num_channels", None)
    if channels is None:
        return [f"task.modality: received 'image', but {config.model_type} does not take images"]
    if channels not in (1, 3):
        return [f"model: {config.model_type} has num_channels {channels}; images have 1 (grey) or 3 (RGB)"]
    size, own = options.image.size, getattr(config, "image_size", None)
    if size is None or own is None or own in (size, [size, size], (size, size)):
        return []
    where = (
        f"this {config.model_type} has image_size {own}; set that instead (in model.from_config or config_overrides)"
    )
    return [f"task.image.size: received {size}, but {where}"]


def preprocess(files: Sequence[Mapping[str, Any]], processor: Processor, options: Any) -> dict[str, list[Any]]:
    """Passes references on; data loader workers decode the images, and pixels are never stored."""
    return {"file": list(files), "length": [1] * len(files)}


def collate(
    features: Sequence[dict[str, Any]], processor: Processor, options: Any, random: RowRandom
) -> dict[str, torch.Tensor]:
    """Decodes images and augments those of training rows.

    Returns:
        `pixel_values` `[B, C, H, W]` float32.

    Raises:
        DataError: if a file has changed since it was checked.
    """
    images = [_read(row, len(processor.image_mean), options.image, random) for row in features]
    pixels = processor(images=images, return_tensors="pt")["pixel_values"]
    if random.training and options.image.random_erasing:
        for row, image in zip(features, pixels, strict=True):
            # Drawn after the numbers of `vary`, so that both can be enabled independently.
            _erase(image, random.generator(row["row_id"]).spawn(1)[0], options.image.random_erasing)
    return {"pixel_values": pixels}


def _read(row: Mapping[str, Any], channels: int, options: ImageOptions, random: RowRandom) -> Image:
    try:
        image = as_channels(decode(row["file"], options.max_pixels), channels)
    except BadRow as error:
        raise DataError(f"{error}. It was intact when the rows were checked; rerun to check it again.") from error
    return vary(image, options, random.generator(row["row_id"])) if random.training else image


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


def _erase(image: torch.Tensor, generator: np.random.Generator, probability: float) -> None:
    chance, area, ratio, left, top = generator.random(5)
    if chance >= probability:
        return
    full_height, full_width = image.shape[-2:]
    part = ERASED[0] + area * (ERASED[1] - ERASED[0])
    aspect = 0.3 ** (1 - 2 * ratio)  # aspect ratios from 0.3 to 1 / 0.3, as in the paper
    height = min(full_height, max(1, round(full_height * math.sqrt(part * aspect))))
    width = min(full_width, max(1, round(full_width * math.sqrt(part / aspect))))
    y, x = round(top * (full_height - height)), round(left * (full_width - width))
    image[:, y : y + height, x : x + width] = 0.0  # the mean, after normalisation


def shown(file: Mapping[str, Any]) -> str:
    """Returns the file name, which identifies an image in messages and predictions."""
    return str(file["name"])


def thumbnail(file: Mapping[str, Any], options: Any) -> bytes | None:
    """Returns a small JPEG of an image for a report, or None if the file can no longer be read."""
    try:
        image = as_channels(decode(file, options.image.max_pixels), 3)
    except BadRow:
        return None
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=80)
    return stream.getvalue()
