"""A model that is not finite is never saved, and an evaluation whose loss is not finite ends the run."""

from __future__ import annotations

import pytest
import torch
from runs import train

from toolkit.base.errors import RunError
from toolkit.engine import training

DIVERGES = ("train.max_steps=1", "train.warmup_steps=0", "train.learning_rate=1.0e+38")


@pytest.mark.parametrize("engine", ["loop", "trainer"])
@pytest.mark.parametrize("save", ["1", "null"])
def test_an_update_to_infinity_is_not_saved(engine, save, tmp_path):
    with pytest.raises(RunError, match=r"step 1: .* not finite; nothing was saved|step 1: validation: the loss is nan"):
        train("reviews", tmp_path / "run", *DIVERGES, f"engine={engine}", f"checkpoint.save_steps={save}")
    left = {path.name for path in (tmp_path / "run").rglob("*.safetensors")}
    assert left == set()


def test_a_parameter_that_no_batch_uses_is_checked_too(tmp_path, monkeypatch):
    begin = training.Session.begin_window

    def spoil(self, batches):
        with torch.no_grad():
            self.bare_model.bert.embeddings.token_type_embeddings.weight[1] = float("nan")
        return begin(self, batches)

    monkeypatch.setattr(training.Session, "begin_window", spoil)
    with pytest.raises(
        RunError, match=r"step 2: bert.embeddings.token_type_embeddings.weight of the model is not finite"
    ):
        train("reviews", tmp_path / "run", "train.max_steps=4", "checkpoint.save_steps=2")
    assert not list((tmp_path / "run").glob("checkpoints/step-*"))


def test_predictions_that_are_not_finite_end_the_run(tmp_path):
    large = ("train.max_steps=1", "train.warmup_steps=0", "train.optim=sgd", "train.learning_rate=1.0e+30")
    with pytest.raises(RunError, match=r"step 1: validation: the loss is (nan|inf), so the model's predictions cannot"):
        train("reviews", tmp_path / "run", *large, "checkpoint.save_steps=null")
    assert not (tmp_path / "run" / "model").exists()
