"""Files that rows refer to: class folders, relative paths, changed contents."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pictures_task import Pictures

from toolkit.api.batch import BadRow
from toolkit.base.errors import DataError
from toolkit.config.fields import Column
from toolkit.data.columns import columns_in
from toolkit.data.keys import row_keys
from toolkit.data.media.files import open_file, reference
from toolkit.data.readers.raw import RECOGNISED, RawRow, Reading
from toolkit.data.sources import fingerprint, read_rows, reading_notes
from toolkit.data.table import load_table


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
        "a/scan.pdf",
        "b/Thumbs.db",
        "b/desktop.ini",
        "__MACOSX/b/1.JPG",
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
        "5.png is not in the folder of a class", "a/scan.pdf: unsupported file type '.pdf'",
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


def test_a_folder_without_classes_is_rejected(tmp_path):
    write(tmp_path / "1.png")
    with pytest.raises(DataError, match=r"<class>/<file>"):
        read_rows(tmp_path)


def test_the_content_of_a_file_counts_as_the_input_whatever_else_is_known_of_it(tmp_path):
    files = [reference(write(tmp_path / name).name, tmp_path, 1) for name in ("1.png", "2.png")]
    keys = [row_keys({"image": file | {"frames": 9}, "label": "a"}, Pictures(), None) for file in files]
    assert keys[0] == keys[1]


def test_by_size_and_time_only_these_count_and_no_file_is_opened_again(tmp_path, monkeypatch):
    picture = write(tmp_path / "set" / "a" / "1.png", b"picture")
    facts, usual = picture.stat(), Path.open

    def refusing(path: Path, *arguments: Any, **more: Any) -> Any:
        assert path != picture
        return usual(path, *arguments, **more)

    def found() -> str:
        reading = Reading(fingerprint="stat")
        return load_table(tmp_path / "set", Pictures(), {}, True, tmp_path / "cache", reading=reading).fingerprint

    first = found()
    picture.write_bytes(b"another")
    os.utime(picture, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refusing)
        assert found() == first
    os.utime(picture, ns=(facts.st_atime_ns, facts.st_mtime_ns + 10**9))
    second = found()
    picture.write_bytes(b"longer than before")
    os.utime(picture, ns=(facts.st_atime_ns, facts.st_mtime_ns + 10**9))
    assert len({first, second, found()}) == 3


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
    assert [row.reason for row in before.bad] == ["1.png: the file is empty (0 bytes)"]
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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_regular_file_is_never_opened(tmp_path):
    """A pipe without a writer, or a device without an end, would never return."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    write(tmp_path / "rows.csv", f"image,label\npipe.png,a\n/dev/zero,a\nfolder.png,a\n{'x' * 5000},a\n".encode())
    table = load_table(str(tmp_path / "rows.csv"), Pictures(), {}, True, tmp_path / "cache")
    assert [row.reason for row in table.bad] == [
        "pipe.png is not a file, but a pipe or a device",
        "/dev/zero is not a file, but a pipe or a device",
        "folder.png is not a file, but a folder",
        f"{'x' * 80}… cannot be opened: File name too long",
    ]
    (tmp_path / "pipe.csv").symlink_to(tmp_path / "pipe.png")
    with pytest.raises(DataError, match="neither a file nor a folder, but a pipe or a device"):
        load_table(str(tmp_path / "pipe.csv"), Pictures(), {}, True, tmp_path / "cache")


# Without labels


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("new/2.png", "new/a/b/1.webp", "new/c.JPG", "new/Thumbs.db", "new/notes.txt", "new/a/READ.md"):
        write(Path(name))
    return Path("new")


def test_a_folder_to_predict_needs_no_classes(photos):
    assert [row.values for row in read_rows(photos, labelled=False)] == [
        {"image": "2.png"}, {"image": "a/b/1.webp"}, {"image": "c.JPG"},
    ]  # fmt: skip
    assert reading_notes(photos, RECOGNISED) == ["new: 2 text files are skipped (a/READ.md)"]
    (photos / "a/READ.md").unlink()
    assert reading_notes(photos, RECOGNISED) == ["new: 1 text file is skipped (notes.txt)"]
    (photos / "notes.txt").unlink()
    assert reading_notes(photos, RECOGNISED) == []


def test_a_single_file_and_several_paths_can_be_predicted(photos):
    assert list(read_rows("new/c.JPG", labelled=False)) == [RawRow(1, {"image": "new/c.JPG"})]
    several = ["new/c.JPG", "new/a", "rows.csv"]
    write(Path("rows.csv"))
    assert list(read_rows(several, labelled=False)) == [
        RawRow(1, {"image": "new/c.JPG"}),
        RawRow(2, {"image": "new/a/b/1.webp"}),
        RawRow(3, {"file": "rows.csv"}, "rows.csv: unsupported file type '.csv'"),
    ]
    with pytest.raises(DataError, match=r"gone\.jpg does not exist"):
        list(read_rows(["new/c.JPG", "gone.jpg"], labelled=False))
    with pytest.raises(DataError, match=r"^new/c.JPG is a single image file without a label; expected a folder with"):
        read_rows("new/c.JPG")


@pytest.mark.parametrize("source", ["new", "new/c.JPG", ["new/c.JPG", "new/2.png"]])
def test_data_columns_do_not_apply_to_files_themselves(photos, source, tmp_path):
    table = load_table(source, Pictures(), {"image": "photo", "label": "kind"}, False, tmp_path / "cache")
    assert table.bad == []
    assert all(Path(row["image"]["path"]).is_absolute() for row in table.rows)
    assert {Path(row["image"]["name"]).name for row in table.rows} >= {"c.JPG"}
    again = load_table(source, Pictures(), {"image": "photo"}, False, tmp_path / "cache")
    assert again.fingerprint == table.fingerprint
    write(Path("new/c.JPG"), b"another picture")
    changed = load_table(source, Pictures(), {"image": "photo"}, False, tmp_path / "cache")
    assert changed.fingerprint != table.fingerprint


class Texts(Pictures):
    """Rows with one text to translate, and one that is already translated."""

    columns = {  # noqa: RUF012
        "source": Column("the text", required=False), "target": Column("its translation", required=False, label=True),
        "translation": Column("both", required=False),
    }  # fmt: skip


class Questions(Pictures):
    columns = {"question": Column("q"), "context": Column("c")}  # noqa: RUF012


def test_the_lines_of_a_text_file_are_the_one_input_column():
    given = {"source": "English", "target": "German"}
    assert columns_in("new.txt", Texts(), given) == {"source": "text"}
    assert columns_in("NEW.TXT", Texts(), {}) == {"source": "text"}
    assert columns_in("new.txt", Questions(), {"question": "q"}) == {"question": "q"}  # two inputs, one column
    assert columns_in("new.csv", Texts(), given) == columns_in("new.{txt}", Texts(), given) == given
