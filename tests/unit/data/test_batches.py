"""Persistent workers and prefetching do not change the results."""

from __future__ import annotations

import multiprocessing

import pytest
from runs import assert_same_weights, lines, train
from stopping import StoppedError, stopper

RUN = ("data.max_train_samples=24", "data.max_eval_samples=8", "train.per_device_train_batch_size=4",
       "train.gradient_accumulation_steps=1", "train.num_train_epochs=3", "checkpoint.save_steps=null",
       "tracking.logging_steps=1")  # fmt: skip
WORKERS = ("train.dataloader_num_workers=2", "train.dataloader_persistent_workers=true",
           "train.dataloader_prefetch_factor=3")  # fmt: skip


@pytest.mark.slow
def test_augmentation_follows_the_epoch_in_workers_that_persist(tmp_path):
    train("reviews/smoke_image", tmp_path / "none", *RUN)
    for engine in ("loop", "trainer"):
        train("reviews/smoke_image", tmp_path / engine, *RUN, *WORKERS, f"engine={engine}")
        assert_same_weights(tmp_path / "none", tmp_path / engine)
        assert lines(tmp_path / "none") == lines(tmp_path / engine)
        assert multiprocessing.active_children() == []


def test_none_is_left_behind_by_a_run_that_fails(tmp_path, monkeypatch):
    stopper(monkeypatch)(3)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "run", *RUN, *WORKERS)
    assert multiprocessing.active_children() == []
