"""Unusable files and rows: reported with reasons under `data.bad_rows: error`, skipped and counted under `skip`."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from audio_files import encoded as recording
from audio_files import tone
from image_files import encoded as picture
from image_files import noise
from PIL import Image
from runs import predictions, train

from toolkit.base.errors import DataError

FEW = ("train.max_steps=2", "data.max_eval_samples=9")


def huge_png() -> bytes:
    """Returns a PNG whose header declares 20,000 x 20,000 pixels, without their data."""
    content = bytearray(picture(noise(2, 2)))
    content[16:24] = (20_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


def cut(content: bytes, part: float) -> bytes:
    return content[: round(len(content) * part)]


BAD = {
    "image": {
        "empty.png": (b"", "the file is empty (0 bytes)"),
        "float.tif": (picture(Image.fromarray(np.random.default_rng(0).random((9, 9), np.float32)), "TIFF"),
                      "unsupported pixel mode 'F'; save it as 8- or 16-bit grey or RGB"),
        "huge.png": (huge_png(), "too many pixels for any task.image.max_pixels"),
        "text.png": (b"just words", "not an image in a supported format"),
        "truncated.jpg": (cut(picture(noise(64, 64, 3), "JPEG"), 0.4), "cannot be decoded: image file is truncated"),
    },
    "audio": {
        "cut.flac": (cut(recording(tone(1.0), form="FLAC"), 0.5), "cannot be decoded"),
        "cut.mp3": (cut(recording(tone(1.0), form="MP3"), 0.5), "truncated after 0."),
        "nan.wav": (recording(np.full(8000, np.nan), subtype="FLOAT"), "not finite numbers"),
        "nothing.wav": (recording(tone(0.0)), "holds no samples"),
        "text.wav": (b"just words", "cannot be decoded: Format not recognised"),
    },
}  # fmt: skip


def assert_named_or_left_out(config: str, folder: Path, settings: list[str], bad: list[tuple[str, str]], rows: int):
    """Asserts how both policies handle bad rows, given in order by patterns of their place and reason."""
    with pytest.raises(DataError) as refused:
        train(config, folder / "error", *settings, *FEW)
    first, *listed = str(refused.value).splitlines()
    assert first == f"{len(bad)} of {rows} rows cannot be used:"
    assert [place in line and reason in line for line, (place, reason) in zip(listed, bad, strict=False)] == [
        True for _ in bad
    ], listed
    train(config, folder / "skip", *settings, *FEW, "data.bad_rows=skip", "data.max_bad_rows=1")
    left_out = [json.loads(line) for line in (folder / "skip" / "bad_rows.jsonl").read_text("utf-8").splitlines()]
    assert [reason in row["reason"] for row, (_, reason) in zip(left_out, bad, strict=True)] == [True for _ in bad]
    facts = json.loads((folder / "skip" / "run.json").read_text())
    assert sum(facts["bad_rows"].values()) == len(bad)
    report = (folder / "skip" / "report.md").read_text()
    assert all(f"{count} bad row" in report for count in facts["bad_rows"].values() if count)
    return facts


@pytest.mark.parametrize("modality", BAD)
def test_pictures_and_recordings(modality, tmp_path):
    for label in ("a", "b"):
        (tmp_path / "set" / label).mkdir(parents=True)
        for number in range(6):
            content = (
                picture(noise(20, 24, 3, seed=number))
                if modality == "image"
                else recording(tone(0.5, 8000, frequency=200.0 * (number + 1)), 8000)
            )
            name = f"{number}.{'png' if modality == 'image' else 'wav'}"
            (tmp_path / "set" / label / name).write_bytes(content)
    if modality == "audio":
        (tmp_path / "set" / "a" / "studio.wav").write_bytes(recording(tone(0.6, 96000, 2), 96000))  # good
        (tmp_path / "set" / "a" / "short.flac").write_bytes(recording(tone(0.1), form="FLAC"))  # padded
    for name, (content, _) in BAD[modality].items():
        (tmp_path / "set" / "b" / name).write_bytes(content)
    good, bad = (
        14 if modality == "audio" else 12,
        [(f"b/{name}: ", reason) for name, (_, reason) in BAD[modality].items()],
    )
    settings = [f"data.train_file={tmp_path / 'set'}", "data.validation_file=null", "data.validation_split=0.25"]
    facts = assert_named_or_left_out(f"reviews/smoke_{modality}", tmp_path, settings, bad, good + len(bad))
    assert sum(facts["num_rows"].values()) == good


def test_a_table_of_reviews(tmp_path):
    good = [f"text number {i},{'good' if i % 2 else 'bad'}".encode() for i in range(12)]
    bad = [b"caf\xe9,good", b" ,good", b"fine,so-so", b"lonely", b'"open,good']
    (tmp_path / "train.csv").write_bytes(b"\n".join([b"text,label", *good, b"", *bad]) + b"\n")
    (tmp_path / "validation.csv").write_bytes(b"text,label\nnice,good\nnice,neutral\n")
    settings = [f"data.{part}_file={tmp_path / part}.csv" for part in ("train", "validation")]
    expected = [
        ("row 15: ", "column 'text' is not UTF-8 text (byte 0xe9 at character 4)"),
        ("row 16: ", "column 'text' is empty"),
        ("row 17: ", "label 'so-so' is not one of bad, good"),
        ("row 18: ", "1 field where the header has 2"),
        ("row 19: ", "a quoted field is not closed"),
        ("validation.csv, row 3: ", "label 'neutral' is not one of bad, good"),
    ]
    settings.append('task.labels=["bad", "good"]')
    facts = assert_named_or_left_out("reviews", tmp_path, settings, expected, 19)
    assert facts["bad_rows"] == {"train": 5, "validation": 1}


def test_a_label_that_training_does_not_have(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\n" + "a,good\nb,bad\n" * 6)
    (tmp_path / "validation.csv").write_text("text,label\nnice,good\nnice,neutral\n")
    settings = [f"data.{part}_file={tmp_path / part}.csv" for part in ("train", "validation")]
    expected = [("validation.csv, row 3: ", "label 'neutral' is not one of bad, good")]
    assert assert_named_or_left_out("reviews", tmp_path, settings, expected, 14)["bad_rows"]["validation"] == 1
    assert [record["label"] for record in predictions(tmp_path / "skip")] == ["good"]


def test_line_aligned_pairs(tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\nthree\nfour\nfive\nsix\n" + "x\n" * 8)
    (tmp_path / "a.de").write_bytes(b"eins\n\ndrei\nvier\nf\xfcnf\n" + b"y\n" * 8)
    settings = [f"data.train_file={tmp_path}/a.{{en,de}}", "data.columns.source=en", "data.columns.target=de",
                "data.validation_file=null", "data.validation_split=0.3"]  # fmt: skip
    expected = [
        ("a.{en,de}, row 2: ", "the target is missing: column 'de' is empty"),
        ("a.{en,de}, row 5: ", "column 'de' is not UTF-8 text (byte 0xfc"),
        ("a.{en,de}, row 14: ", "a.de ended before this line"),
    ]
    facts = assert_named_or_left_out("translation", tmp_path, settings, expected, 14)
    assert facts["num_rows"] == {"train": 8, "validation": 3}
