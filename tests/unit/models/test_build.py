"""Building a model that is split: with its weights on the main process, and without them on the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification, BertConfig

from toolkit.api.mesh import Mesh
from toolkit.config.sections import ModelConfig
from toolkit.distributed.placement import layout
from toolkit.models import build

SIZES = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
CONFIG = BertConfig(**SIZES)
HEAD = "AutoModelForSequenceClassification"
CFG: Any = SimpleNamespace(model=ModelConfig(from_config={"model_type": "bert", **SIZES}), offline_dir=None, seed=1)


def built(monkeypatch: pytest.MonkeyPatch, expected: Any, main: bool = False) -> Any:
    """Returns the model of one process, which the main process has told its model's layout."""
    monkeypatch.setattr(build, "on_main", lambda *arguments: (expected, None))
    accelerator: Any = SimpleNamespace(num_processes=1, process_index=int(not main), is_main_process=main)
    return build.build_for(Mesh(fsdp=2), accelerator, CFG, CONFIG, HEAD)


def same_layout() -> Any:
    return layout(AutoModelForSequenceClassification.from_config(CONFIG))


def on_meta(model: Any) -> set[bool]:
    return {parameter.is_meta for parameter in model.parameters()}


@pytest.mark.parametrize("main", [True, False])
def test_only_the_main_process_has_the_weights(monkeypatch: pytest.MonkeyPatch, main: bool) -> None:
    model = built(monkeypatch, same_layout(), main)
    assert on_meta(model) == {not main}
    assert layout(model) == same_layout()


def test_a_model_that_differs_from_that_of_the_main_process_is_built_completely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert on_meta(built(monkeypatch, [("classifier.weight", (3, 8), None, 0)])) == {False}


def test_a_model_that_needs_values_is_built_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    original = AutoModelForSequenceClassification.from_config

    def reading(*arguments: Any, **options: Any) -> Any:
        model = original(*arguments, **options)
        model.classifier.bias.sum().item()  # fails on the meta device
        return model

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_config", reading)
    assert on_meta(built(monkeypatch, same_layout())) == {False}
