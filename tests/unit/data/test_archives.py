"""Archives of class folders: the rows of the folder, and what an archive from anywhere cannot do."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from containers import tar_of, zip_of

from toolkit.api.batch import BadRow
from toolkit.base.errors import DataError
from toolkit.data.media import archives
from toolkit.data.media.files import open_file, reference
from toolkit.data.sources import folder_of, is_files, read_rows

PACK: dict[str, Callable[[Path, Path], Path]] = {"tar": tar_of, "zip": zip_of}


def write(path: Path, content: bytes = b"picture") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def contents(source: Path) -> list[bytes]:
    """Returns the content of every good row's file."""
    found = []
    for row in read_rows(source):
        if row.reason is None:
            (name,) = (value for column, value in row.values.items() if column != "label")
            with open_file(reference(name, folder_of(source), row.number)) as file:
                found.append(file.read())
    return found


def tar_with(path: Path, *entries: tuple[str | tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in entries:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def zip_with(path: Path, *entries: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        for name, content in entries:
            opened.writestr(name, content)
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def reasons(archive: Path) -> dict[str, str]:
    return {row.reason.partition(": ")[0]: row.reason.partition(": ")[2] for row in read_rows(archive) if row.reason}


@pytest.mark.parametrize("kind", PACK)
def test_an_archive_has_the_rows_of_its_folder(kind, tmp_path):
    for number, name in enumerate((
        "b/2.png", "b/1.JPG", "a/deep/3.webp", "a/.hidden.png", ".git/4.png", "a/notes.txt", "a/scan.pdf",
        "b/Thumbs.db", "__MACOSX/b/1.JPG", "5.png", f"b/{'long name ' * 12}größe.png", "b/inner.zip",
    )):  # fmt: skip
        write(tmp_path / "set" / name, str(number).encode() * 600)
    archive = PACK[kind](tmp_path / "set", tmp_path / f"set.{kind}")
    assert is_files(archive)
    assert list(read_rows(archive)) == list(read_rows(tmp_path / "set"))
    assert contents(archive) == contents(tmp_path / "set")
    assert list(read_rows(archive, labelled=False)) == list(read_rows(tmp_path / "set", labelled=False))


@pytest.mark.parametrize("kind", PACK)
def test_the_folder_that_was_packed_is_not_a_class(kind, tmp_path):
    for name in ("train/a/1.png", "train/b/2.png", "train/README.md", "train/Thumbs.db", "LICENSE.txt"):
        write(tmp_path / "set" / name)
    archive = PACK[kind](tmp_path / "set", tmp_path / f"set.{kind}")
    assert list(read_rows(archive)) == list(read_rows(tmp_path / "set" / "train"))
    assert len(contents(archive)) == 2


def test_names_may_begin_with_a_point(tmp_path):
    archive = tar_with(tmp_path / "a.tar", ("./b/1.png", b"x"), ("./a/1.png", b"y"))
    assert [row.values["image"] for row in read_rows(archive)] == ["a/1.png", "b/1.png"]


def test_names_that_macos_writes_in_utf8_without_saying_so(tmp_path):
    archive = zip_with(tmp_path / "a.zip", ("größe/1.png", b"x"))
    content = bytearray(archive.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.index(header) + flags
        assert content[place : place + 2] == b"\0\x08"
        content[place : place + 2] = b"\0\0"
    archive.write_bytes(content)
    assert [row.values["label"] for row in read_rows(archive)] == ["größe"]
    assert contents(archive) == [b"x"]


def test_entries_of_a_tar_that_are_not_plain_files_are_bad_rows(tmp_path):
    archive = tar_with(
        tmp_path / "a.tar", ("a/1.png", b"good"), ("../2.png", b"x"), ("a/../../3.png", b"x"), ("/etc/4.png", b"x"),
        (special("a/5.png", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (special("a/6.png", tarfile.LNKTYPE, "a/1.png"), b""),
        (special("a/7.png", tarfile.FIFOTYPE), b""), (special("a/8.png", tarfile.CHRTYPE), b""), ("a/9.png", b"x"),
        ("a/9.png", b"y"), ("a/nested.tar", b"x"),
    )  # fmt: skip
    link = "is a link to another file; make the archive with `tar --dereference --hard-dereference`"
    assert reasons(archive) == {
        **dict.fromkeys(("../2.png", "a/../../3.png", "/etc/4.png"), "its name is not a path inside the archive"),
        **dict.fromkeys(("a/5.png", "a/6.png"), link),
        **dict.fromkeys(("a/7.png", "a/8.png"), "is not a file, but a pipe or a device"),
        "a/9.png": "the archive has more than one file of this name",
        "a/nested.tar": "unsupported file type '.tar'",
    }
    assert contents(archive) == [b"good"]


def test_entries_of_a_zip_that_cannot_be_read_are_bad_rows(tmp_path, monkeypatch):
    link = zipfile.ZipInfo("a/2.png")
    link.external_attr = 0o120777 << 16
    other = zipfile.ZipInfo("a/3.png")
    other.compress_type = zipfile.ZIP_LZMA
    large = zipfile.ZipInfo("a/4.png")
    large.compress_type = zipfile.ZIP_DEFLATED
    monkeypatch.setattr(archives, "MOST_BYTES", 5000)
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive = zip_with(
            tmp_path / "a.zip", ("a/1.png", b"good"), (link, b"/etc/passwd"), (other, b"x" * 99), (large, bytes(9999)),
            ("../5.png", b"x"), ("a/6.png", b"x"), ("a/6.png", b"y"),
        )  # fmt: skip
    content = archive.read_bytes()
    assert reasons(archive) == {
        "a/2.png": "is a link to another file; make the archive without `zip --symlinks`",
        "a/3.png": "is compressed by method 14; archives may have deflated and stored files",
        "a/4.png": "has 9,999 bytes; files in archives may have 5,000",
        "../5.png": "its name is not a path inside the archive",
        "a/6.png": "the archive has more than one file of this name",
    }
    flags = content.index(b"PK\x01\x02") + 8
    (tmp_path / "b.zip").write_bytes(content[:flags] + b"\x01\0" + content[flags + 2 :])
    assert reasons(tmp_path / "b.zip")["a/1.png"] == "is encrypted"
    assert contents(archive) == [b"good"]


def test_a_file_that_unpacks_to_more_than_it_says_is_rejected(tmp_path):
    folder = write(tmp_path / "set" / "a" / "1.png", bytes(100_000)).parents[1]
    archive = zip_of(folder, tmp_path / "a.zip")
    content = archive.read_bytes()
    place = content.rindex(b"PK\x01\x02") + 24
    assert struct.unpack("<I", content[place : place + 4]) == (100_000,)
    archive.write_bytes(content[:place] + struct.pack("<I", 10) + content[place + 4 :])
    with pytest.raises(OSError, match="it is damaged, or its archive has changed"):
        contents(archive)


@pytest.mark.parametrize("kind", PACK)
def test_a_changed_byte_of_a_zip_and_a_cut_archive_are_noticed(kind, tmp_path):
    for name in ("a/1.png", "b/2.png"):
        write(tmp_path / "set" / name, os.urandom(2000))
    archive = PACK[kind](tmp_path / "set", tmp_path / f"a.{kind}")
    whole = archive.read_bytes()
    if kind == "zip":
        archive.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
        with pytest.raises(OSError, match="damaged"):
            contents(archive)
    kept = (
        (whole.rindex(b"ustar") - 257, whole.rindex(b"ustar") + 300, 300) if kind == "tar" else (len(whole) - 30, 300)
    )
    for size in kept:
        archive.write_bytes(whole[:size])
        with pytest.raises(DataError, match=rf"a\.{kind} is not a whole"):
            list(read_rows(archive))


def test_a_tar_that_leads_back_ends(tmp_path):
    archive = tar_with(tmp_path / "a.tar", ("a/1.png", b"x" * 512), ("a/2.png", b"y" * 512))
    content = bytearray(archive.read_bytes())
    header = content[1024:1536]
    header[124:136] = b"\xff" * 10 + struct.pack(">h", -1536)  # a size below 0, in base 256
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[1024:1536] = header
    archive.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar is not a whole"):
        list(read_rows(archive))


def test_archives_in_one_file_one_after_the_other_are_rejected(tmp_path):
    one, two = (tar_with(tmp_path / f"{name}.tar", (f"{name}/1.png", b"x")) for name in "ab")
    one.write_bytes(one.read_bytes() + two.read_bytes())
    with pytest.raises(DataError, match="something follows its end; join archives with `tar --concatenate`"):
        list(read_rows(one))


def test_archives_that_are_compressed_as_a_whole_are_rejected_with_what_to_do(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a/1.png"), io.BytesIO())
    with pytest.raises(DataError, match=r"is not a whole, uncompressed \.tar archive"):
        list(read_rows(tmp_path / "a.tar"))
    (tmp_path / "a.tar").rename(tmp_path / "a.tar.gz")
    with pytest.raises(DataError, match=r"unsupported file type '\.gz'; decompress it first"):
        read_rows(tmp_path / "a.tar.gz")


def test_an_archive_without_classes_and_an_empty_file(tmp_path):
    flat = tar_with(tmp_path / "flat.tar", ("1.png", b"x"))
    with pytest.raises(DataError, match="has no folders of classes"):
        list(read_rows(flat))
    assert [row.values for row in read_rows(flat, labelled=False)] == [{"image": "1.png"}]
    empty = tar_with(tmp_path / "empty.tar", ("a/1.png", b""))
    with pytest.raises(BadRow, match=r"a/1.png: the file is empty \(0 bytes\)"):
        reference("a/1.png", empty, 1)
    with pytest.raises(BadRow, match=r"there is no file a/2\.png in"):
        reference("a/2.png", empty, 1)


def test_another_archive_of_the_same_name_is_read_when_its_rows_are(tmp_path):
    archive = tar_with(tmp_path / "a.tar", ("a/1.png", b"former"))
    file = reference("a/1.png", archive, 1)
    assert open_file(file).read() == b"former"
    archive.rename(tmp_path / "b.tar")
    tar_with(archive, ("a/1.png", b"newest"))
    assert open_file(file).read() == b"former"  # a run reads what it has checked
    archives.reopen(archive)
    assert open_file(file).read() == b"newest"
    tar_with(tmp_path / "c.tar", ("a/1.png", b"others")).rename(archive)
    assert contents(archive) == [b"others"]
