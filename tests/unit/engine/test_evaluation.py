"""Evaluation: every prediction belongs to the row that was asked for."""

from __future__ import annotations

import pytest
from runs import SGD, train

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
