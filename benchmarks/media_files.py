"""Images and clips for the benchmarks of media, and the models that all sides of a comparison start from."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LABELS = ("cat", "dog", "fox", "owl")
"""Sorted, as the toolkit numbers them."""
SIZES = {"image": (640, 480), "photo": (2048, 1536)}
"""Width and height of images from the web, and of photos of 3 megapixels."""
RATE = 44100
"""Samples per second of a clip, as in a recording that was not made for a model."""
CLIP = (4.5, 2.6, 1.0, 15.0)
"""Seconds of a clip: mean, standard deviation, smallest, largest; utterances of read speech are like this."""
VIT = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768,
       "image_size": 224, "patch_size": 16}  # fmt: skip
"""The sizes of ViT-Ti (Touvron et al. 2020, arXiv 2012.12877)."""
WAV2VEC2 = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536,
            "conv_dim": [256] * 7, "feat_extract_norm": "layer", "do_stable_layer_norm": True, "layerdrop": 0.0,
            "mask_time_prob": 0.0}  # fmt: skip
"""A wav2vec 2.0 of half the size of the base model, with its convolutions; clips are too short to be masked."""
TINY = {
    "vit": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
            "image_size": 32},
    "wav2vec2": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
                 "conv_dim": [8] * 7, "num_conv_pos_embedding_groups": 2},
}  # fmt: skip
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "hidden_dropout", "attention_dropout",
           "activation_dropout", "feat_proj_dropout", "final_dropout")  # fmt: skip

Row = dict[str, Any]


def images(folder: Path, count: int, size: tuple[int, int]) -> list[Row]:
    """Writes JPEG files of a width and height, with the detail of photos, and returns their rows."""
    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True)
    width, height = size
    generator, rows = np.random.default_rng(0), []
    for number in range(count):
        coarse = generator.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), np.int16)
        noisy = smooth + generator.normal(0, 6, smooth.shape)
        file = folder / f"{number}.jpg"
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, quality=90)
        rows.append({"image": str(file), "label": LABELS[number % len(LABELS)]})
    return rows


def clips(folder: Path, count: int, longest: float | None = None) -> list[Row]:
    """Writes clips of uneven length as FLAC files, and returns their rows, with their `seconds`."""
    import numpy as np
    import soundfile

    folder.mkdir(parents=True)
    draw, generator, rows = random.Random(0), np.random.default_rng(0), []
    mean, deviation, least, most = CLIP
    for number in range(count):
        seconds = min(max(draw.gauss(mean, deviation), least), longest or most)
        noise = np.cumsum(generator.normal(0, 0.02, round(seconds * RATE)))
        file = folder / f"{number}.flac"
        soundfile.write(file, 0.3 * np.sin(noise), RATE)
        rows.append({"audio": str(file), "label": LABELS[number % len(LABELS)], "seconds": seconds})
    return rows


def grouped(rows: Sequence[Row], size: int) -> list[Row]:
    """Returns clips in batches of similar length, the batches in random order, as `group_by_length` has them."""
    by_length = sorted(rows, key=lambda row: row["seconds"])
    batches = [by_length[start : start + size] for start in range(0, len(rows), size)]
    random.Random(0).shuffle(batches)
    return [row for batch in batches for row in batch]


def write_rows(rows: Sequence[Row], file: Path) -> Path:
    """Writes rows as JSON lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def new_model(kind: str, folder: Path, dropout: bool, tiny: bool = False) -> Path:
    """Writes a new model with its processor.

    Args:
        kind: `vit` or `wav2vec2`.
        folder: where to.
        dropout: whether it has its usual dropout.
        tiny: whether it is as small as it can be.
    """
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForAudioClassification,
        AutoModelForImageClassification,
        ViTImageProcessorPil,
        Wav2Vec2FeatureExtractor,
    )

    sizes: dict[str, Any] = {"vit": VIT, "wav2vec2": WAV2VEC2}[kind] | (TINY[kind] if tiny else {})
    named = {
        "num_labels": len(LABELS),
        "id2label": dict(enumerate(LABELS)),
        "label2id": {n: i for i, n in enumerate(LABELS)},
    }
    config = AutoConfig.for_model(kind, **sizes, **named)
    for name in DROPOUT:
        if hasattr(config, name):
            setattr(config, name, 0.1 if dropout else 0.0)
    torch.manual_seed(0)
    auto = {"vit": AutoModelForImageClassification, "wav2vec2": AutoModelForAudioClassification}[kind]
    auto.from_config(config).save_pretrained(folder)
    side = sizes.get("image_size", 0)
    half = [0.5] * 3
    processor = {
        "vit": lambda: ViTImageProcessorPil(size={"height": side, "width": side}, image_mean=half, image_std=half),
        "wav2vec2": lambda: Wav2Vec2FeatureExtractor(return_attention_mask=True),
    }[kind]()
    processor.save_pretrained(folder)
    return folder
