"""Groups of settings that belong to a modality, in files that nothing heavy is imported for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from toolkit.config.sections import STRICT, Positive

Probability = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images are read, and augmented in training (not in evaluation).

    What is drawn depends on seed, epoch and row only. Whether images are grey or coloured follows from the model's
    `num_channels`.
    """

    __pydantic_config__ = STRICT

    size: Positive | None = None
    """Side in pixels of what the model sees; null takes that of the pretrained processor or of the model's
    configuration (`image_size`), or 224."""
    max_pixels: Annotated[int, Field(ge=1, le=178_956_970)] = 50_000_000
    """An image with more pixels is a bad row, and is not decoded."""
    random_crop: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Smallest part of an image's area that a random crop keeps, with sides of 3:4 to 4:3 of the image's; 1 does not
    crop. Pretrained models are often trained with 0.08 (Szegedy et al. 2014, arXiv 1409.4842)."""
    horizontal_flip: Probability = 0.0
    """Probability of mirroring an image."""
    color_jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Brightness, contrast and saturation are each changed by a factor of up to 1 ± this."""
    random_erasing: Probability = 0.0
    """Probability of blanking a rectangle of 2 to 33 % of the image (Zhong et al. 2017, arXiv 1708.04896)."""


@dataclass(frozen=True, kw_only=True)
class AudioOptions:
    """How audio is read: mixed to one channel and resampled to the model's rate."""

    __pydantic_config__ = STRICT

    sampling_rate: Annotated[int, Field(ge=1000)] | None = None
    """Sampling rate of the model's input; null takes that of the pretrained extractor, or 16000."""
    min_seconds: Annotated[float, Field(gt=0)] = 0.25
    """A shorter clip is a bad row."""
    max_seconds: Annotated[float, Field(gt=0)] = 10.0
    """Longer clips are cropped to this many seconds. Whisper's input and log-mel spectrograms have this length instead
    of a fixed one such as 30 s (Whisper in full seconds)."""
    crop: Literal["random", "center"] = "random"
    """Which part of a longer clip is used in training, and where in a log-mel spectrogram a shorter one is placed;
    drawn by seed, epoch and row. In evaluation it is the centre."""
    speed: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """In training, each clip is played up to this fraction faster or slower, which changes its pitch too, as another
    voice would (Ko et al. 2015); drawn by seed, epoch and row."""
    num_mel_bins: Positive = 64
    """Height of the log-mel spectrogram for vision models (ConvNeXt, ResNet); other models have their own."""
