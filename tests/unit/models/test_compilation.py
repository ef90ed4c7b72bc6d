"""Compiled training: equal results up to rounding, with the same parameter names."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from runs import assert_close, assert_same_weights, lines, train, weights
from tolerances import float32_tolerance
from torch import nn
from torch._dynamo.utils import counters
from unpadded_families import CAUSAL, CLASSIFIER, LENGTHS, TARGETS, TRANSLATOR, batch, build, gradients

from toolkit.config.sections import TrainConfig
from toolkit.models.build import compile_training
from toolkit.models.unpadded.layers import install, stacks

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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # read by torch, of the states
@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("kind", "head", "multiple"),
    [
        ("bert", CLASSIFIER, 16), ("llama", CAUSAL, 16), ("albert", CLASSIFIER, 16), ("llama", CAUSAL, None),
        ("bart", TRANSLATOR, None), ("t5", TRANSLATOR, None),
    ],
)  # fmt: skip
def test_layers_without_padding_are_compiled_for_all_numbers_of_tokens(kind, head, multiple):
    padded, unpadded = build(kind, head), build(kind, head)
    install(unpadded, compiled=True, multiple=multiple)
    settings = TrainConfig(torch_compile=True, torch_compile_backend="aot_eager")
    compile_training(unpadded, settings, chain.from_iterable(stacks(unpadded)))
    counters.clear()
    graphs, tokens = [], set()
    unpadded.base_model.register_forward_hook(lambda *_: graphs.append(counters["stats"]["unique_graphs"]))
    next(stacks(unpadded))[0].register_forward_pre_hook(lambda _, given: tokens.add(given[0].shape[1]))
    for step in range(4):
        inputs = batch(
            head, *(tuple(1 + (size * (step + 3) + 5 * step) % 20 for size in each) for each in (LENGTHS, TARGETS))
        )
        (wanted, expected), (found, got) = gradients(padded, inputs), gradients(unpadded, inputs)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
    assert graphs[0] > 0
    assert graphs[1] == graphs[-1], "the second size made shapes dynamic"
    assert len(tokens) >= 2
    assert multiple is None or all(number % multiple == 0 for number in tokens)
    unpadded.eval()(**inputs)
