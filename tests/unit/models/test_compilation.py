"""Compiled training: equal results up to rounding, with the same parameter names."""

from __future__ import annotations

import pytest
import torch
from runs import assert_close, assert_same_weights, lines, train, weights
from tolerances import float32_tolerance
from torch import nn
from torch._dynamo.utils import counters

from toolkit.config.sections import TrainConfig
from toolkit.models.build import compile_training

RUN = ("train.optim=sgd", "data.max_train_samples=16", "data.max_eval_samples=8",
       "train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=1", "train.max_steps=3",
       "checkpoint.save_steps=null", "model.from_config.num_hidden_layers=1",
       "model.config_overrides.hidden_dropout_prob=0.1",
       "train.unpadded=false", "train.fast_dropout=false")  # fmt: skip
"""With what compiled runs do not have, dropout would draw other numbers."""
COMPILED = ("train.torch_compile=true", "train.torch_compile_backend=aot_eager")
TOLERANCE = float32_tolerance(steps=3)


@pytest.fixture(autouse=True)
def _forget():
    yield
    torch.compiler.reset()


@pytest.mark.slow
def test_both_engines_end_as_they_would_without(tmp_path, capsys):
    train("reviews", tmp_path / "plain", *RUN)
    counters.clear()
    train("reviews", tmp_path / "loop", *RUN, *COMPILED)
    assert counters["stats"]["unique_graphs"] >= 1
    assert "warning: train.torch_compile: compilation takes minutes" in capsys.readouterr().out
    torch.compiler.reset()
    train("reviews", tmp_path / "trainer", *RUN, *COMPILED, "engine=trainer")
    assert_same_weights(tmp_path / "loop", tmp_path / "trainer")
    assert_close(lines(tmp_path / "plain"), lines(tmp_path / "loop"), TOLERANCE)
    one, other = weights(tmp_path / "plain"), weights(tmp_path / "loop")
    assert_close({k: v.tolist() for k, v in one.items()}, {k: v.tolist() for k, v in other.items()}, TOLERANCE)


def test_only_training_passes_are_compiled():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, inputs):
            return self.layer(inputs).relu()

    model = Model()
    names = list(model.state_dict())
    compile_training(model, TrainConfig(torch_compile=True, torch_compile_backend=backend))
    model.eval()(torch.ones(2, 3))
    assert compiled == []
    model.train()(torch.ones(2, 3))
    assert len(compiled) == 1
    assert list(model.state_dict()) == names
