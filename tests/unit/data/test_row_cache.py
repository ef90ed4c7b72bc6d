from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import datasets
import pytest

from toolkit.base.errors import DataError
from toolkit.data.row_cache import RECORD, from_cache

ROWS = {"n": list(range(100))}


class Maker:
    """Makes rows with their files in a folder as `tokenise` does, and counts how often."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, folder: Path) -> datasets.Dataset:
        folder.mkdir(exist_ok=True)
        rows = datasets.Dataset.from_dict(ROWS)
        return rows.map(self._count, batched=True, cache_file_name=str(folder / "rows.arrow"), new_fingerprint="f")

    def _count(self, columns):
        self.made += 1
        return columns


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from_cache("key", Maker(), tmp_path)
    return tmp_path / "toolkit" / "key"


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, lambda file: file.write_bytes(b""), Path.unlink])
@pytest.mark.parametrize("name", ["rows.arrow", RECORD])
def test_damaged_rows_are_prepared_again(folder, tmp_path, caplog, damage, name):
    damage(folder / name)
    maker = Maker()
    assert from_cache("key", maker, tmp_path)[:] == ROWS
    assert maker.made == 1
    killed = not (damage is Path.unlink and name == RECORD)  # then they were not complete
    assert [str(folder) in message for message in caplog.messages] == [True] * killed
    assert from_cache("key", maker, tmp_path)[:] == ROWS
    assert maker.made == 1


def test_rows_that_are_as_written_are_read(folder, tmp_path, caplog):
    maker = Maker()
    assert from_cache("key", maker, tmp_path)[:] == ROWS
    assert (maker.made, caplog.messages) == (0, [])
    assert list(json.loads((folder / RECORD).read_text())) == ["rows.arrow"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            r"No space left on device.*; \d.* are free in .*. Set HF_HOME",
        ),
        (NotImplementedError("the file system has no locks"), "the file system has no locks. Set HF_HOME"),
    ],
)
def test_a_cache_that_cannot_be_written_is_a_message(tmp_path, error, message):
    def make(folder: Path) -> datasets.Dataset:
        raise error

    where = re.escape(str(tmp_path))
    with pytest.raises(DataError, match=rf"cannot use the cache of prepared rows, {where}.*{message}"):
        from_cache("key", make, tmp_path)


def test_a_missing_file_of_the_user_is_not_blamed_on_the_cache(tmp_path):
    def make(folder: Path) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"bytes": [(tmp_path / "none.png").read_bytes()]})

    with pytest.raises(FileNotFoundError):
        from_cache("key", make, tmp_path)
