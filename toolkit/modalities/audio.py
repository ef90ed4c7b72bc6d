"""Audio: decoding, resampling, feature extractors, masking, and what each audio model expects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from toolkit.api.batch import BadRow, Omission, Processor
from toolkit.api.random import RowRandom
from toolkit.base.errors import DataError, pretrained_error
from toolkit.config.sections import ModelConfig
from toolkit.data.media.files import raise_unless_file
from toolkit.data.values import parse_number
from toolkit.modalities.audio_files import WITH_LENGTH, lacks_last_page, missing_share, open_sound
from toolkit.modalities.options import AudioOptions

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


DEFAULT_RATE = 16000
FRAME, HOP = 400, 160
"""Samples per frame of the log-mel spectrogram and between frames, as in transformers' AST extractor."""
VISION_MODELS = ("resnet", "convnext", "convnextv2", "regnet", "bit", "mobilenet_v1", "mobilenet_v2")
"""Vision models that take images of any size, and therefore log-mel spectrograms."""
OF_FRAMES = ("wav2vec2-bert", "speech_to_text")
"""Models of log-mel spectrograms as long as their clips."""
OTHER_FEATURES = (*OF_FRAMES, "moonshine")


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
    if kind not in VISION_MODELS and audio.num_mel_bins != AudioOptions().num_mel_bins:
        return [f"task.audio.num_mel_bins: has no effect with a model of type {kind}; remove it"]
    if kind in VISION_MODELS and config.num_channels != 1:
        return [f"model: {kind} has num_channels {config.num_channels}; a log-mel spectrogram has 1"]
    if kind == "audio-spectrogram-transformer" and num_frames(audio, rate) > config.max_length:
        longest = ((config.max_length - 1) * HOP + FRAME) / rate
        return [
            f"task.audio.max_seconds: received {audio.max_seconds:g}, but this model supports at most {longest:g} s "
            f"(its max_length: {config.max_length} frames)"
        ]
    return clip_problems(config, audio)


def clip_problems(config: PreTrainedConfig, options: AudioOptions) -> list[str]:
    """Returns what is wrong between a model and the lengths and masks of clips, as full messages."""
    if options.min_seconds > options.max_seconds:
        return [f"task.audio.min_seconds: received {options.min_seconds}, must be at most {options.max_seconds}"]
    if problems := _mask_problems(config.model_type, options):
        return problems
    if config.model_type == "whisper" and math.ceil(options.max_seconds) * 50 > config.max_source_positions:
        supported = f"this model supports at most {config.max_source_positions // 50} s"
        return [f"task.audio.max_seconds: received {options.max_seconds:g}, but {supported}"]
    rate = options.sampling_rate or DEFAULT_RATE
    return _too_short_to_process(config, options, rate) or _too_short_to_mask(config, options, rate)


def _mask_problems(kind: str, options: AudioOptions) -> list[str]:
    """Returns a full message if a model has no frequencies to mask."""
    spectrograms = kind in (*VISION_MODELS, "whisper", "audio-spectrogram-transformer", *OF_FRAMES)
    if options.frequency_masks and not spectrograms:
        return [
            f"task.audio.frequency_masks: received {options.frequency_masks}, but a {kind} takes waveforms; set it to 0"
        ]
    return []


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
    """Returns a message if clips may be shorter than the mask of SpecAugment, which wav2vec 2.0 rejects."""
    masks = getattr(config, "apply_spec_augment", False) and getattr(config, "mask_time_prob", 0) > 0
    ratio = getattr(config, "inputs_to_logits_ratio", None)
    if not masks or ratio is None or _least_samples(options, rate) >= (config.mask_time_length + 1) * ratio:
        return []
    least = (config.mask_time_length + 1) * ratio / rate * (1 + options.speed)
    return [
        f"task.audio.min_seconds: received {options.min_seconds:g}, but SpecAugment masks {config.mask_time_length} "
        f"frames; set it to at least {least:g} s, or set model.config_overrides.mask_time_prob to 0"
    ]


