"""SpecAugment masks belong to a row and an epoch, and have the paper's distribution."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from runs import assert_splits_agree, lines, train
from transformers import Wav2Vec2Config, WhisperFeatureExtractor

from toolkit.api.random import RowRandom
from toolkit.base.errors import ConfigError
from toolkit.modalities.audio import check_model, masked, masked_rows
from toolkit.modalities.options import AudioOptions

CLIP = np.arange(1, 40 * 20 + 1, dtype=np.float64).reshape(40, 20)


def widths(options: AudioOptions, axis: int, clip: np.ndarray = CLIP) -> list[int]:
    """Returns how many rows or columns are masked as a whole, for 3000 seeds."""
    found = []
    for seed in range(3000):
        made = masked(clip, 0, 1, options, np.random.default_rng(seed))
        found.append(int((made == clip.mean()).all(axis=1 - axis).sum()))
    return found


def test_widths_and_places_are_uniform():
    found = widths(AudioOptions(time_masks=1, time_mask_width=0.1), 0)  # of 40: 0 to 4
    shares = np.bincount(found, minlength=5) / len(found)
    assert len(shares) == 5
    assert shares == pytest.approx([0.2] * 5, abs=0.04)
    found = widths(AudioOptions(frequency_masks=1, frequency_mask_width=0.5), 1)  # of 20: 0 to 10
    assert max(found) == 10
    assert np.mean(found) == pytest.approx(5.0, abs=0.3)


def test_masks_of_one_kind_do_not_move_the_other_and_the_clip_stays():
    time = AudioOptions(time_masks=2, time_mask_width=0.3)
    one = masked(CLIP, 0, 1, time, np.random.default_rng(5)) == CLIP.mean()
    both = masked(CLIP, 0, 1, replace(time, frequency_masks=1), np.random.default_rng(5)) == CLIP.mean()
    assert both[one].all()
    assert CLIP[0, 0] == 1.0
    again = masked(CLIP.T, 1, 0, time, np.random.default_rng(5)).T  # as Whisper's
    assert np.array_equal(again == CLIP.mean(), one)
    silent = masked(np.ones(4000), 0, None, time, np.random.default_rng(5))
    assert set(silent) == {0.0, 1.0}


def test_masks_are_the_same_for_every_split_and_change_training(tmp_path):
    few = ("train.max_steps=2", "train.optim=sgd", "data.max_train_samples=16", "data.max_eval_samples=4",
           "eval.eval_steps=null", "checkpoint.save_steps=null")  # fmt: skip
    masks = ("task.audio.time_masks=2", "task.audio.frequency_masks=1")
    assert_splits_agree("reviews/smoke_audio", tmp_path, *few, *masks)
    losses = {line["loss"] for line in lines(tmp_path / "8x1", "loss")}
    train("reviews/smoke_audio", tmp_path / "plain", *few, "train.per_device_train_batch_size=8",
          "train.gradient_accumulation_steps=1", double=True)  # fmt: skip
    assert losses.isdisjoint(line["loss"] for line in lines(tmp_path / "plain", "loss"))


def test_rows_are_masked_by_epoch_in_training_only():
    extractor = WhisperFeatureExtractor(feature_size=20)
    rows, options = [{"row_id": 3}, {"row_id": 4}], AudioOptions(time_masks=1, time_mask_width=1.0)
    clips = [np.ones((20, 40), dtype=np.float32) + np.arange(40, dtype=np.float32)] * 2
    first, other, evaluated = (
        masked_rows(clips, rows, extractor, options, RowRandom(1, epoch)) for epoch in (0, 1, -1)
    )
    again = masked_rows(clips[1:], rows[1:], extractor, options, RowRandom(1, 0))
    assert np.array_equal(first[1], again[0])
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], other[0])
    assert evaluated is clips
    assert (first[0] == first[0][:1]).all()  # all frequencies alike


def test_masks_without_effect_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"time_mask_width: .*task\.audio\.time_masks"):
        train("reviews/smoke_audio", tmp_path, "task.audio.time_mask_width=0.5")
    options = SimpleNamespace(audio=AudioOptions(frequency_masks=1))
    (problem,) = check_model(Wav2Vec2Config(), options)
    assert problem == "task.audio.frequency_masks: received 1, but a wav2vec2 takes waveforms; set it to 0"
