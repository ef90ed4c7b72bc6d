"""Commands on runs with images and audio, and on hub datasets of both."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pillow_heif
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from audio_files import compressed, tone
from audio_files import encoded as recording
from commands import run_command
from exports import assert_equal_answers, code_lines, exported, script_answers, write_rows
from image_files import encoded as picture
from image_files import noise
from runs import ROOT, assert_close, lines, predictions, train
from tolerances import float32_tolerance

from toolkit.base.errors import DataError


def photo(folder: Path) -> None:
    pillow_heif.from_pillow(noise(40, 40).convert("RGB")).save(folder / "photo.heic")


def call(folder: Path) -> None:
    (folder / "call.m4a").write_bytes(compressed(tone(1.5)))


PHONE = {"image": ("photo.heic", photo), "audio": ("call.m4a", call)}
"""Files as phones write them, which Pillow and soundfile alone do not read."""
FEW = ("train.max_steps=1", "data.max_eval_samples=9")


@pytest.mark.slow
@pytest.mark.parametrize(("modality", "folder"), [("image", "images"), ("audio", "audio")])
def test_a_run_is_explained_used_and_scored(modality, folder, tmp_path, capsys):
    config = ROOT / f"recipes/configs/reviews/smoke_{modality}.yaml"
    for command in ("validate", "explain"):
        assert run_command(command, ROOT / "recipes/reviews.py", "--config", config, "seed=7") == 0
    assert f"task.{modality}." in capsys.readouterr().out
    train(f"reviews/smoke_{modality}", tmp_path / "run", "train.max_steps=1", "data.max_eval_samples=null")
    data = ROOT / "recipes/data" / folder / "validation"
    assert run_command("predict", tmp_path / "run", "--input", data, "--output", tmp_path / "new.jsonl") == 0
    new = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    shared = (modality, "prediction", "scores")
    own, again = (
        [{name: row[name] for name in shared} for row in rows] for rows in (predictions(tmp_path / "run"), new)
    )
    assert_close(own, again, float32_tolerance())
    files = [*sorted(str(path) for path in data.rglob("*.*"))[::9], str(tmp_path / PHONE[modality][0])]
    PHONE[modality][1](tmp_path)
    listed = write_rows(tmp_path / "files.csv", [{modality: path} for path in files])
    folder = exported(tmp_path / "run", tmp_path)
    assert code_lines(folder) <= {"image": 49, "audio": 72}[modality]
    assert_equal_answers(tmp_path / "run", folder, listed, float32_tolerance())
    assert {"image": "pillow-heif", "audio": "av"}[modality] in (folder / "requirements.txt").read_text().split()
    (tmp_path / "broken").write_text("neither")
    answers = script_answers(folder, f"--{modality}", files[0], tmp_path / "broken", tmp_path / "nowhere")
    assert [bool(answer["prediction"]) for answer in answers] == [True, False, False]
    assert [bool(answer["error"]) for answer in answers] == [False, True, True]
    scored = ("--data", data, "--per-device-eval-batch-size", "5", "--output", tmp_path / "scores.json")
    assert run_command("evaluate", tmp_path / "run", *scored) == 0
    expected = {name: value for name, value in lines(tmp_path / "run", "eval_loss")[-1].items() if "eval_" in name}
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert_close({name: scores[name] for name in expected}, expected, float32_tolerance())


def test_a_folder_of_pictures_laid_out_like_a_hub_s(tmp_path):
    for split in ("train", "validation"):
        for label in ("cat", "dog"):
            (tmp_path / "set" / split / label).mkdir(parents=True)
            for number in range(4):
                content = picture(noise(20, 20, seed=number))
                (tmp_path / "set" / split / label / f"{split} ä {number}.png").write_bytes(content)
    files = (f"data.dataset_name={tmp_path / 'set'}", "data.train_file=null", "data.validation_file=null")
    train("reviews/smoke_image", tmp_path / "run", *files, *FEW)
    assert [row["label"] for row in predictions(tmp_path / "run")] == ["cat"] * 4 + ["dog"] * 4


@pytest.mark.fast(1)
@pytest.mark.parametrize("where", ["data.dataset_name={folder}", "data.train_file={folder}/train.parquet"])
def test_recordings_inside_a_table_need_no_decoder_of_datasets(where, tmp_path):
    (tmp_path / "set").mkdir()
    rows = [
        {"audio": {"bytes": recording(tone(0.5, frequency=200.0 + i)), "path": f"{i}.wav"}, "label": i % 2}
        for i in range(16)
    ]
    kinds = datasets.Features(audio=datasets.Audio(), label=datasets.ClassLabel(names=["cat", "dog"]))
    table = pa.Table.from_pylist(rows).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": kinds.to_dict()}})}
    )
    pq.write_table(table, tmp_path / "set" / "train.parquet")
    empty = ("data.train_file=null",) if "dataset_name" in where else ()
    train("reviews/smoke_audio", tmp_path / "run", *empty, where.format(folder=tmp_path / "set"), *FEW,
          "data.validation_file=null", "data.validation_split=0.25")  # fmt: skip
    assert sorted(row["label"] for row in predictions(tmp_path / "run")) == ["cat", "cat", "dog", "dog"]


def test_why_a_data_set_cannot_be_loaded_is_said(tmp_path, monkeypatch):
    def load(*arguments, **settings):
        raise datasets.exceptions.DatasetGenerationError("An error occurred") from ImportError("install 'torchcodec'")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataError, match="The error was: install 'torchcodec'"):
        train("reviews/smoke_audio", tmp_path / "run", "data.dataset_name=some/set", "data.train_file=null",
              "data.validation_file=null")  # fmt: skip
