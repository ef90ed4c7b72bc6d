"""SpecAugment: masks of time and frequency on training clips (Park et al. 2019, arXiv 1904.08779).

Masks are part of the input, not of the model, so they belong to a row and its epoch: they depend neither on the batch
nor on the process, unlike those of wav2vec 2.0's own `apply_spec_augment`. Time warping, which the paper found to help
least, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.api.batch import Processor
from toolkit.api.random import RowRandom
from toolkit.modalities.audio_models import takes_waveforms
from toolkit.modalities.options import AudioOptions


def masked_rows(
    clips: list[np.ndarray],
    rows: Sequence[Mapping[str, Any]],
    extractor: Processor,
    options: AudioOptions,
    random: RowRandom,
) -> list[np.ndarray]:
    """Returns the clips of training rows with masks, and those of others as they are.

    Args:
        clips: waveforms or spectrograms, each in the shape of the model's input.
        rows: their rows, with `row_id`.
        extractor: the feature extractor that made them.
        options: number and widths of the masks.
        random: source of randomness.
    """
    if not random.training or not (options.time_masks or options.frequency_masks):
        return clips
    time, frequency = (0, 1) if extractor.model_input_names[0] == "input_values" else (-1, -2)
    kinds = time, None if takes_waveforms(extractor) else frequency
    pairs = zip(clips, rows, strict=True)
    return [masked(clip, *kinds, options, random.generator(row["row_id"])) for clip, row in pairs]


def masked(
    clip: np.ndarray, time: int, frequency: int | None, options: AudioOptions, generator: np.random.Generator
) -> np.ndarray:
    """Returns a copy of a clip with masks.

    Args:
        clip: a waveform or a spectrogram, of any shape.
        time: its dimension of time.
        frequency: its dimension of frequencies; None for a waveform.
        options: number and widths of the masks.
        generator: source of randomness.
    """
    # Streams of their own, so that the number of one kind does not move the other.
    of_time, of_frequency = generator.spawn(2)
    changed = clip.copy()
    fill = 0.0 if frequency is None else clip.mean()
    _mask(changed, time, options.time_masks, options.time_mask_width, fill, of_time)
    if frequency is not None:
        _mask(changed, frequency, options.frequency_masks, options.frequency_mask_width, fill, of_frequency)
    return changed


def _mask(clip: np.ndarray, axis: int, count: int, width: float, fill: float, generator: np.random.Generator) -> None:
    along = np.moveaxis(clip, axis, 0)  # a view
    for share, start in generator.random((count, 2)):
        size = int(share * (width * len(along) + 1))  # 0 to the largest width, equally often
        first = int(start * (len(along) - size + 1))
        along[first : first + size] = fill
