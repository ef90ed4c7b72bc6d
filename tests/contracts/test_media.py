"""Runs on images and audio do not depend on what is kept, who loads it, the engine, or where they were interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import fork
from runs import assert_same_weights, lines, predictions, train
from stopping import StoppedError, stopper

from toolkit.modalities import audio, image

SUPPORT = Path(__file__).resolve().parents[1] / "support"
RUN = ("data.max_train_samples=20", "data.max_eval_samples=7", "train.per_device_train_batch_size=4",
       "train.gradient_accumulation_steps=1", "train.num_train_epochs=3", "train.max_steps=-1", "eval.eval_steps=epoch",
       "checkpoint.save_steps=4", "tracking.logging_steps=1")  # fmt: skip
NONE = ("train.dataloader_num_workers=0", "data.media_cache=0")
CASES = {
    "image": ("reviews/smoke_image", image, ("task.image.random_crop=1", "task.image.horizontal_flip=0",
                                             "task.image.color_jitter=0", "task.image.random_erasing=0")),
    "varied image": ("reviews/smoke_image", image, ("task.image.random_crop=0.5", "task.image.horizontal_flip=0.5",
                                                    "task.image.color_jitter=0.2", "task.image.random_erasing=0.5")),
    "audio": ("reviews/smoke_audio", audio, ("task.audio.crop=center", "task.audio.speed=0")),
    "varied audio": ("reviews/smoke_audio", audio, ("task.audio.crop=random", "task.audio.speed=0.2")),
}  # fmt: skip
WAYS = {
    "kept": ("train.dataloader_num_workers=0",),
    "kept by workers": ("train.dataloader_num_workers=2", "engine=trainer"),
    "kept by persistent workers": ("train.dataloader_num_workers=1", "train.dataloader_persistent_workers=true"),
    "little room": ("train.dataloader_num_workers=0", "data.media_cache=40KiB"),
}


def assert_same_run(one: Path, other: Path) -> None:
    assert_same_weights(one, other)
    assert lines(one) == lines(other)
    assert predictions(one) == predictions(other)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_nothing_depends_on_what_is_kept_or_who_loads_it(case, tmp_path, monkeypatch):
    config, _, settings = CASES[case]
    train(config, tmp_path / "plain", *RUN, *settings, *NONE)
    for name, way in WAYS.items():
        train(config, tmp_path / name, *RUN, *settings, *way)
        assert_same_run(tmp_path / "plain", tmp_path / name)
    stop_before = stopper(monkeypatch)
    stop_before(7)
    with pytest.raises(StoppedError):
        train(config, tmp_path / "resumed", *RUN, *settings, *NONE)
    stop_before(None)
    train(config, tmp_path / "resumed", *RUN, *settings, "checkpoint.resume=auto")
    assert_same_weights(tmp_path / "plain", tmp_path / "resumed")
    assert predictions(tmp_path / "plain") == predictions(tmp_path / "resumed")


@pytest.mark.parametrize(("case", "times"), [("image", 20 + 7), ("varied image", 20 + 7), ("audio", 20 + 7)])
def test_each_file_is_decoded_once(case, times, tmp_path, monkeypatch):
    config, modality, settings = CASES[case]
    read, rows = modality.decoded, []

    def counted(row, *arguments):
        rows.append(row["file"]["name"])
        return read(row, *arguments)

    monkeypatch.setattr(modality, "decoded", counted)
    train(config, tmp_path / "run", *RUN, *settings, "train.dataloader_num_workers=0")
    assert len(rows) == len(set(rows)) == times


def test_what_auto_became_is_in_run_json(tmp_path):
    train("reviews/smoke_image", tmp_path / "image", "train.max_steps=1")
    train("reviews", tmp_path / "text", "train.max_steps=1")
    image_run, text_run = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("image", "text"))
    assert image_run["resolved"]["train.dataloader_num_workers"] in (0, 1)
    assert text_run["resolved"]["train.dataloader_num_workers"] == 0


@pytest.mark.slow
def test_processes_of_a_machine_share_what_they_keep(tmp_path):
    fork([SUPPORT / "kept_runs.py", tmp_path], 2)
    assert json.loads((tmp_path / "seen-0.json").read_text()) == json.loads((tmp_path / "seen-1.json").read_text()) == {
        "train": [1, 2, 3], "validation": [4, None], "left": []
    }  # fmt: skip
