"""Files that rows refer to: class folders, relative paths, changed contents."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import datasets
import pytest

from toolkit.api.task import BadRow
from toolkit.base.errors import DataError
from toolkit.config.column import Column
from toolkit.data.files import open_file, reference
from toolkit.data.rows import load_table
from toolkit.data.sources import fingerprint, read_rows


class Pictures:
    """Rows with a file that must not be empty."""

    options = None
    modality = "image"
    state: dict[str, Any] = {}  # noqa: RUF012
    columns = {"image": Column("the picture", file=True), "label": Column("its class", label=True)}  # noqa: RUF012

    def schema(self) -> datasets.Features:
        text = datasets.Value("string")
        return datasets.Features(
            {"image": {"path": text, "bytes": datasets.Value("binary"), "name": text}, "label": text}
        )

    def check_row(self, row: dict[str, Any], labelled: bool) -> dict[str, Any]:
        with open_file(row["image"]) as file:
            if not file.read():
                raise BadRow(f"{row['image']['name']} is empty")
        return row


def write(path: Path, content: bytes = b"picture") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_folder_of_classes_is_read_in_the_order_of_names(tmp_path):
    for name in (
        "b/2.png",
        "b/1.JPG",
        "a/deep/3.webp",
        "a/.hidden.png",
        ".git/4.png",
        "a/x.wav",
        "a/notes.txt",
        "5.png",
    ):
        write(tmp_path / name)
    rows = list(read_rows(tmp_path))
    assert [row.values for row in rows if row.reason is None] == [
        {"image": "a/deep/3.webp", "label": "a"},
        {"audio": "a/x.wav", "label": "a"},
        {"image": "b/1.JPG", "label": "b"},
        {"image": "b/2.png", "label": "b"},
    ]
    assert [row.reason for row in rows if row.reason] == [
        "5.png is not in the folder of a class", "a/notes.txt does not have the suffix of an image or audio file",
    ]  # fmt: skip
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6]


def test_links_to_files_and_folders_are_followed_but_not_round_and_round(tmp_path):
    write(tmp_path / "elsewhere" / "sunny days" / "größe 1.png")
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "b").symlink_to(tmp_path / "elsewhere" / "sunny days")
    (tmp_path / "set" / "a" / "1.png").symlink_to(tmp_path / "elsewhere" / "sunny days" / "größe 1.png")
    (tmp_path / "set" / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "set" / "a" / "back").symlink_to(tmp_path / "set")
    table = load_table(tmp_path / "set", Pictures(), {}, True, tmp_path / "cache")
    assert [(row["image"]["name"], row["label"]) for row in table.rows] == [("a/1.png", "a"), ("b/größe 1.png", "b")]
    (bad,) = table.bad
    assert bad.reason.startswith("there is no file a/gone.png")


def test_a_class_that_cannot_be_opened_is_not_left_out_in_silence(tmp_path, monkeypatch):
    write(tmp_path / "a" / "1.png")
    write(tmp_path / "b" / "1.png")
    scandir = os.scandir

    def closed(path):
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(DataError, match=r"b cannot be opened: Permission denied"):
        list(read_rows(tmp_path))


def test_a_folder_without_classes_is_refused(tmp_path):
    write(tmp_path / "1.png")
    with pytest.raises(DataError, match=r"<class>/<file>"):
        read_rows(tmp_path)


def test_paths_are_relative_to_the_file_that_names_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "set" / "pictures" / "1.png")
    write(tmp_path / "set" / "rows.csv", b"image,label\npictures/1.png,a\npictures/2.png,a\n,a\n")
    table = load_table("set/rows.csv", Pictures(), {}, True, tmp_path / "cache")
    assert table.rows["image"] == [
        {"path": str(tmp_path / "set/pictures/1.png"), "bytes": None, "name": "pictures/1.png"}
    ]
    assert [row.reason for row in table.bad] == [
        f"there is no file pictures/2.png (tried {tmp_path / 'set/pictures/2.png'})", "column 'image' is empty",
    ]  # fmt: skip


def test_a_file_that_was_mended_is_looked_at_again(tmp_path):
    picture = write(tmp_path / "1.png", b"")
    rows = write(tmp_path / "rows.csv", b"image,label\n1.png,a\n")
    before = load_table(rows, Pictures(), {}, True, tmp_path / "cache")
    assert [row.reason for row in before.bad] == ["1.png is empty"]
    write(picture)
    after = load_table(rows, Pictures(), {}, True, tmp_path / "cache")
    assert after.bad == []
    assert after.fingerprint != before.fingerprint


def test_a_set_that_was_moved_is_found_in_its_new_place(tmp_path):
    write(tmp_path / "old" / "1.png")
    write(tmp_path / "old" / "rows.csv", b"image,label\n1.png,a\n")
    old = load_table(tmp_path / "old" / "rows.csv", Pictures(), {}, True, tmp_path / "cache")
    (tmp_path / "old").rename(tmp_path / "new")
    new = load_table(tmp_path / "new" / "rows.csv", Pictures(), {}, True, tmp_path / "cache")
    assert new.rows["image"][0]["path"] == str(tmp_path / "new" / "1.png")
    assert new.fingerprint == old.fingerprint


def test_folders_differ_by_names_and_by_content(tmp_path):
    write(tmp_path / "a" / "1.png")
    one = load_table(tmp_path, Pictures(), {}, True, tmp_path / ".cache").fingerprint
    write(tmp_path / "a" / "1.png", b"other")
    other = load_table(tmp_path, Pictures(), {}, True, tmp_path / ".cache").fingerprint
    names = fingerprint(tmp_path)
    (tmp_path / "a" / "1.png").rename(tmp_path / "a" / "2.png")
    assert len({one, other}) == 2
    assert fingerprint(tmp_path) != names


@pytest.mark.parametrize("value", [7, None, [], {"path": None, "bytes": None}, "  "])
def test_what_is_no_path_is_a_bad_row(value, tmp_path):
    with pytest.raises(BadRow, match="is not the path of a file"):
        reference(value, tmp_path, 1)


def test_content_in_the_table_itself_needs_no_file(tmp_path):
    file = reference({"bytes": b"content", "path": None}, tmp_path, 3)
    assert file["name"] == "row 3"
    with open_file(file) as opened:
        assert opened.read() == b"content"
    with pytest.raises(BadRow, match="there is no file"):
        reference("nul\0byte", tmp_path, 1)
