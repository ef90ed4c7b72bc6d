"""Evaluation: every prediction belongs to the row that was asked for."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from runs import SGD, train
from torch.utils._python_dispatch import TorchDispatchMode

import toolkit
from toolkit.data.batching import batches


def test_predictions_of_other_rows_are_rejected(tmp_path, monkeypatch):
    collate = batches.collate

    def turned(features, task, processor, random, *further, **named):
        batch = collate(features, task, processor, random, *further, **named)
        if not random.training:
            batch["row_ids"] = batch["row_ids"].flip(0)
        return batch

    monkeypatch.setattr(batches, "collate", turned)
    with pytest.raises(AssertionError, match="were asked for, and the loader returned the rows"):
        train("reviews", tmp_path / "run", *SGD, "train.max_steps=1", "eval.eval_steps=1", "checkpoint.save_steps=null")


def test_weights_are_cast_once_for_all_batches(tmp_path, fresh_precision):
    train("reviews", tmp_path / "run", *SGD, "train.max_steps=1", "train.mixed_precision=bf16",
          "eval.per_device_eval_batch_size=4")  # fmt: skip
    run = toolkit.load(tmp_path / "run")
    weights, casts = {parameter.data_ptr() for parameter in run.model.parameters()}, Counter()

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default and args[0].data_ptr() in weights:
                casts[args[0].data_ptr()] += 1
            return result

    with Casts():
        assert len(run.predict([{"text": f"number {number}"} for number in range(12)])) == 12
    assert len(casts) > 5
    assert set(casts.values()) == {1}
