"""Images: augmentation, pixels on the device, image processors."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from toolkit.api.batch import BadRow, Omission, Processor, look_up
from toolkit.api.random import RowRandom
from toolkit.base.errors import DataError, pretrained_error
from toolkit.config.sections import ModelConfig
from toolkit.modalities.image_files import FRAMES, depth
from toolkit.modalities.image_files import as_channels as as_channels
from toolkit.modalities.image_files import decode as decode
from toolkit.modalities.options import ImageOptions

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedConfig


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
    except Exception:  # processors of models' own code may reject any of these arguments, with any error
        return None
    return found


def _image(pixels: np.ndarray, channels: int) -> Image:
    from PIL import Image

    return Image.fromarray(pixels.squeeze()).convert("L" if channels == 1 else "RGB")


ASPECT = (3 / 4, 4 / 3)
ERASED_VALUE = (0.02, 0.33)


def changes_pixels(options: ImageOptions) -> bool:
    """Whether `vary` has an effect; it is applied to images as they are in their files, before resizing."""
    return options.random_crop < 1 or any((options.horizontal_flip, options.color_jitter, options.rand_augment))


def vary(image: Image, options: ImageOptions, generator: np.random.Generator) -> Image:
    """Randomly crops, flips and colour-jitters an image, and applies operations of RandAugment."""
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
    # Drawn last, so that their number does not move other draws.
    for kind, sign in generator.random((options.rand_augment, 2)):
        strength = options.rand_augment_magnitude / MAGNITUDES * (-1 if sign < 0.5 else 1)
        image = changed(image, OPERATIONS[int(kind * len(OPERATIONS))], strength)
    return image


OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
"""Those of RandAugment."""
MAGNITUDES = 30


def changed(image: Image, operation: str, strength: float) -> Image:
    """Returns an image of mode L or RGB after one of `OPERATIONS`, as torchvision's; pixels from outside are black.

    `strength`, -1 to 1, is the part of the largest magnitude, and the direction of operations that have two.
    """
    from PIL import Image, ImageEnhance, ImageOps

    shear, x, y = 0.3 * strength, *(int(150 / 331 * strength * side) for side in image.size)
    moves = {"identity": (1, 0, 0, 0, 1, 0), "shear_x": (1, shear, 0, 0, 1, 0), "shear_y": (1, 0, 0, shear, 1, 0),
             "translate_x": (1, 0, -x, 0, 1, 0), "translate_y": (1, 0, 0, 0, 1, -y)}  # fmt: skip
    if operation == "rotate":
        return image.rotate(30 * strength)
    if operation in moves:
        return image.transform(image.size, Image.Transform.AFFINE, moves[operation])
    if operation in ("brightness", "color", "contrast", "sharpness"):
        return getattr(ImageEnhance, operation.title())(image).enhance(1 + 0.9 * strength)
    level = abs(strength)
    given = {"posterize": [8 - round(4 * level)], "solarize": [math.ceil(255 - 255 * level)]}.get(operation, [])
    return getattr(ImageOps, operation)(image, *given)


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


AUTO_PROCESSOR = "AutoImageProcessor"
LIBRARIES: tuple[str, ...] = ("pillow", *(["pillow-heif"] if find_spec("pillow_heif") else []))
DEFAULT_SIZE = 224
THUMBNAIL = 96
"""Longer side of an image in a report, in pixels."""


def auto_model(config: PreTrainedConfig) -> str:
    """Returns the name of the auto class for classification."""
    return "AutoModelForImageClassification"


def feature() -> Any:
    """Returns the Arrow type of a checked value."""
    from datasets import Value

    return {"path": Value("string"), "bytes": Value("binary"), "name": Value("string"), "flat": Value("bool"),
            "transparent": Value("bool"), "frames": Value("int64"), "depth": Value("int64")}  # fmt: skip


def check(file: Mapping[str, Any], options: Any) -> Mapping[str, Any]:
    """Decodes an image, so that corrupt files are found before training, as a BadRow with name and reason."""
    image = decode(file, options.image.max_pixels, small=True)
    if flat := _is_flat(image):  # a detail may be lost at a smaller size
        flat = _is_flat(decode(file, options.image.max_pixels))
    transparent = image.has_transparency_data and np.asarray(image.convert("RGBA"))[..., -1].min() < 255
    found = {"flat": flat, "transparent": bool(transparent), "frames": image.info[FRAMES], "depth": depth(image)}
    return {**file, **found}


FLAT = 3
"""Largest difference of two grey values, of 0 to 255, of an image that shows nothing."""


def _is_flat(image: Image) -> bool:
    values = np.asarray(as_channels(image, 1))
    return bool(values.max() <= int(values.min()) + FLAT)


def omissions(files: Sequence[Mapping[str, Any]], options: Any) -> list[Omission]:
    """Returns how many images show nothing, and of how many further frames or the transparency are ignored."""
    found = {
        "images have one colour only": [file["name"] for file in files if file["flat"]],
        "images used without their transparency": [file["name"] for file in files if file["transparent"]],
        "images used without the frames after the first": [file["name"] for file in files if file["frames"] > 1],
    }
    depths = {file["depth"] for file in files} - {0}
    for bound in sorted(depths)[:-1]:  # one of them only is right if all are from one device
        what = f"images of 16 bits read as of {bound.bit_length() - 1}, others as of more: their brightness differs"
        found[what] = [file["name"] for file in files if file["depth"] == bound]
    return [Omission(what, len(own), len(files), f"for instance {own[0]}") for what, own in found.items() if own]


def load_processor(source: str, model: ModelConfig, options: Any) -> Processor:
    """Loads an image processor without torchvision; `options.image.size` replaces its size."""
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

    size = options.image.size or getattr(config, "image_size", None) or DEFAULT_SIZE
    height, width = (size, size) if isinstance(size, int) else size
    half = [0.5] * config.num_channels
    return ViTImageProcessorPil(size={"height": height, "width": width}, image_mean=half, image_std=half)


def longest(options: Any, processor: Processor) -> None:
    """Returns None, because all images have the same size."""


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


def decoded(row: Mapping[str, Any], processor: Processor, options: Any, training: bool) -> np.ndarray:
    """Reads the image of a feature row, as far as nothing is random.

    Returns:
        `[C, H, W]` uint8, resized; or `[height, width]` or `[height, width, 3]` if training changes it at random first,
        or if the processor has no table.

    Raises:
        DataError: if the file has changed since it was checked.
    """
    try:
        image = as_channels(decode(row["file"], options.image.max_pixels), len(processor.image_mean))
    except BadRow as error:
        raise DataError(f"{error}. It was intact when the rows were checked; rerun to check it again.") from error
    if (training and changes_pixels(options.image)) or table(processor) is None:
        return np.asarray(image)
    return resized(processor, [image])[0]


def compact(
    features: Sequence[dict[str, Any]], processor: Processor, options: Any, random: RowRandom
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Returns the model's inputs as bytes, with the table of their numbers (see `toolkit.api.batch.Batch`).

    Images of rows without `decoded` are read, and images of training rows are changed at random. Processors without a
    table give `pixel_values` `[B, C, H, W]` in float32 and no table.

    Raises:
        DataError: if a file has changed since it was checked.
    """
    training, numbers = random.training, table(processor)
    arrays = [
        row["decoded"] if row.get("decoded") is not None else decoded(row, processor, options, training)
        for row in features
    ]
    row_ids = [row["row_id"] for row in features]
    pixels = _pixels(arrays, row_ids, processor, options.image, random)
    if training and options.image.random_erasing:
        pixels = pixels if numbers is None else pixels.short()
        for row_id, image in zip(row_ids, pixels, strict=True):
            # Drawn after the numbers of `vary`, so that both can be enabled independently.
            generator = random.generator(row_id).spawn(1)[0]
            erase(image, generator, options.image.random_erasing, 0.0 if numbers is None else ERASED)
    return {"pixel_values": pixels}, {} if numbers is None else {"pixel_values": numbers}


def _pixels(
    arrays: Sequence[np.ndarray], row_ids: Sequence[int], processor: Processor, options: ImageOptions, random: RowRandom
) -> torch.Tensor:
    """Returns `[B, C, H, W]`, bytes if the processor has a table, from what `decoded` returned."""
    from PIL import Image

    varied = random.training and changes_pixels(options)
    if not varied and table(processor) is not None:
        return torch.from_numpy(np.stack(arrays))
    images = [Image.fromarray(array) for array in arrays]
    if varied:
        rows = zip(images, row_ids, strict=True)
        images = [vary(image, options, random.generator(row_id)) for image, row_id in rows]
    if table(processor) is not None:
        return torch.from_numpy(resized(processor, images))
    pixels: torch.Tensor = processor(images=images, return_tensors="pt")["pixel_values"]
    return pixels


def collate(
    features: Sequence[dict[str, Any]], processor: Processor, options: Any, random: RowRandom
) -> dict[str, torch.Tensor]:
    """Returns `pixel_values` `[B, C, H, W]` float32; images of training rows are augmented, as by `compact`."""
    inputs, tables = compact(features, processor, options, random)
    return {name: look_up(tables[name], value) if name in tables else value for name, value in inputs.items()}


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
