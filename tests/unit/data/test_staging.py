"""Copies of data files (`data.stage_to`): made once, verified, kept while used, removed for room."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pictures_task import Pictures

from toolkit.base.errors import DataError
from toolkit.config.sections import DataConfig
from toolkit.data import staging
from toolkit.data.staging import Stage, stage_files, stage_problem
from toolkit.data.table import load_table

PICTURE = b"picture" * 1000


def write(path: Path, content: bytes = PICTURE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    for name in ("a/1.png", "b/2.png"):
        write(tmp_path / "set" / name)
    return DataConfig(train_file=str(tmp_path / "set"), stage_to=str(tmp_path / "stage"))


def entries(data: DataConfig) -> list[Path]:
    return [each for each in Path(data.stage_to or "").glob("copies-*") if each.is_dir()]


def copied(data: DataConfig, stage: Stage) -> list[Path]:
    """Returns the files of the copy of the training rows."""
    return sorted(each for each in stage.copies(data.train_file or "").rglob("*") if each.is_file())


def test_rows_are_read_from_copies_and_named_as_before(tmp_path, data, monkeypatch):
    other, same, said = write(tmp_path / "elsewhere" / "3.png"), tmp_path / "set" / "a" / "1.png", list[str]()
    monkeypatch.setattr("toolkit.data.table.say", said.append)
    rows = f"image;label\n../set/a/1.png;a\n{same};a\n{other};b\nnone.png;b\n"
    write(tmp_path / "rows" / "rows.csv", rows.encode())
    table = replace(data, train_file=str(tmp_path / "rows" / "rows.csv"))
    held = stage_files(table, Pictures())
    assert len(copied(table, held)) == 3
    plain = load_table(table.train_file, Pictures(), {}, True, tmp_path / "cache")
    staged = load_table(
        table.train_file, Pictures(), {}, True, tmp_path / "cache", copies=held.copies(table.train_file)
    )
    assert said == [f"{table.train_file}: recognised data.delimiter=';'"] * 2
    assert staged.fingerprint == plain.fingerprint
    assert staged.bad == plain.bad  # with the path where the file is looked for, not that of a copy
    assert [row["image"]["name"] for row in staged.rows] == [row["image"]["name"] for row in plain.rows]
    places = [Path(row["image"]["path"]) for row in staged.rows]
    assert all(place.is_relative_to(tmp_path / "stage") and place.read_bytes() == PICTURE for place in places)


def test_errors_name_the_file_and_not_its_copy(tmp_path, data):
    table = replace(data, train_file=str(write(tmp_path / "rows.csv", b"text,text\na,b\n")))
    held = Stage(tmp_path, {})
    held.keys["x"] = "entry"
    copies = held.copies("x")
    write(copies / str(tmp_path / "rows.csv").lstrip("/"), b"text,text\na,b\n")
    with pytest.raises(DataError) as error:
        load_table(table.train_file, Pictures(), {}, True, tmp_path / "cache", copies=copies)
    assert str(error.value) == f"{tmp_path / 'rows.csv'}: more than one column is named 'text'."


def test_copies_are_used_again_until_the_files_change(data, tmp_path):
    first = stage_files(data, Pictures())
    times = [each.stat().st_ctime_ns for each in copied(data, first)]
    assert len(times) == 2
    again = stage_files(data, Pictures())
    assert [each.stat().st_ctime_ns for each in copied(data, again)] == times
    write(tmp_path / "set" / "a" / "1.png", b"another")
    changed = stage_files(data, Pictures())
    assert copied(data, changed)[0].read_bytes() == b"another"
    assert copied(data, first)[0].read_bytes() == PICTURE  # the run that began before still has its own
    assert len(entries(data)) == 2


@pytest.mark.parametrize("damage", ["byte", "size", "gone"])
def test_damaged_copies_are_made_again_unless_another_run_reads_them(data, damage):
    held = stage_files(data, Pictures())
    file, facts = copied(data, held)[0], copied(data, held)[0].stat()
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-1] + (b"X" if damage == "byte" else b""))
        os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with pytest.raises(DataError, match="are damaged, and another run reads them"):
        stage_files(data, Pictures())
    del held
    again = stage_files(data, Pictures())
    assert copied(data, again)[0].read_bytes() == content


def test_by_size_and_time_no_copy_is_read_again(data):
    by_stat = replace(data, fingerprint="stat")
    held = stage_files(by_stat, Pictures())
    file, facts = copied(data, held)[0], copied(data, held)[0].stat()
    file.write_bytes(PICTURE[:-1] + b"X")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert copied(data, stage_files(by_stat, Pictures()))[0].read_bytes().endswith(b"X")


def test_the_longest_unused_copies_make_room_and_used_ones_do_not(data, tmp_path, monkeypatch):
    sets = []
    for number in range(3):
        folder = tmp_path / f"set{number}"
        shutil.copytree(tmp_path / "set", folder)
        sets.append(replace(data, train_file=str(folder)))
    first, second = (stage_files(each, Pictures()) for each in sets[:2])
    for age, held in ((100, first), (50, second)):
        lock = Path(data.stage_to or "") / f"{next(iter(held.keys.values()))}.lock"
        os.utime(lock, (time.time() - age, time.time() - age))
    mine = write(Path(data.stage_to or "") / "mine" / "file")
    write(mine.parent.with_name("mine.lock"))
    monkeypatch.setattr(staging, "is_memory", lambda folder: True)
    monkeypatch.setattr(staging, "available_memory", lambda: (2 - len(entries(data))) * 16_384)
    assert "need 16,384 bytes" in (stage_problem(sets[2], Pictures()) or "")
    with pytest.raises(DataError, match=r"the copies need 16,384 bytes, and .*/stage has 0 bytes free; free some"):
        stage_files(sets[2], Pictures())
    keys = {name: next(iter(held.keys.values())) for name, held in (("first", first), ("second", second))}
    del first, second
    assert stage_problem(sets[2], Pictures()) is None
    third = stage_files(sets[2], Pictures())
    assert {each.name for each in entries(data)} == {keys["second"], *third.keys.values()}
    assert mine.exists()  # nothing but copies is removed


def test_too_few_inodes_are_said(data, monkeypatch):
    facts = os.statvfs(data.train_file)
    values = [*facts]
    values[5], values[7] = 10, 1  # all inodes, and those that are free
    monkeypatch.setattr(os, "statvfs", lambda folder: os.statvfs_result(values))
    with pytest.raises(DataError, match=r"there are 2 files, and .*/stage has room for 1 more"):
        stage_files(data, Pictures())


def test_what_a_killed_run_left_is_removed(data):
    stage_files(data, Pictures())
    names = (".copies-ab.123.toolkit-tmp", ".run.123.toolkit-tmp")
    left, other = (write(Path(data.stage_to or "") / name / "files" / "1.png") for name in names)
    stage_files(data, Pictures())
    assert not left.exists()
    assert other.exists()  # which is no copy


def test_folders_that_cannot_hold_copies(data, tmp_path, monkeypatch):
    inside = replace(data, stage_to=str(tmp_path / "set" / "stage"))
    with pytest.raises(DataError, match=r"is inside .*/set, whose files it would hold"):
        stage_files(inside, Pictures())
    assert not (tmp_path / "set" / "stage").exists()
    write(tmp_path / "file")
    with pytest.raises(DataError, match=r"cannot be copied to .*/file/stage: .*Not a directory"):
        stage_files(replace(data, stage_to=str(tmp_path / "file" / "stage")), Pictures())
    stage_files(data, Pictures())
    owner = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    with pytest.raises(DataError, match="belongs to another user"):
        stage_files(data, Pictures())


def test_a_file_that_changes_while_it_is_copied_is_rejected(data, tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.data.staging.say", lambda text: write(tmp_path / "set" / "b" / "2.png", b"other"))
    with pytest.raises(DataError, match=r"b/2.png changed while it was copied"):
        stage_files(data, Pictures())
    assert entries(data) == []


JOB = """
import sys, time
from pathlib import Path
sys.path[:0] = {path!r}
from pictures_task import Pictures
from toolkit.config.sections import DataConfig
from toolkit.data.staging import stage_files
held = stage_files(DataConfig(train_file={train!r}, stage_to={stage!r}), Pictures())
files = [each for each in held.copies({train!r}).rglob("*.png")]
print(len(files), sum(each.stat().st_ino for each in files), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_jobs_of_a_machine_do_not_collide(data, tmp_path):
    for number in range(40):
        write(tmp_path / "set" / "a" / f"more{number}.png", os.urandom(50_000))
    code = JOB.format(path=sys.path, train=data.train_file, stage=data.stage_to)
    jobs = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    found = [job.stdout.readline() for job in jobs]
    assert found[0].startswith("42 ")
    assert found == [found[0]] * 3  # the same inodes: one of them has copied
    for job in jobs:
        job.communicate()
        assert job.returncode == 0
    assert len(entries(data)) == 1
