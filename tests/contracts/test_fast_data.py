"""A run is the same from every format of the same rows, staged or not; archives and copies are opened rarely."""

from __future__ import annotations

import csv
import json
import os
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import run_command
from containers import arrow_of, hdf5_of, media_rows, parquet_of, tar_of, zip_of
from launching import fork
from runs import ROOT, assert_same_weights, lines, predictions, train, without_rows

from toolkit.base.errors import DataError

TEXT = ("train.max_steps=3", "data.max_train_samples=40", "data.max_eval_samples=9")
MEDIA = (
    *("data.max_train_samples=20", "data.max_eval_samples=7", "train.per_device_train_batch_size=4"),
    *("train.gradient_accumulation_steps=1", "train.num_train_epochs=2", "checkpoint.save_steps=null"),
    *("train.dataloader_num_workers=0", "data.media_cache=0"),
)
_opened: list[Counter[str]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened and isinstance(arguments[0], str | bytes):
        _opened[-1][os.fsdecode(arguments[0])] += 1


@contextmanager
def opened_files() -> Iterator[Counter[str]]:
    """Counts how often Python opens each file."""
    if not hasattr(sys, "_counts_opened_files"):
        sys.addaudithook(_audit)
        sys._counts_opened_files = True  # type: ignore[attr-defined]  # a hook cannot be removed
    _opened.append(Counter())
    try:
        yield _opened[-1]
    finally:
        _opened.pop()


def below(counts: Counter[str], place: Path) -> Counter[str]:
    return Counter({name: count for name, count in counts.items() if Path(name).is_relative_to(place)})


def files(train_file: object, validation_file: object) -> tuple[str, str]:
    return f"data.train_file={train_file}", f"data.validation_file={validation_file}"


def assert_same_run(one: Path, other: Path, names: bool = True) -> None:
    """Asserts that two runs are equal bit for bit; the names of rows without a file may differ."""
    assert_same_weights(one, other)
    assert lines(one) == lines(other)
    left, right = ([{**row, **({} if names else {"image": "", "audio": ""})} for row in without_rows(predictions(run))]
                   for run in (one, other))  # fmt: skip
    assert left == right
    assert left


def test_rows_of_text_are_the_same_in_every_format(tmp_path):
    splits = {}
    for split in ("train", "validation"):
        with (ROOT / "recipes" / "data" / "reviews" / f"{split}.csv").open(newline="", encoding="utf-8") as opened:
            read = list(csv.DictReader(opened))
        splits[split] = {name: [row[name] for row in read] for name in ("text", "label")}
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in read), encoding="utf-8")
    ways = {
        "jsonl": [tmp_path / "train.jsonl", tmp_path / "validation.jsonl"],
        "parquet": [parquet_of(rows, tmp_path / f"{split}.parquet") for split, rows in splits.items()],
        "arrow": [arrow_of(rows, tmp_path / f"{split}.arrow") for split, rows in splits.items()],
        "stream": [arrow_of(rows, tmp_path / f"{split}.arrows", stream=True) for split, rows in splits.items()],
        "hdf5": [f"{hdf5_of(rows, tmp_path / 'all.h5', split)}#{split}" for split, rows in splits.items()],
    }
    train("reviews", tmp_path / "csv", *TEXT)
    for name, sources in ways.items():
        train("reviews", tmp_path / name, *TEXT, *files(*sources))
        assert_same_run(tmp_path / "csv", tmp_path / name)
    stage = f"data.stage_to={tmp_path / 'stage'}"
    train("reviews", tmp_path / "staged", *TEXT, *files(*ways["hdf5"]), stage, "data.fingerprint=stat")
    assert_same_run(tmp_path / "csv", tmp_path / "staged")


