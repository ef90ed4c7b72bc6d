"""Images: decoding, augmentation, image processors."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from toolkit.api.batch import BadRow, Processor, look_up
from toolkit.api.random import RowRandom
from toolkit.base.errors import DataError, pretrained_error
from toolkit.config.sections import ModelConfig
from toolkit.modalities.augmentation import changes_pixels, erase, vary
from toolkit.modalities.image_files import as_channels as as_channels
from toolkit.modalities.image_files import decode as decode
from toolkit.modalities.options import ImageOptions
from toolkit.modalities.pixels import ERASED, resized, table

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

AUTO_PROCESSOR = "AutoImageProcessor"
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

    Images of rows without `decoded` are read, and those of training rows are changed at random.

    Returns:
        `pixel_values` `[B, C, H, W]`, and its table. Processors without a table give float32 and no table.

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
    """Decodes images and augments those of training rows; arguments and errors as for `compact`.

    Returns:
        `pixel_values` `[B, C, H, W]` float32.
    """
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