def masked_rows(
    clips: list[np.ndarray],
    rows: Sequence[Mapping[str, Any]],
    extractor: Processor,
    options: AudioOptions,
    random: RowRandom,
) -> list[np.ndarray]:
    """Returns clips, each in the shape of the model's input; those of training rows have masks."""
    if not random.training or not (options.time_masks or options.frequency_masks):
        return clips
    of_clips = hasattr(extractor, "nb_max_frames") or extractor.model_input_names[0] == "pixel_values"
    time, frequency = (-1, -2) if of_clips else (0, 1)
    kinds = time, None if takes_waveforms(extractor) else frequency
    stacked = getattr(extractor, "stride", 1)  # frames that one row of a spectrogram holds side by side
    masked_clips = []
    for clip, row in zip(clips, rows, strict=True):
        frames = clip.reshape(len(clip) * stacked, -1) if stacked > 1 else clip
        masked_clips.append(masked(frames, *kinds, options, random.generator(row["row_id"])).reshape(clip.shape))
    return masked_clips


def masked(
    clip: np.ndarray, time: int, frequency: int | None, options: AudioOptions, generator: np.random.Generator
) -> np.ndarray:
    """Returns a copy of a clip with masks along its dimensions of time and frequency; a waveform has no `frequency`."""
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


AUTO_PROCESSOR = "AutoFeatureExtractor"
LIBRARIES: tuple[str, ...] = ("soundfile", "soxr", *(["av"] if find_spec("av") else []))
BLOCK_FRAMES = 2**18
LITTLE_NOISE = 40.0
"""Highest ratio of a clip's power to that of added noise, in dB."""
BROKEN_OFF_SECONDS = 0.1
"""Seconds by which a file may be shorter than its header says; MP3 headers may be a few frames off."""


def auto_model(config: PreTrainedConfig) -> str:
    """Returns the name of the auto class for classification; vision models classify log-mel spectrograms."""
    return (
        "AutoModelForImageClassification" if config.model_type in VISION_MODELS else "AutoModelForAudioClassification"
    )


def feature() -> Any:
    """Returns the Arrow type of a checked value."""
    from datasets import Value

    texts = {"path": Value("string"), "bytes": Value("binary"), "name": Value("string"), "silent": Value("bool")}
    return texts | dict.fromkeys(("first", "frames", "rate", "channels"), Value("int64"))


def check(file: Mapping[str, Any], options: Any) -> Mapping[str, Any]:
    """Decodes a file once, so that corrupt files are found before training.

    Args:
        file: the reference, also with `start` and `end` of a clip in its recording, in seconds; None is the beginning
            and the end of the recording.
        options: the task's options.

    Returns:
        The reference with the clip's `first` frame (sample per channel), its number of `frames`, their `rate` per
        second, its number of `channels`, and whether its recording is `silent`.

    Raises:
        BadRow: if the file cannot be used, with its name and the reason.
        DataError: if the machine could not read it just now.
    """
    (frames, rate, channels, silent), start, end = whole(file), file.get("start"), file.get("end")
    if not frames:
        raise BadRow(f"{file['name']}: holds no samples")
    try:
        times = [parse_number(value, None) for value in (start, end)]
        if any(math.isnan(time) and str(value or "").strip() for time, value in zip(times, (start, end), strict=True)):
            raise BadRow("NaN is neither a time nor empty")
    except BadRow:
        raise BadRow(f"its part from {start!r} to {end!r} is not in seconds, such as 12.5") from None
    begin, stop = (whole if math.isnan(time) else time for time, whole in zip(times, (0.0, frames / rate), strict=True))
    if not 0 <= begin < stop <= frames / rate + BROKEN_OFF_SECONDS:
        raise BadRow(f"{file['name']}: its part from {start} to {end} s is not within its {frames / rate:g} s")
    first, last = round(begin * rate), min(round(stop * rate), frames)
    if last <= first:
        raise BadRow(f"{file['name']}: holds no samples")
    part = {"first": first, "frames": last - first, "rate": rate, "channels": channels, "silent": silent}
    return {name: file[name] for name in ("path", "bytes", "name")} | part


SILENCE = 1e-4
"""Largest difference of two samples, of -1 to 1, of a recording that has no content."""
Measured = tuple[int, int, int, bool]
"""The frames of a recording, their rate, its channels, and whether it is silent."""
_measured: dict[str, Measured] = {}
"""The last file that was decoded, by its path: rows may be many parts of one recording."""


def whole(file: Mapping[str, Any]) -> Measured:
    """Decodes a recording, and returns what it measures. Raises BadRow and DataError as `check`."""
    path = file["path"] if file["bytes"] is None else None
    if path is None or path not in _measured:
        found = _measure(file)
        _measured.clear()
        if path is None:
            return found
        _measured[path] = found
    return _measured[path]


