"""HDF5 files: the values of columns, and files that are refused."""

from __future__ import annotations

import io
from pathlib import Path

import h5py
import numpy as np
import pytest
import soundfile
from PIL import Image

from toolkit.base.errors import DataError
from toolkit.config.paths import sheet_of
from toolkit.data.readers import hdf5
from toolkit.data.sources import fingerprint, read_rows

TEXT = h5py.string_dtype()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.h5"


def column(file: Path) -> list[object]:
    return [(row.values or {}).get("x") for row in read_rows(file)]


def test_every_kind_of_column(file):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    with h5py.File(file, "w") as opened:
        opened.create_dataset("text", data=["one", "zwölf", ""], dtype=TEXT, compression="lzf", shuffle=True)
        opened.create_dataset("fixed", data=np.array([b"a", b"bc", b"\xff"]))
        opened.create_dataset("whole", data=np.array([1, -2, 3]), compression="gzip", fletcher32=True, chunks=(2,))
        opened.create_dataset("number", data=np.array([0.5, np.nan, 2]))
        opened.create_dataset("flag", data=np.array([True, False, True]))
        opened.create_dataset("list", data=np.array([[1.0, np.nan], [3, 4], [5, 6]]))
        opened.create_dataset("class", data=[0, 1, 0], dtype=h5py.enum_dtype({"cat": 0, "dog": 1}, "i"))
        opened.create_dataset("gray", data=pixels[..., 0])
        opened.create_dataset("image", data=pixels, chunks=(1, 5, 4, 3), compression="gzip")
        opened.create_dataset("opaque", data=np.array([b"\x89P\0", b"\0\0\0", b"abc"]).astype("V3"))
        ragged = opened.create_dataset("ragged", 3, h5py.vlen_dtype(np.int32))
        parts = opened.create_dataset("file", 3, h5py.vlen_dtype(np.uint8))
        for number in range(3):
            ragged[number] = np.arange(number)
            parts[number] = np.frombuffer(b"\x89PNG\0"[: number + 1], np.uint8)
        opened.create_group("other")
    rows = list(read_rows(file))
    assert [row.number for row in rows] == [1, 2, 3]
    values = {name: [row.values[name] for row in rows] for name in rows[0].values}
    assert values["text"] == ["one", "zwölf", ""]
    assert values["fixed"][:2] == ["a", "bc"]
    assert rows[2].reason == "column 'fixed' is not UTF-8 text (byte 0xff at character 1)"
    assert values["whole"] == [1, -2, 3]
    assert values["number"] == [0.5, None, 2.0]
    assert values["flag"] == [True, False, True]
    assert values["list"] == [[1.0, None], [3.0, 4.0], [5.0, 6.0]]
    assert values["class"] == ["cat", "dog", "cat"]
    assert values["ragged"] == [[], [0], [0, 1]]
    assert values["opaque"][0] == {"bytes": b"\x89P\0", "path": None}
    assert [value["bytes"] for value in values["file"]] == [b"\x89", b"\x89P", b"\x89PN"]
    for number in range(3):
        for name, expected in (("gray", pixels[number, ..., 0]), ("image", pixels[number])):
            np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(values[name][number]["bytes"]))), expected)


@pytest.mark.parametrize("kind", ["float32", "float64", "int16", "int32", ">i2"])
def test_recordings(kind, file):
    sound = np.random.default_rng(1).random((3, 50), dtype=np.float32) - 0.5
    sound = (sound if kind.startswith("float") else sound * np.iinfo(kind).max).astype(kind)
    with h5py.File(file, "w") as opened:
        opened.create_dataset("x", data=sound).attrs["sampling_rate"] = 8000.0
    for clip, expected in zip(column(file), sound, strict=True):
        read, rate = soundfile.read(io.BytesIO(clip["bytes"]), dtype=expected.dtype.name)
        np.testing.assert_array_equal(read, expected)
        assert rate == 8000
        assert len(clip["bytes"]) == 44 + 50 * min(expected.itemsize, 4)  # not the time, which libsndfile would add


def test_rows_are_read_in_small_parts_in_order(file, monkeypatch):
    monkeypatch.setattr(hdf5, "BATCH_ROWS", 100)
    with h5py.File(file, "w") as opened:
        opened.create_dataset("x", data=np.arange(1234), chunks=(70,))
        opened.create_dataset("text", data=[str(number) for number in range(1234)], dtype=TEXT)
    rows = list(read_rows(file))
    assert [(row.values["x"], row.values["text"]) for row in rows] == [(n, str(n)) for n in range(1234)]


def test_a_group_is_named_like_a_sheet(file):
    with h5py.File(file, "w") as opened:
        opened["train/inner/x"], opened["test/x"] = [1, 2], [3]
    assert sheet_of(f"{file}#test") == (str(file), "test")
    assert column(f"{file}#test") == [3]
    assert column(f"{file}#train/inner") == [1, 2]
    assert fingerprint(f"{file}#test") != fingerprint(f"{file}#train")
    with pytest.raises(DataError, match=r"has groups instead of datasets: 'test', 'train'.*as in 'rows.h5#test'"):
        column(file)
    with pytest.raises(DataError, match=r"has no group 'tset' \(did you mean 'test'\?\); it has 'test', 'train'"):
        column(f"{file}#tset")


