"""Arrow IPC files and streams: the rows of the same parquet file, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from containers import arrow_of, parquet_of

from toolkit.base.errors import DataError
from toolkit.data.readers.raw import RawRow
from toolkit.data.sources import read_rows

ROWS = {
    "text": [f"row {number}" for number in range(20)],
    "label": [number % 3 for number in range(20)],
    "values": [[1.5] * (number % 4) for number in range(20)],
    "file": [{"bytes": bytes([number]), "path": None} for number in range(20)],
}


@pytest.mark.parametrize(("name", "stream"), [("a.arrow", False), ("a.arrow", True), ("a.arrows", True),
                                              ("a.feather", False)])  # fmt: skip
def test_rows_of_files_and_streams(name, stream, tmp_path):
    expected = list(read_rows(parquet_of(ROWS, tmp_path / "a.parquet")))
    assert len(expected) == 20
    assert list(read_rows(arrow_of(ROWS, tmp_path / name, stream))) == expected


def test_files_of_datasets_have_names_of_classes(tmp_path):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    rows.save_to_disk(tmp_path / "set")
    (file,) = (tmp_path / "set").glob("*.arrow")
    assert [row.values for row in read_rows(file)] == [{"text": "a", "label": "yes"}, {"text": "b", "label": "no"}]


def test_a_row_that_is_not_utf8_spoils_only_itself(tmp_path):
    bad = pa.array([b"good", b"caf\xe9", b"fine"]).view(pa.string())
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), pa.schema({"text": pa.string()})) as writer:
        writer.write_batch(pa.record_batch({"text": bad}))
    assert list(read_rows(tmp_path / "a.arrow")) == [
        RawRow(1, {"text": "good"}),
        RawRow(2, None, "not UTF-8 text (byte 0xe9 at byte 4)"),
        RawRow(3, {"text": "fine"}),
    ]


def _wild_offsets(file: Path) -> None:
    arrow_of({"text": ["a" * 77, "b" * 22]}, file)
    offsets, content = b"\0\0\0\0\x4d\0\0\0\x63\0\0\0", file.read_bytes()
    assert content.count(offsets) == 1
    file.write_bytes(content.replace(offsets, offsets[:8] + b"\xff\xff\xff\x7f"))


def _wild_classes(file: Path) -> None:
    wild = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int32()), pa.array(["a"]), safe=False)
    with pa.ipc.new_stream(str(file), pa.schema({"text": wild.type})) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([wild], ["text"]))


def _cut(file: Path) -> None:
    arrow_of(ROWS, file)
    file.write_bytes(file.read_bytes()[:-40])


def _name(file: Path) -> None:
    arrow_of({"text": ["a"]}, file)
    file.write_bytes(file.read_bytes().replace(b"text", b"te\xfft"))


def _words(file: Path) -> None:
    file.write_bytes(b"just words")


@pytest.mark.parametrize("make", [_wild_offsets, _wild_classes, _cut, _name, _words])
def test_files_that_are_not_sound_are_rejected_before_they_are_read(make, tmp_path):
    make(tmp_path / "a.arrow")
    with pytest.raises(DataError, match=r"a\.arrow is not a valid Arrow file or stream"):
        list(read_rows(tmp_path / "a.arrow"))


def test_a_wrong_description_of_columns_is_rejected(tmp_path):
    schema = pa.schema({"text": pa.string()}, metadata={"huggingface": "{no json"})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), schema) as writer:
        writer.write_batch(pa.record_batch({"text": ["a"]}, schema=schema))
    with pytest.raises(DataError, match="its description of columns for `datasets` is not valid"):
        list(read_rows(tmp_path / "a.arrow"))
