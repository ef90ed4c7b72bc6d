"""What was read from files is kept: by whom it is seen, how much of it, and what happens when it is damaged."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from toolkit.data.media import cache
from toolkit.data.media.cache import MediaCache, cache_media, limit_of

ONE_PROCESS = SimpleNamespace(num_processes=1)
ARRAYS = [
    np.arange(12, dtype=np.uint8).reshape(3, 4),
    np.linspace(0, 1, 7, dtype=np.float32),
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4).transpose(2, 0, 1),
    np.float32(3.0).reshape(1, 1, 1, 1),
]


def file() -> int:
    return cache.new_file()[0]


def same(one, other) -> bool:
    return one is not None and one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)


def test_arrays_are_read_as_they_were_kept():
    arrays = MediaCache(file(), 9, 2**20)
    assert arrays.get(3) is None
    for number, array in enumerate(ARRAYS):
        arrays.put(2 * number, array)
    assert [same(arrays.get(2 * number), array) for number, array in enumerate(ARRAYS)] == [True] * 4
    assert arrays.get(1) is None
    for other in (np.zeros(3), np.zeros((1,) * 5, np.uint8)):  # neither tasks' types nor their axes
        arrays.put(8, other)
        assert arrays.get(8) is None


def test_a_row_is_read_once_and_each_set_has_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sets = cache_media({"train": 2, "validation": 3}, "1MiB", ONE_PROCESS)
    assert list(tmp_path.iterdir()) == []  # nobody else sees it
    reads = []

    def read(value):
        reads.append(value)
        return np.full(5, value, np.uint8)

    for _ in range(2):
        found = [sets[name].decoded(row, lambda row=row: read(row)) for name in sets for row in range(2)]
    assert reads == [0, 1, 0, 1]
    assert [array[0] for array in found] == [0, 1, 0, 1]
    assert sets["validation"].decoded(2, lambda: None) is None
    assert same(sets["validation"].decoded(2, lambda: np.ones(1, np.uint8)), np.ones(1, np.uint8))


def test_processes_see_what_others_keep():
    arrays = MediaCache(file(), 200, 2**20)

    def fill(numbers):
        for number in numbers:
            if arrays.get(number) is None:
                arrays.put(number, np.full((3, 5), number, np.uint8))

    context = get_context("fork")
    workers = [context.Process(target=fill, args=(range(200)[::step],)) for step in (1, -1, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert all(same(arrays.get(number), np.full((3, 5), number, np.uint8)) for number in range(200))


def test_the_limit_is_kept():
    arrays = MediaCache(file(), 10, 3000)
    for number in range(10):
        arrays.put(number, np.full(1000, number, np.uint8))
    assert [number for number in range(10) if arrays.get(number) is not None] == [0, 1]
    assert os.fstat(arrays.file).st_size <= 3000


@pytest.mark.parametrize("name", ["pwrite", "pread", "preadv"])
def test_a_disk_that_fails_only_means_that_nothing_is_kept(name, monkeypatch):
    arrays = MediaCache(file(), 2, 2**20)
    arrays.put(0, ARRAYS[0])

    def fails(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, name, fails)
    arrays.put(1, ARRAYS[0])
    assert arrays.get(1) is None


def test_half_a_write_is_not_read(monkeypatch):
    arrays = MediaCache(file(), 2, 2**20)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: write(file, bytes(data)[: len(data) // 2], place))
    arrays.put(0, ARRAYS[0])
    monkeypatch.undo()
    assert arrays.get(0) is None


def test_no_flipped_bit_is_read():
    arrays = MediaCache(file(), 1, 2**20)
    arrays.put(0, ARRAYS[0])
    content = os.pread(arrays.file, 4096, 0)
    for place in range(8, len(content)):
        for bit in range(8):
            os.pwrite(arrays.file, bytes([content[place] ^ 1 << bit]), place)
            assert arrays.get(0) is None, (place, bit)
        os.pwrite(arrays.file, content[place : place + 1], place)


def test_a_copy_for_a_process_that_is_no_fork_keeps_nothing():
    arrays = MediaCache(file(), 1, 2**20)
    arrays.put(0, ARRAYS[0])
    copy = pickle.loads(pickle.dumps(arrays))
    copy.put(0, ARRAYS[0])
    assert copy.get(0) is None
    assert arrays.get(0) is not None


def test_limits(tmp_path, monkeypatch):
    assert limit_of("3MiB", tmp_path) == 3 * 2**20
    assert cache_media({"train": 3}, "0", ONE_PROCESS) == {}
    monkeypatch.setattr(cache, "available_memory", lambda: 4000)
    assert limit_of("auto", tmp_path) == 1000
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert cache_media({"train": 3}, "1MiB", ONE_PROCESS) == {}


def test_the_file_is_gone_with_its_object():
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    sets = cache_media({"train": 3}, "auto", ONE_PROCESS)
    assert opened() == before + 1
    del sets
    assert opened() == before