def _outside(opened: h5py.File, folder: Path) -> None:
    opened["x"] = h5py.ExternalLink("secret.h5", "/x")


def _soft(opened: h5py.File, folder: Path) -> None:
    opened["x"] = h5py.SoftLink("/y")


def _storage(opened: h5py.File, folder: Path) -> None:
    opened.create_dataset("x", (4,), "u1", external=[(str(folder / "secret.h5"), 0, 4)])


def _virtual(opened: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((1,), "i8")
    layout[:] = h5py.VirtualSource("secret.h5", "x", (1,))
    opened.create_virtual_dataset("x", layout)


def _bomb(opened: h5py.File, folder: Path) -> None:
    opened.create_dataset("x", (10**12,), "u1", chunks=(2**20,), compression="gzip")


def _wide(opened: h5py.File, folder: Path) -> None:
    opened.create_dataset("x", (2, 2**28 + 1), "u1", chunks=(1, 2**20))


def _uneven(opened: h5py.File, folder: Path) -> None:
    opened["x"], opened["y"] = [1, 2], [1]


def _scalar(opened: h5py.File, folder: Path) -> None:
    opened["x"] = 3


def _compound(opened: h5py.File, folder: Path) -> None:
    opened["x"] = np.zeros(2, [("text", "S3"), ("label", "i4")])


def _bytes_with_rate(opened: h5py.File, folder: Path) -> None:
    opened["x"] = np.zeros((2, 3), "i1")
    opened["x"].attrs["sampling_rate"] = 8000


def _rate(opened: h5py.File, folder: Path) -> None:
    opened["x"] = np.zeros((2, 3), "f4")
    opened["x"].attrs["sampling_rate"] = -1


def _text_rate(opened: h5py.File, folder: Path) -> None:
    opened["x"] = np.zeros((2, 3), "f4")
    opened["x"].attrs["sampling_rate"] = "8000"


REFUSED = {
    _outside: "'x' is a link, and may lead to another file",
    _soft: "'x' is a link, and may lead to another file",
    _storage: "the values of 'x' are in other files",
    _virtual: "the values of 'x' are in other files",
    _bomb: "'x' declares 1,000,000,000,000 bytes, but only 0 are in the file",
    _wide: "a row or chunk of 'x' has more than 268,435,456 bytes",
    _uneven: "its datasets have different numbers of rows: x 2, y 1",
    _scalar: "'x' is a single value, not a column",
    _compound: "'x' has 1 axes of the type",
    _bytes_with_rate: "'x' has 2 axes of the type int8, which is no column",
    _rate: "the attribute sampling_rate of 'x' is -1, expected samples per second",
    _text_rate: "the attribute sampling_rate of 'x' is text, expected samples per second",
}


@pytest.mark.parametrize("make", REFUSED)
def test_files_that_are_rejected(make, file):
    with h5py.File(file.with_name("secret.h5"), "w") as secret:
        secret["x"] = [1]
    with h5py.File(file, "w") as opened:
        make(opened, file.parent)
    with pytest.raises(DataError, match=REFUSED[make]):
        column(file)


def test_filters_of_other_libraries_are_not_loaded(file, monkeypatch):
    with h5py.File(file, "w") as opened:
        opened.create_dataset("x", data=np.arange(100), compression="gzip")
    monkeypatch.setattr(hdf5, "_FILTERS", {2: "shuffle"})
    with pytest.raises(
        DataError, match="'x' is compressed by HDF5 filter 1, which needs a plug-in; use one of shuffle"
    ):
        column(file)


def test_values_of_variable_length_in_which_hdf5_would_search_forever(file, monkeypatch):
    with h5py.File(file, "w") as opened:
        opened.create_dataset("x", data=["text"] * 20, dtype=TEXT)
    content = bytearray(file.read_bytes())
    at = content.index(b"GCOL") + 16
    while number := int.from_bytes(content[at : at + 2], "little"):
        assert number <= 20
        at += 16 + -(-int.from_bytes(content[at + 8 : at + 16], "little") // 8) * 8
    monkeypatch.setattr(hdf5, "BATCH_BYTES", content.index(b"GCOL") + 3)  # it is found across parts of the file, too
    assert column(file) == ["text"] * 20
    content[at + 8 : at + 16] = bytes(8)  # the size of the free room
    file.write_bytes(content)
    with pytest.raises(DataError, match="its values of variable length are damaged"):
        column(file)


@pytest.mark.parametrize("content", [b"", b"just words", b"\x89HDF\r\n\x1a\n" + bytes(500)])
def test_files_that_are_not_hdf5(content, file):
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"rows\.h5 is not a valid HDF5 file"):
        column(file)


def test_an_empty_file_has_no_rows(file):
    h5py.File(file, "w").close()
    with pytest.raises(DataError, match="has no rows"):
        column(file)
