"""Which models take audio, and the shortest and longest clips that they can process."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from toolkit.modalities.options import AudioOptions

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

DEFAULT_RATE = 16000
FRAME, HOP = 400, 160
"""Samples per frame of the log-mel spectrogram and between frames, as in transformers' AST extractor."""
VISION_MODELS = ("resnet", "convnext", "convnextv2", "regnet", "bit", "mobilenet_v1", "mobilenet_v2")
"""Vision models that take images of any size, and therefore log-mel spectrograms."""
OTHER_FEATURES = ("wav2vec2-bert", "moonshine")


def takes_waveforms(extractor: Any) -> bool:
    """Whether a feature extractor makes waveforms, not spectrograms."""
    return extractor.model_input_names[0] == "input_values" and not hasattr(extractor, "num_mel_bins")


def num_frames(options: AudioOptions, rate: int) -> int:
    """Returns the number of frames of the log-mel spectrogram of the longest clip."""
    return (round(options.max_seconds * rate) - FRAME) // HOP + 1


def check_model(config: PreTrainedConfig, options: Any) -> list[str]:
    """Returns what is wrong between a model and the task's audio options, as full messages."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES as KNOWN

    kind, audio = config.model_type, options.audio
    rate = audio.sampling_rate or DEFAULT_RATE
    if kind in OTHER_FEATURES or kind not in (*KNOWN, *VISION_MODELS):
        fit = [name for name in (*KNOWN, *VISION_MODELS) if name not in OTHER_FEATURES]
        return [f"task.modality: received 'audio', but the model is {kind}; expected one of {', '.join(fit)}"]
    if audio.min_seconds > audio.max_seconds:
        return [f"task.audio.min_seconds: received {audio.min_seconds}, must be at most {audio.max_seconds}"]
    if kind not in VISION_MODELS and audio.num_mel_bins != AudioOptions().num_mel_bins:
        return [f"task.audio.num_mel_bins: has no effect with a model of type {kind}; remove it"]
    if problems := _mask_problems(kind, audio):
        return problems
    seconds = f"task.audio.max_seconds: received {audio.max_seconds:g}"
    if kind == "whisper" and math.ceil(audio.max_seconds) * 50 > config.max_source_positions:
        return [f"{seconds}, but this model supports at most {config.max_source_positions // 50} s"]
    if kind in VISION_MODELS and config.num_channels != 1:
        return [f"model: {kind} has num_channels {config.num_channels}; a log-mel spectrogram has 1"]
    if kind == "audio-spectrogram-transformer" and num_frames(audio, rate) > config.max_length:
        longest = ((config.max_length - 1) * HOP + FRAME) / rate
        return [
            f"{seconds}, but this model supports at most {longest:g} s (its max_length: {config.max_length} frames)"
        ]
    return _too_short_to_process(config, audio, rate) or _too_short_to_mask(config, audio, rate)


def _mask_problems(kind: str, options: AudioOptions) -> list[str]:
    """Returns which settings of SpecAugment have no effect, as full messages."""
    spectrograms = kind in (*VISION_MODELS, "whisper", "audio-spectrogram-transformer")
    if options.frequency_masks and not spectrograms:
        return [
            f"task.audio.frequency_masks: received {options.frequency_masks}, but a {kind} takes waveforms; set it to 0"
        ]
    return [
        f"task.audio.{name}_mask_width: has no effect without task.audio.{name}_masks; set that, or remove it"
        for name in ("time", "frequency")
        if getattr(options, f"{name}_mask_width") != getattr(AudioOptions(), f"{name}_mask_width")
        and not getattr(options, f"{name}_masks")
    ]


def _least_samples(options: AudioOptions, rate: int) -> float:
    """Returns the number of samples of the shortest clip at the highest speed."""
    return min(options.min_seconds / (1 + options.speed), options.max_seconds) * rate


def _too_short_to_process(config: PreTrainedConfig, options: AudioOptions, rate: int) -> list[str]:
    """Returns messages if clips may have too few samples for a log-mel frame or the model's convolutions."""
    needed, given = FRAME, _least_samples(options, rate)
    if config.model_type == "whisper":  # padded with silence
        return []
    if config.model_type in VISION_MODELS:  # padded to the longest clip
        given = options.max_seconds * rate
    elif hasattr(config, "conv_kernel"):
        needed = 1
        for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
            needed = (needed - 1) * stride + kernel
    if given >= needed:
        return []
    name = "max" if config.model_type in VISION_MODELS else "min"
    least = f"this {config.model_type} needs at least {needed} samples ({needed / rate:g} s)"
    return [f"task.audio.{name}_seconds: received {getattr(options, f'{name}_seconds'):g}, but {least}"]


def _too_short_to_mask(config: PreTrainedConfig, options: AudioOptions, rate: int) -> list[str]:
    """Returns a message if clips may be shorter than the mask of SpecAugment, which wav2vec 2.0 refuses."""
    masks = getattr(config, "apply_spec_augment", False) and getattr(config, "mask_time_prob", 0) > 0
    ratio = getattr(config, "inputs_to_logits_ratio", None)
    if not masks or ratio is None or _least_samples(options, rate) >= (config.mask_time_length + 1) * ratio:
        return []
    least = (config.mask_time_length + 1) * ratio / rate * (1 + options.speed)
    return [
        f"task.audio.min_seconds: received {options.min_seconds:g}, but SpecAugment masks {config.mask_time_length} "
        f"frames; set it to at least {least:g} s, or set model.config_overrides.mask_time_prob to 0"
    ]
