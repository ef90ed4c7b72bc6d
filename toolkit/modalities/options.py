"""Option groups of the modalities, in a file without heavy imports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from toolkit.config.sections import STRICT, Positive

Probability = Annotated[float, Field(ge=0, le=1)]


NEEDED = {
    "image.rand_augment_magnitude": "rand_augment", "audio.noise_snr": "noise", "audio.time_mask_width": "time_masks",
    "audio.frequency_mask_width": "frequency_masks", "augment.synonym_replacement": "synonyms_file",
    "augment.synonyms_file": "synonym_replacement",
}  # fmt: skip
"""Options of groups that have an effect only with another one of the group."""


def idle_options(options: Any) -> list[str]:
    """Returns a full message for each changed option of a task's groups without the one that it needs."""
    found = []
    for section, name, needed in ((*key.split("."), other) for key, other in NEEDED.items()):
        group = getattr(options, section, None)
        if group and getattr(group, name) != getattr(type(group)(), name) and not getattr(group, needed):
            why = f"has no effect without task.{section}.{needed}; set that, or remove it"
            found.append(f"task.{section}.{name}: {why}")
    return found


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Options for reading images and for augmenting them in training (not in evaluation).

    Augmentation is seeded per epoch and row. The model's `num_channels` decides whether images are grey or RGB.
    """

    __pydantic_config__ = STRICT

    size: Positive | None = None
    """Height and width of the model's input in pixels; null uses the size of the pretrained processor or of the model's
    configuration (`image_size`), or 224."""
    max_pixels: Annotated[int, Field(ge=1, le=178_956_970)] = 50_000_000
    """Images with more pixels are bad rows and are not decoded."""
    random_crop: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Smallest fraction of the image's area that a random crop keeps, with an aspect ratio of 3:4 to 4:3 of the
    image's; 1 does not crop. Pretrained models are often trained with 0.08 (Szegedy et al. 2014, arXiv 1409.4842)."""
    horizontal_flip: Probability = 0.0
    """Probability of a horizontal flip."""
    color_jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Brightness, contrast and saturation are each changed by a factor of up to 1 ± this."""
    random_erasing: Probability = 0.0
    """Probability of erasing a rectangle of 2 to 33 % of the image (Zhong et al. 2017, arXiv 1708.04896)."""
    rand_augment: Annotated[int, Field(ge=0)] = 0
    """Number of operations that change each training image, often 2, each drawn from 14: shears, shifts, rotation,
    colours, contrast and others (RandAugment, Cubuk et al. 2019, arXiv 1909.13719); 0 changes none."""
    rand_augment_magnitude: Annotated[int, Field(ge=0, le=30)] = 9
    """Strength of these operations, with the ranges of torchvision's `RandAugment` and its 31 values."""
    mixup_alpha: Annotated[float, Field(ge=0)] = 0.0
    """Mix each training image and its loss with those of another one (MixUp, Zhang et al. 2018, arXiv 1710.09412), with
    a share drawn from the distribution Beta(alpha, alpha), often with 0.2; 0 does not mix. The other image is drawn
    from all training rows, by seed, epoch and row."""
    cutmix_alpha: Annotated[float, Field(ge=0)] = 0.0
    """Replace a rectangle of each training image by that of another one, and mix their losses by area (CutMix, Yun et
    al. 2019, arXiv 1905.04899), often with 1.0; 0 does not. With `mixup_alpha` too, each row is mixed in one of the two
    ways, by chance."""


@dataclass(frozen=True, kw_only=True)
class AudioOptions:
    """Options for reading audio, which is mixed to one channel and resampled to the model's rate."""

    __pydantic_config__ = STRICT

    sampling_rate: Annotated[int, Field(ge=1000)] | None = None
    """Sampling rate of the model's input; null uses that of the pretrained extractor, or 16000."""
    min_seconds: Annotated[float, Field(gt=0)] = 0.25
    """Shorter clips are padded with silence to this many seconds, and counted."""
    max_seconds: Annotated[float, Field(gt=0)] = 10.0
    """Longer clips are cropped to this many seconds. Whisper inputs and log-mel spectrograms have this length instead
    of a fixed length such as 30 s (rounded to full seconds for Whisper)."""
    crop: Literal["random", "center"] = "random"
    """Crops longer clips, and places shorter ones in the log-mel spectrogram, at a random position in training, seeded
    per epoch and row. Evaluation uses the centre."""
    speed: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Speed augmentation: in training, each clip is played up to this fraction faster or slower, which also changes its
    pitch (Ko et al. 2015); seeded per epoch and row."""
    noise: Probability = 0.0
    """Probability of adding white noise to a training clip; seeded per epoch and row."""
    noise_snr: Annotated[float, Field(ge=-20, lt=40)] = 10.0
    """Lowest ratio of the clip's power to that of the noise, in dB; it is drawn evenly from this to 40."""
    time_masks: Annotated[int, Field(ge=0)] = 0
    """Number of stretches of time that are masked in training (SpecAugment, Park et al. 2019, arXiv 1904.08779): with
    the mean of the spectrogram, or with silence for models of waveforms; seeded per epoch and row."""
    time_mask_width: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Largest width of each, as a fraction of the clip; the width is drawn from 0 to this."""
    frequency_masks: Annotated[int, Field(ge=0)] = 0
    """Number of bands of frequencies that are masked in training (models of spectrograms)."""
    frequency_mask_width: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Largest width of each, as a fraction of the mel bins."""
    num_mel_bins: Positive = 64
    """Height of the log-mel spectrogram for vision models (ConvNeXt, ResNet); other models define it themselves."""
