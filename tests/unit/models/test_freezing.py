"""Freezing and gradual unfreezing: trained parameters, and agreement of engines, resumed runs and processes."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from adapter_models import ARCHITECTURES, FEW
from random_runs import RANDOM
from runs import assert_same_weights, lines, train, weights
from safetensors.torch import load_file
from stopping import train_in_legs

from toolkit.base.errors import ConfigError
from toolkit.config.sections import ModelConfig
from toolkit.models.parts import freeze, frozen_parameters

DECAY = ("train.weight_decay=0.1", "train.learning_rate=1.0e-2")
"""Would move a parameter that the optimizer looks at, whatever its gradient."""
GRADUAL = ("model.freeze=backbone", "model.unfreeze.step_3=[bert.encoder.layer.1.*]",
           "model.unfreeze.epoch_1=['bert.encoder.*']")  # fmt: skip

SAVE_ALL = ("checkpoint.save_steps=1", "checkpoint.save_total_limit=null")


def tensors(output_dir, step):
    return load_file(output_dir / "checkpoints" / f"step-{step}" / "model.safetensors")


def moved(one, other) -> set[str]:
    return {name for name in one if not torch.equal(one[name], other[name])}


def test_what_is_frozen_stays_and_all_else_moves(tmp_path, capsys):
    every = (*FEW, *DECAY, *SAVE_ALL, "train.max_steps=3")
    train("reviews", tmp_path / "run", *every, "model.freeze=backbone")
    changed = moved(tensors(tmp_path / "run", 1), weights(tmp_path / "run"))
    assert changed == {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"}
    figures = json.loads((tmp_path / "run" / "run.json").read_text())["result"]
    assert f"training {figures['trainable_parameters']:,} of" in capsys.readouterr().out
    assert figures["trainable_parameters"] == 32 * 32 + 32 + 32 * 2 + 2
    assert 0 < figures["trainable_fraction"] < 0.1


def test_a_frozen_run_begins_like_any_other(tmp_path):
    """Checks that frozen parameters, and so all initial weights, equal those of a run that trains all."""
    for name, freezing in (("all", ()), ("head", ("model.freeze=backbone",))):
        train("reviews", tmp_path / name, *FEW, *freezing, "train.max_steps=1", "train.max_grad_norm=0")
    first = [lines(tmp_path / name, "loss") for name in ("all", "head")]
    assert first[0][0]["loss"] == first[1][0]["loss"]


@pytest.mark.parametrize("optim", ["adamw_torch_fused", pytest.param("sgd", marks=pytest.mark.slow)])
def test_gradual_unfreezing_moves_nothing_before_its_time(optim, tmp_path, monkeypatch):
    momentum = ("train.optim_args.momentum=0.9",) if optim == "sgd" else ()
    settings = (*RANDOM["reviews"], *DECAY, *GRADUAL, f"train.optim={optim}", *momentum, *SAVE_ALL)
    train("reviews", tmp_path / "loop", *settings, "train.max_steps=9")
    head = {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"}
    second = {name for name in weights(tmp_path / "loop") if name.startswith("bert.encoder.layer.1.")}
    encoder = {name for name in weights(tmp_path / "loop") if name.startswith("bert.encoder.")}
    expected = [head] * 2 + [head | second] * 4 + [head | encoder] * 2  # seven steps are an epoch
    for step, names in enumerate(expected, start=1):
        assert moved(tensors(tmp_path / "loop", step), tensors(tmp_path / "loop", step + 1)) == names, step
    train("reviews", tmp_path / "trainer", *settings, "train.max_steps=9", "engine=trainer")
    assert_same_weights(tmp_path / "loop", tmp_path / "trainer")
    assert lines(tmp_path / "loop") == lines(tmp_path / "trainer")
    # Right before, and right after, something is unfrozen.
    legs = ((3, "loop"), (4, "trainer"), (9, "loop"), (None, "trainer"))
    train_in_legs(monkeypatch, tmp_path / "parts", *settings, "train.max_steps=9", legs=legs)
    assert_same_weights(tmp_path / "loop", tmp_path / "parts")
    assert lines(tmp_path / "loop") == lines(tmp_path / "parts")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("model.freeze=[bert.encodr.*]",), r"'bert.encodr.\*' matches no parameter.*bert\.enc"),
        (("model.freeze=['*']",), "no parameter would be trained; exclude the head"),
        (("model.freeze=['*']", "model.unfreeze.step_1=['*']"), r"no parameter would be trained before model.unfreeze"),
        (("model.freeze=feature_extractor",), "BertForSequenceClassification has none that transformers can"),
        (("model.freeze=backbone", "model.unfreeze.step_1=[classifier.*]"), r"unfreeze.step_1: .* that is frozen"),
        (("model.freeze=backbone", "model.unfreeze.epoch_1=[bert.*]"), r"the run would end before these parameters"),
    ],
)
def test_what_cannot_be_frozen_is_rejected(settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train("reviews", tmp_path / "run", *FEW, "train.gradient_accumulation_steps=2", *settings)


def built(kind: str) -> transformers.PreTrainedModel:
    auto, sizes, *_ = ARCHITECTURES[kind]
    auto_class = getattr(transformers, f"AutoModelFor{auto}")
    return auto_class.from_config(transformers.AutoConfig.for_model(kind, **sizes))


@pytest.mark.parametrize("kind", ["vit", "wav2vec2", "whisper", "distilbert", "llama"])
def test_all_but_the_head_is_the_backbone(kind):
    model, head = built(kind), tuple(f"{name}." for name in ARCHITECTURES[kind][2])
    freeze(model, ModelConfig(freeze="backbone"))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith(head)}


def test_a_language_model_whose_head_is_its_embedding_has_nothing_else_to_train():
    with pytest.raises(ConfigError, match="no parameter would be trained"):
        freeze(built("gpt2"), ModelConfig(freeze="backbone"))


def test_the_convolutions_that_hear_are_the_feature_extractor():
    model = built("wav2vec2")
    settings = ModelConfig(freeze=["feature_extractor", "wav2vec2.encoder.layer_norm.*"])
    expected = {
        name
        for name, _ in model.named_parameters()
        if name.startswith(("wav2vec2.feature_extractor.", "wav2vec2.encoder.layer_norm."))
    }
    assert len(expected) > 3
    for _ in range(2):  # the second time they are frozen already
        assert frozen_parameters(model, settings) == expected
        freeze(model, settings)
        assert {name for name, parameter in model.named_parameters() if not parameter.requires_grad} == expected