def _measure(file: Mapping[str, Any]) -> Measured:
    import soundfile

    low, high = np.inf, -np.inf
    try:
        with open_sound(file) as opened:
            missing, unended = missing_share(opened) or 0.0, lacks_last_page(opened)
            with soundfile.SoundFile(opened) as sound:
                if sound.format not in WITH_LENGTH:
                    raise ValueError(f"its format is {sound.format_info}; convert it to WAV or FLAC")
                rate, channels, promised, frames = sound.samplerate, sound.channels, sound.frames, 0
                # Not `sound.blocks`, which pads truncated files with invented samples.
                while len(block := sound.read(BLOCK_FRAMES, dtype="float32")):
                    frames += len(block)
                    low, high = min(low, block.min()), max(high, block.max())
                    if not np.isfinite(block).all():
                        raise BadRow(f"{file['name']}: holds samples that are not finite numbers")
    except (soundfile.SoundFileError, OSError, MemoryError) as error:
        raise_unless_file(file["name"], error)
        raise BadRow(f"{file['name']}: cannot be decoded: {_reason(error)}") from error
    except ValueError as error:
        raise BadRow(f"{file['name']}: {error}") from error
    promised = max(promised, round(frames / (1 - missing)))
    if unended:
        raise BadRow(f"{file['name']}: truncated after {frames / rate:g} s, the last part of the file is missing")
    if promised - frames > BROKEN_OFF_SECONDS * rate:
        raise BadRow(f"{file['name']}: truncated after {frames / rate:.6g} of {promised / rate:.6g} s")
    return frames, rate, channels, bool(high - low <= SILENCE)


def _reason(error: Exception) -> str:
    """Returns the message of a library or the system, without the address of an object in memory."""
    return str(getattr(error, "error_string", error)).strip(". ")


def read(
    file: Mapping[str, Any],
    rate: int,
    options: AudioOptions,
    generator: np.random.Generator | None,
    length: int | None = None,
) -> np.ndarray:
    """Reads a clip, cropped to `options.max_seconds`, as `[samples]` float32 of one channel.

    Args:
        file: a checked reference.
        rate: samples per second to return.
        options: length and position of the crop, and augmentation by speed and noise.
        generator: source of randomness in training; None in evaluation.
        length: pads shorter clips with silence to this many samples; None pads to `options.min_seconds` only.

    Raises:
        DataError: if the file has changed since it was checked.
    """
    import soundfile
    import soxr

    # All numbers are always drawn, so that one setting does not change the effect of another.
    faster, start = (0.5, 0.5) if generator is None else generator.random(2)
    if options.crop == "center":
        start = 0.5
    source_rate = file["rate"] * (1 + options.speed * (2 * faster - 1))
    wanted = min(file["frames"], round(options.max_seconds * source_rate))
    try:
        with open_sound(file) as opened, soundfile.SoundFile(opened) as sound:
            sound.seek(file["first"] + round(start * (file["frames"] - wanted)))
            samples = sound.read(wanted, dtype="float32", always_2d=True)
        if len(samples) != wanted:
            raise ValueError(f"expected {wanted} samples, found {len(samples)}")
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        raise DataError(
            f"{file['name']}: {_reason(error)}. It was intact when the rows were checked; rerun to check it again."
        ) from error
    clip = soxr.resample(samples.mean(axis=1), source_rate, rate).astype(np.float32)
    if generator is not None and options.noise:
        clip = noisy(clip, options, generator.spawn(3)[2])  # `masked` has the streams before
    length = max(len(clip), math.ceil(options.min_seconds * rate)) if length is None else length
    if len(clip) == length:
        return clip
    before = round(start * max(0, length - len(clip)))
    padded = np.zeros(length, np.float32)
    padded[before : before + len(clip)] = clip[:length]
    return padded


def noisy(clip: np.ndarray, options: AudioOptions, generator: np.random.Generator) -> np.ndarray:
    """Returns a clip with white noise, by chance; a silent one stays silent."""
    chance, level = generator.random(2)
    if chance >= options.noise:
        return clip
    ratio = options.noise_snr + level * (LITTLE_NOISE - options.noise_snr)
    loudness = math.sqrt(np.square(clip, dtype=np.float64).sum() / max(1, len(clip)))
    noise = generator.standard_normal(len(clip), dtype=np.float32)
    return clip + noise * np.float32(loudness * 10 ** (-ratio / 20))


