"""Each kind of bad row is found, with its number and a reason: refused by `error`, left out by `skip`."""

from __future__ import annotations

import json
from pathlib import Path

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from audio_files import encoded as recording
from audio_files import tone
from bad_row_kinds import AUDIO, COLUMNS, CSV, IMAGES, JSON, JSONL, SPECIAL
from containers import arrow_of, hdf5_of, tar_of, zip_of
from fault_runs import QUICK, SMALL
from faults import Faults, read_lines
from forked import ROOT, ForkServer
from image_files import encoded as picture
from image_files import noise

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

GOOD = [(f"text number {number}", "positive" if number % 2 else "negative") for number in range(12)]


def write_csv(folder: Path) -> tuple[Path, int]:
    rows = [f"{text},{label}".encode() for text, label in GOOD]
    (folder / "train.csv").write_bytes(b"\n".join([b"text,label", *rows, *CSV.values()]) + b"\n")
    return folder / "train.csv", len(CSV)


def write_jsonl(folder: Path) -> tuple[Path, int]:
    rows = [json.dumps({"text": text, "label": label}).encode() for text, label in GOOD]
    (folder / "train.jsonl").write_bytes(b"\n".join([*rows, *JSONL.values()]) + b"\n")
    return folder / "train.jsonl", len(JSONL)


def write_json(folder: Path) -> tuple[Path, int]:
    rows = [{"text": text, "label": label} for text, label in GOOD]
    (folder / "train.json").write_text(json.dumps([*rows, *JSON.values()]))
    return folder / "train.json", len(JSON)


def write_parquet(folder: Path) -> tuple[Path, int]:
    texts, labels = zip(*GOOD, *COLUMNS.values(), strict=True)
    pq.write_table(pa.table({"text": pa.array(texts, pa.string()), "label": pa.array(labels, pa.string())}),
                   folder / "train.parquet")  # fmt: skip
    return folder / "train.parquet", len(COLUMNS)


def write_xlsx(folder: Path) -> tuple[Path, int]:
    book = openpyxl.Workbook()
    for row in [("text", "label"), *GOOD, *COLUMNS.values()]:
        book.active.append(row)
    book.save(folder / "train.xlsx")
    return folder / "train.xlsx", len(COLUMNS)


def write_arrow(folder: Path) -> tuple[Path, int]:
    texts, labels = zip(*GOOD, *COLUMNS.values(), strict=True)
    return arrow_of({"text": texts, "label": labels}, folder / "train.arrow"), len(COLUMNS)


def write_hdf5(folder: Path) -> tuple[Path, int]:
    rows = [(text or "", label or "") for text, label in (*GOOD, *COLUMNS.values())]
    texts, labels = zip(*rows, strict=True)
    return hdf5_of({"text": texts, "label": labels}, folder / "train.h5"), len(COLUMNS)


def _write_classes(folder: Path) -> Path:
    for number in range(len(GOOD)):
        place = folder / "set" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.png").write_bytes(picture(noise(20, 24, 3, seed=number)))
    for name, content in IMAGES.items():
        (folder / "set" / "b" / name).write_bytes(content)
    return folder / "set"


def write_tar(folder: Path) -> tuple[Path, int]:
    classes = _write_classes(folder)
    links = ("pipe", "zero", "dangling", "itself")
    for name in links:
        SPECIAL[name](classes / "b" / f"{name}.png")
    return tar_of(classes, folder / "train.tar"), len(IMAGES) + len(links)


def write_zip(folder: Path) -> tuple[Path, int]:
    return zip_of(_write_classes(folder), folder / "train.zip"), len(IMAGES)


def _write_media(folder: Path, column: str, good: list[bytes], bad: dict[str, bytes], suffix: str) -> tuple[Path, int]:
    names = []
    for number, content in enumerate(good):
        names.append(f"{number}.{suffix}")
        (folder / names[-1]).write_bytes(content)
    for name, content in bad.items():
        names.append(name)
        (folder / name).write_bytes(content)
    for name, make in SPECIAL.items():
        names.append(f"{name}.{suffix}")
        make(folder / names[-1])
    names.append("long" * 100)
    lines = [json.dumps({column: name, "label": "ab"[number % 2]}) for number, name in enumerate(names)]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "train.jsonl", len(names) - len(good)


def write_images(folder: Path) -> tuple[Path, int]:
    good = [picture(noise(20, 24, 3, seed=number)) for number in range(len(GOOD))]
    return _write_media(folder, "image", good, IMAGES, "png")


def write_audio(folder: Path) -> tuple[Path, int]:
    good = [recording(tone(0.5, 8000, frequency=200.0 * (number + 1)), 8000) for number in range(len(GOOD))]
    return _write_media(folder, "audio", good, AUDIO, "wav")


TABLES = {
    "csv": write_csv, "jsonl": write_jsonl, "json": write_json, "parquet": write_parquet, "xlsx": write_xlsx,
    "arrow": write_arrow, "hdf5": write_hdf5, "tar": write_tar, "zip": write_zip,
    "images": write_images, "audio": write_audio,
}  # fmt: skip
CONFIGURATION = {**dict.fromkeys(("images", "tar", "zip"), "smoke_image"), "audio": "smoke_audio"}
SMALL_TEXT = [each for each in SMALL if not each.startswith("data.")]


def command(file: Path, run: Path, kind: str, policy: str) -> list[str | Path]:
    small = SMALL_TEXT if kind not in CONFIGURATION else []
    labels = [] if kind in CONFIGURATION else ['task.labels=["negative", "positive"]']
    config = ROOT / "recipes" / "configs" / "reviews" / f"{CONFIGURATION.get(kind, 'smoke')}.yaml"
    settings = ["data.validation_file=null", "data.validation_split=0.25", "train.max_steps=1"]
    settings += ["data.max_bad_rows=1"] if policy == "skip" else []
    settings += ["data.encoding=utf-8"] if kind == "csv" else []  # else another encoding is suggested for so few rows
    reading = [f"data.train_file={file}", f"data.bad_rows={policy}", f"output_dir={run}"]
    return [ROOT / "recipes" / "reviews.py", "--config", config, *small, *labels, *settings, *reading]


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_bad_row_is_named_or_left_out(server: ForkServer, faults: Faults, tmp_path, kind):
    folder = tmp_path / "files"
    folder.mkdir()
    file, bad = TABLES[kind](folder)
    faults.count("bad inputs", bad)
    refused = server.run(command(file, tmp_path / "error", kind, "error"), hooks=QUICK)
    assert faults.problems(refused, kind, [2]) == []
    assert f"{bad} of {len(GOOD) + bad} rows cannot be used:" in refused.output
    ended = server.run(command(file, tmp_path / "skip", kind, "skip"), hooks=QUICK)
    assert faults.problems(ended, kind, [0]) == []
    rows = read_lines(tmp_path / "skip" / "bad_rows.jsonl")
    assert len(rows) == bad, [(row["row"], row["reason"]) for row in rows]
    assert all(row["reason"] for row in rows)
    facts = json.loads((tmp_path / "skip" / "run.json").read_text())
    assert sum(facts["num_rows"].values()) == len(GOOD)