@pytest.mark.slow
@pytest.mark.parametrize("modality", ["image", "audio"])
def test_files_are_the_same_in_every_container(modality, tmp_path):
    folders = [ROOT / "recipes" / "data" / ("images" if modality == "image" else "audio") / split
               for split in ("train", "validation")]  # fmt: skip
    rows = [media_rows(folder, modality) for folder in folders]

    def made(make: Any, suffix: str, sources: Any = folders, **settings: Any) -> tuple[str, str]:
        return files(*(make(each, tmp_path / f"{number}{suffix}", **settings) for number, each in enumerate(sources)))

    for number, folder in enumerate(folders):
        with (tmp_path / f"{number}.csv").open("w", newline="", encoding="utf-8") as opened:
            table = csv.writer(opened)
            table.writerow([modality, "label"])
            for place, (row, label) in enumerate(zip(*rows[number].values(), strict=True)):
                path = folder / row["path"]
                table.writerow([os.path.relpath(path, tmp_path) if place % 2 else path, label])
    ways = {
        "tar": made(tar_of, ".tar"),
        "tar of a folder": made(tar_of, " in.tar", top="set/"),
        "zip": made(zip_of, ".zip"),
        "stored zip": made(zip_of, " stored.zip", method=zipfile.ZIP_STORED),
        "parquet": made(parquet_of, ".parquet", rows),
        "arrow": made(arrow_of, ".arrow", rows),
        "hdf5": made(hdf5_of, ".h5", rows),
        "table": files(tmp_path / "0.csv", tmp_path / "1.csv"),
    }
    config, stage = f"reviews/smoke_{modality}", f"data.stage_to={tmp_path / 'stage'}"
    train(config, tmp_path / "folder", *MEDIA)
    for name, sources in ways.items():
        train(config, tmp_path / name, *MEDIA, *sources)
        assert_same_run(tmp_path / "folder", tmp_path / name, names=name not in ("hdf5", "table"))
    for name, sources in {"folder": files(*folders), "tar": ways["tar"], "table": ways["table"]}.items():
        with opened_files() as counts:
            train(config, tmp_path / f"{name} staged", *MEDIA, *sources, stage)
        assert_same_run(tmp_path / name, tmp_path / f"{name} staged")
        read = below(counts, folders[0]) + below(counts, tmp_path / "0.tar")
        assert read
        assert set(read.values()) <= ({1} if name == "folder" else {1, 2})  # read once, to be copied


def test_an_archive_is_one_inode_and_opened_once_in_training(tmp_path):
    folder = ROOT / "recipes" / "data" / "images" / "train"
    archive = tar_of(folder, tmp_path / "train.tar")
    validation = folder.parent / "validation"
    found = dict[str, int]()
    for name, settings in {
        "content": files(archive, validation),  # read whole for its fingerprint, before its rows are read and after
        "stat": (*files(archive, validation), "data.fingerprint=stat"),
        "stat again": (*files(archive, validation), "data.fingerprint=stat"),
        "folder": files(folder, validation),
    }.items():
        with opened_files() as counts:
            train("reviews/smoke_image", tmp_path / name, *MEDIA, *settings)
        found[name] = below(counts, archive if name != "folder" else folder).total()
    extracted = {path.name for path in folder.rglob("*.png")} & {path.name for path in tmp_path.rglob("*.png")}
    assert not extracted
    rows, epochs = 20, 2
    assert found["folder"] >= (epochs + 1) * rows
    assert found["stat"] < found["content"] <= 10  # also for its size, and to list its files
    assert found["stat again"] <= 4  # to see that it can be opened, twice, and once to read all rows in all epochs
    assert_same_run(tmp_path / "content", tmp_path / "stat again")


def test_a_full_stage_is_said_in_a_sentence_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("toolkit.data.staging.available_memory", lambda: 10_000)
    monkeypatch.setattr("toolkit.data.staging.is_memory", lambda folder: True)
    with pytest.raises(DataError) as full:
        train("reviews", tmp_path / "run", *TEXT, f"data.stage_to={tmp_path / 'stage'}")
    assert str(full.value) == (
        f"data.stage_to: the copies need 69,632 bytes, and {tmp_path / 'stage'} has 10,000 bytes free; free some, name "
        "another folder, or remove data.stage_to."
    )
    assert not list((tmp_path / "stage").glob("*/*"))
    assert run_command("validate", "reviews", "--config", "smoke", f"data.stage_to={tmp_path / 'stage'}") == 2
    assert "data.stage_to: the copies need 69,632 bytes, and" in " ".join(capsys.readouterr().err.split())


@pytest.mark.distributed
def test_one_process_of_a_machine_copies_for_all(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "a" / "1.png").write_text(name)
    fork([ROOT / "tests" / "support" / "staged_runs.py", tmp_path], 2)
    first, second = (json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in (0, 1))
    assert first == {"found": [["one"], ["two"]], "made": [str(tmp_path / "one"), str(tmp_path / "two")]}
    assert second == {"found": [["one"], ["two"]], "made": []}