def load_processor(source: str, model: ModelConfig, options: Any) -> Processor:
    """Loads the feature extractor of a pretrained model, a run or a checkpoint; see `toolkit.api.modality.Modality`.

    Raises InputError if it cannot be loaded, or its sampling rate is not the configured one.
    """
    from transformers import AutoFeatureExtractor

    revision = model.revision if source == model.name_or_path else None
    wanted = options.audio.sampling_rate
    try:
        extractor = AutoFeatureExtractor.from_pretrained(
            source, revision=revision or "main", trust_remote_code=model.trust_remote_code
        )
        rate = extractor.sampling_rate
        if wanted not in (None, rate):
            raise ValueError(f"it requires {rate} samples per second; set task.audio.sampling_rate to null or {rate}")
    except Exception as error:  # Hub, file format and class errors are all caused by this setting
        raise pretrained_error("model.name_or_path", source, error) from error
    return _fitted(extractor, options.audio)


def new_processor(texts: Iterator[str], config: PreTrainedConfig, options: Any) -> Processor:
    """Creates the feature extractor of a new model, for log-mel spectrograms or waveforms."""
    import transformers

    rate = options.audio.sampling_rate or DEFAULT_RATE
    if config.model_type == "wav2vec2-bert":
        mels = config.feature_projection_input_dim // 2
        return transformers.SeamlessM4TFeatureExtractor(
            feature_size=mels, num_mel_bins=mels, sampling_rate=rate, stride=2
        )
    if config.model_type == "speech_to_text":
        mels = config.input_feat_per_channel
        return transformers.Speech2TextFeatureExtractor(feature_size=mels, num_mel_bins=mels, sampling_rate=rate)
    if config.model_type == "whisper":
        return _fitted(transformers.WhisperFeatureExtractor(config.num_mel_bins, rate), options.audio)
    if config.model_type == "audio-spectrogram-transformer":
        return transformers.ASTFeatureExtractor(
            sampling_rate=rate, num_mel_bins=config.num_mel_bins, max_length=config.max_length
        )
    if config.model_type in VISION_MODELS:
        return transformers.ASTFeatureExtractor(
            sampling_rate=rate,
            num_mel_bins=options.audio.num_mel_bins,
            max_length=num_frames(options.audio, rate),
            model_input_names=["pixel_values"],
        )
    # Group normalisation was trained without a mask (wav2vec 2.0 base), layer normalisation with one.
    return transformers.Wav2Vec2FeatureExtractor(
        sampling_rate=rate, return_attention_mask=getattr(config, "feat_extract_norm", "layer") == "layer"
    )


def _fitted(extractor: Processor, options: AudioOptions) -> Processor:
    """Makes Whisper's extractor pad to the clips' length, rounded to full seconds, instead of 30 s."""
    if hasattr(extractor, "nb_max_frames"):
        extractor.chunk_length = math.ceil(options.max_seconds)
        extractor.n_samples = extractor.chunk_length * extractor.sampling_rate
        extractor.nb_max_frames = extractor.n_samples // extractor.hop_length
    return extractor


def longest(options: Any, extractor: Processor) -> int:
    """Returns the samples of the longest clip."""
    return round(options.audio.max_seconds * extractor.sampling_rate)


def configure(config: PreTrainedConfig, extractor: Processor, new: bool) -> None:
    """Shortens Whisper's position embeddings, sinusoids that pretrained models share, to the clips' length."""
    if config.model_type == "whisper":
        config.max_source_positions = extractor.nb_max_frames // 2  # its second convolution has stride 2


def preprocess(files: Sequence[Mapping[str, Any]], extractor: Processor, options: Any) -> dict[str, list[Any]]:
    """Passes references on; `length` is in samples at the model's rate, equal for models of spectrograms."""
    longest, waveforms = options.audio.max_seconds, takes_waveforms(extractor)
    least = options.audio.min_seconds
    seconds = [max(least, min(file["frames"] / file["rate"], longest)) if waveforms else longest for file in files]
    return {"file": list(files), "length": [round(length * extractor.sampling_rate) for length in seconds]}


def decoded(row: Mapping[str, Any], extractor: Processor, options: Any, training: bool) -> np.ndarray | None:
    """Returns a row's clip or spectrogram, float32; None if training changes or places it at random."""
    audio: AudioOptions = options.audio
    is_whole = row["file"]["frames"] <= round(audio.max_seconds * row["file"]["rate"])
    placed = extractor.model_input_names[0] == "pixel_values"
    if training and (audio.speed or audio.noise or (audio.crop == "random" and (placed or not is_whole))):
        return None
    return _features(row, extractor, audio, None)


