"""Parquet files, hub datasets, and rules for files of any format."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.base.errors import DataError
from toolkit.data.readers.raw import RawRow
from toolkit.data.sources import fingerprint, hub_rows, load_hub, read_rows


def reasons(path: Path) -> dict[int, str]:
    return {row.number: row.reason for row in read_rows(path) if row.reason}


def good(path: Path) -> dict[int, dict[str, Any]]:
    return {row.number: row.values for row in read_rows(path) if not row.reason}


LABELS = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})


def test_parquet_gives_class_names(tmp_path):
    path = tmp_path / "a.parquet"
    datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, None]}, features=LABELS).to_parquet(path)
    assert good(path) == {
        1: {"text": "a", "label": "pos"}, 2: {"text": "b", "label": "neg"}, 3: {"text": "c", "label": None}
    }  # fmt: skip


def test_lists_of_class_numbers_give_class_names(tmp_path):
    features = datasets.Features({"tags": datasets.List(datasets.ClassLabel(names=["O", "B-PER"]))})
    rows = datasets.Dataset.from_dict({"tags": [[1, 0], [], None, [-1]]}, features=features)
    rows.to_parquet(tmp_path / "a.parquet")
    expected = [["B-PER", "O"], [], None, [None]]
    assert [row["tags"] for row in good(tmp_path / "a.parquet").values()] == expected
    assert [row.values["tags"] for row in hub_rows(rows)] == expected


def test_parquet_without_metadata_and_over_several_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.data.readers.arrow.ARROW_BATCH_ROWS", 2)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": list("abcde"), "label": [0, 1, 2, 3, 4]}), path)
    assert good(path) == {number: {"text": "abcde"[number - 1], "label": number - 1} for number in range(1, 6)}


def test_parquet_row_that_is_not_utf8_spoils_only_itself(tmp_path):
    path = tmp_path / "a.parquet"
    column = pa.array([b"a", b"caf\xe9", b"c"]).cast(pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": column}), path)
    assert reasons(path) == {2: "not UTF-8 text (byte 0xe9 at byte 4)"}
    assert list(good(path)) == [1, 3]


def test_parquet_that_is_cut_short(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="not a valid parquet file"):
        list(read_rows(path))


def test_hub_rows_come_from_a_split_with_class_names(tmp_path):
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, -1]}, features=LABELS)
    (tmp_path / "set").mkdir()
    rows.to_parquet(tmp_path / "set" / "train.parquet")
    splits = load_hub(str(tmp_path / "set"), cache_dir=tmp_path / "cache")
    assert list(splits) == ["train"]
    assert list(hub_rows(splits["train"])) == [
        RawRow(1, {"text": "a", "label": "pos"}), RawRow(2, {"text": "b", "label": None})
    ]  # fmt: skip


def test_hub_data_set_that_cannot_be_reached(tmp_path, monkeypatch):
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError) as error:
        load_hub("some/reviews", "small", "v1", tmp_path)
    for part in ("'some/reviews'", "small", "v1", "HF_HUB_OFFLINE", str(tmp_path), "no route", "data.train_file"):
        assert part in str(error.value)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    with pytest.raises(DataError, match="the hub was asked"):
        load_hub("some/reviews")


# Any file


def test_missing_file_folder_and_unknown_suffix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"none\.csv does not exist") as error:
        read_rows("none.csv")
    assert str(tmp_path / "none.csv") in str(error.value)
    with pytest.raises(DataError, match="has no folders of classes"):
        read_rows(tmp_path)
    Path("a.docx").touch()
    with pytest.raises(
        DataError, match=r"unsupported file type '.docx'; use one of .conll, .csv, .tsv, .json, .jsonl, .parquet, .tmx"
    ):
        read_rows("a.docx")
    Path("a.ods").touch()
    with pytest.raises(DataError, match=r"type '.ods'; in the program that made it, save it as .xlsx or 'CSV UTF-8'."):
        read_rows("a.ods")


def test_suffix_in_capitals(tmp_path):
    path = tmp_path / "A.TXT"
    path.write_text("one\n")
    assert good(path) == {1: {"text": "one"}}


def test_fingerprint_is_sha256_of_the_bytes(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"\x00abc" * 100_000)
    assert fingerprint(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(DataError, match="does not exist"):
        fingerprint(tmp_path / "none")
