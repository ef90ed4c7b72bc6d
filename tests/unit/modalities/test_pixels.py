"""Bytes and their table give the numbers of the image processor itself, bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from image_files import encoded, noise
from PIL import Image
from transformers import (
    BeitImageProcessorPil,
    CLIPImageProcessorPil,
    ConvNextImageProcessorPil,
    DeiTImageProcessorPil,
    ViTImageProcessorPil,
)

from toolkit.api.batch import looked_up, to_device
from toolkit.api.random import RowRandom
from toolkit.modalities import image
from toolkit.modalities.image import table
from toolkit.modalities.image_files import as_channels, decode
from toolkit.modalities.options import ImageOptions

COLOURS = ([0.48, 0.45, 0.40], [0.26, 0.27, 0.28])
PROCESSORS = {
    "vit": ViTImageProcessorPil(size={"height": 32, "width": 48}),
    "vit of other colours": ViTImageProcessorPil(
        size={"height": 32, "width": 32}, image_mean=COLOURS[0], image_std=COLOURS[1]
    ),
    "grey": ViTImageProcessorPil(size={"height": 32, "width": 32}, image_mean=[0.5], image_std=[0.5]),
    "not normalised": ViTImageProcessorPil(size={"height": 32, "width": 32}, do_normalize=False),
    "not rescaled": ViTImageProcessorPil(size={"height": 32, "width": 32}, do_rescale=False, do_normalize=False),
    "convnext, cropped": ConvNextImageProcessorPil(size={"shortest_edge": 48}),
    "convnext, whole": ConvNextImageProcessorPil(size={"shortest_edge": 400}),
    "clip": CLIPImageProcessorPil(size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}),
    "deit": DeiTImageProcessorPil(),
    "beit": BeitImageProcessorPil(),
}


class Sharpened(ViTImageProcessorPil):
    """Numbers that depend on the whole image."""

    def normalize(self, image, mean, std, **settings):
        return super().normalize(image, mean, std, **settings) * image.max()


def camera() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned
    return encoded(noise(30, 50, 3, seed=4), "JPEG", exif=exif)


FILES = [
    encoded(noise(37, 61, 3, seed=1)),
    encoded(noise(100, 50, seed=2)),
    encoded(noise(20, 20, 3).convert("P")),
    encoded(Image.fromarray(np.random.default_rng(3).integers(0, 65536, (24, 40)).astype(np.uint16))),
    camera(),
]
ROWS = [{"file": {"path": None, "bytes": content, "name": "x"}, "row_id": i} for i, content in enumerate(FILES)]
EVALUATION, TRAINING = RowRandom(0, -1), RowRandom(0, 2)
VARIED = ImageOptions(random_crop=0.5, horizontal_flip=0.5, color_jitter=0.3)
ERASED = ImageOptions(random_erasing=1.0)


def options(given: ImageOptions | None = None) -> SimpleNamespace:
    return SimpleNamespace(image=given or ImageOptions())


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_numbers_are_the_processor_s_own(name):
    processor = PROCESSORS[name]
    images = [as_channels(decode(row["file"], 10**6), len(processor.image_mean)) for row in ROWS]
    expected = processor(images=images, return_tensors="pt")["pixel_values"].float()
    inputs, tables = image.compact(ROWS, processor, options(), EVALUATION)
    assert inputs["pixel_values"].dtype == torch.uint8
    batch = {"inputs": inputs, "labels": torch.zeros(5), "tables": tables}
    for made in (looked_up(batch), to_device(batch, torch.device("cpu"))):
        assert made["inputs"]["pixel_values"].dtype == torch.float32
        assert torch.equal(made["inputs"]["pixel_values"], expected)
        assert "tables" not in made
    assert torch.equal(image.collate(ROWS, processor, options(), EVALUATION)["pixel_values"], expected)


def test_a_processor_of_another_kind_gives_its_numbers_as_they_are():
    processor = Sharpened(size={"height": 32, "width": 32})
    assert table(processor) is None
    inputs, tables = image.compact(ROWS, processor, options(ERASED), TRAINING)
    assert (inputs["pixel_values"].dtype, tables) == (torch.float32, {})
    assert all((picture == 0).all(dim=0).any() for picture in inputs["pixel_values"])
    images = [as_channels(decode(row["file"], 10**6), 3) for row in ROWS]
    expected = processor(images=images, return_tensors="pt")["pixel_values"]
    assert torch.equal(image.collate(ROWS, processor, options(), EVALUATION)["pixel_values"], expected)


@pytest.mark.parametrize("random", [EVALUATION, TRAINING], ids=["evaluation", "training"])
@pytest.mark.parametrize("given", [ImageOptions(), VARIED, ERASED], ids=["plain", "varied", "erased"])
@pytest.mark.parametrize("processor", [PROCESSORS["vit"], PROCESSORS["grey"], Sharpened()], ids=["rgb", "grey", "own"])
def test_rows_that_were_decoded_before_give_the_same(processor, given, random):
    before = [
        row | {"decoded": image.decoded(row, processor, options(given), random.training)} | {"file": None}
        for row in ROWS
    ]
    expected = image.collate(ROWS, processor, options(given), random)["pixel_values"]
    for order in ([0, 1, 2, 3, 4], [3], [4, 0]):
        again = image.collate([before[i] for i in order], processor, options(given), random)["pixel_values"]
        assert torch.equal(again, expected[order])


def test_erased_pixels_are_the_mean():
    inputs, tables = image.compact(ROWS, PROCESSORS["vit"], options(ERASED), TRAINING)
    erased = inputs["pixel_values"] == 256
    assert 0.01 < erased.float().mean() < 0.4
    numbers = looked_up({"inputs": inputs, "labels": torch.zeros(5), "tables": tables})["inputs"]["pixel_values"]
    assert (numbers[erased] == 0).all()