def _features(
    row: Mapping[str, Any], extractor: Processor, options: AudioOptions, generator: np.random.Generator | None
) -> np.ndarray:
    """Returns a row's waveform, or its spectrogram if the model takes spectrograms."""
    name, rate = extractor.model_input_names[0], extractor.sampling_rate
    length = round(options.max_seconds * rate) if name == "pixel_values" else None
    clip = read(row["file"], rate, options, generator, length)
    if takes_waveforms(extractor):
        return clip
    # One by one: batched transforms round differently, and a row must not depend on the others of its batch.
    made = extractor(clip, sampling_rate=rate, return_tensors="np")
    if name != "pixel_values":
        frames: np.ndarray = made[name][0]
        return frames
    # Independent of loudness: 0 at the loudest point, -1 from about 40 dB below it.
    spectrogram = made["input_values"][0]
    # `np.stack` would keep the order of transposed arrays, and the first convolution would copy its input.
    return np.ascontiguousarray(np.maximum(spectrogram - spectrogram.max(), np.float32(-1.0)).T)[None]


def collate(
    features: Sequence[dict[str, Any]], extractor: Processor, options: Any, random: RowRandom
) -> dict[str, torch.Tensor]:
    """Returns the model's float32 inputs; clips of rows without `decoded` are read.

    Returns:
        `input_values` `[B, samples]` with or without `attention_mask` (wav2vec 2.0 and similar models),
        `input_values` `[B, frames, mels]` (AST), `input_features` `[B, mels, frames]` (Whisper), or `pixel_values`
        `[B, 1, mels, frames]` (vision models).

    Raises:
        DataError: if a file has changed since it was checked.
    """
    return batched(arrays(features, extractor, options.audio, random), extractor)


def arrays(
    features: Sequence[dict[str, Any]], extractor: Processor, options: AudioOptions, random: RowRandom
) -> list[np.ndarray]:
    """Returns the waveform or spectrogram of each feature row, with masks in training."""

    def found(row: dict[str, Any]) -> np.ndarray:
        if row.get("decoded") is not None:
            return row["decoded"]
        return _features(row, extractor, options, random.generator(row["row_id"]) if random.training else None)

    return masked_rows([found(row) for row in features], features, extractor, options, random)


def batched(clips: list[np.ndarray], extractor: Processor) -> dict[str, torch.Tensor]:
    """Returns the model's inputs; waveforms, and spectrograms as long as their clips, are padded to the longest."""
    name = extractor.model_input_names[0]
    if takes_waveforms(extractor):
        return dict(extractor(clips, sampling_rate=extractor.sampling_rate, padding=True, return_tensors="pt"))
    if name != "input_features" or hasattr(extractor, "nb_max_frames"):
        return {name: torch.from_numpy(np.stack(clips))}
    padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(clip) for clip in clips], batch_first=True)
    lengths = torch.tensor([len(clip) for clip in clips])
    return {name: padded, "attention_mask": (torch.arange(padded.shape[1]) < lengths[:, None]).long()}


def compact(
    features: Sequence[dict[str, Any]], extractor: Processor, options: Any, random: RowRandom
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Returns the model's inputs, and no tables: they are numbers already."""
    return collate(features, extractor, options, random), {}


def shown(file: Mapping[str, Any]) -> str:
    """Returns the file name, with the seconds of a part of a recording, which identify a clip."""
    if not file["first"]:
        return str(file["name"])
    begin, end = file["first"] / file["rate"], (file["first"] + file["frames"]) / file["rate"]
    return f"{file['name']} ({begin:.6g} to {end:.6g} s)"


def omissions(files: Sequence[Mapping[str, Any]], options: Any) -> list[Omission]:
    """Returns how many clips are silent, cropped, padded with silence, or mixed to one channel."""
    silent = [file["name"] for file in files if file["silent"]]
    seconds, total = [file["frames"] / file["rate"] for file in files], len(files)
    longest, least = options.audio.max_seconds, options.audio.min_seconds
    cropped, padded = sum(each > longest for each in seconds), sum(each < least for each in seconds)
    return [
        Omission("clips of recordings without any sound", len(silent), len(files), ", ".join(silent[:1])),
        Omission(f"clips cropped to task.audio.max_seconds={longest:g}", cropped, total),
        Omission(f"clips padded with silence to task.audio.min_seconds={least:g}", padded, total),
        Omission("clips mixed to one channel", sum(file["channels"] > 1 for file in files), total),
    ]


def thumbnail(file: Mapping[str, Any], options: Any) -> None:
    """Returns None, because audio has no image."""
