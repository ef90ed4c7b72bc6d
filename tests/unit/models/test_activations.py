"""Recomputing or offloading activations leaves training bit-identical."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from random_runs import RANDOM
from runs import assert_same_weights, lines, train
from stopping import WINDOWS
from tolerances import float32_tolerance
from torch import nn

from toolkit.base.errors import ConfigError
from toolkit.config.sections import TrainConfig
from toolkit.distributed.placement import layers_of
from toolkit.models.activations import spare_activations

FEW = ("train.max_steps=3", "checkpoint.save_steps=null")
CHECKPOINTED = "train.activation_checkpointing=full"


def bert(**sizes):
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.for_model("bert", hidden_size=16, num_attention_heads=2, intermediate_size=24, vocab_size=50,
                                  max_position_embeddings=16, **{"num_hidden_layers": 5, **sizes})  # fmt: skip
    return AutoModelForSequenceClassification.from_config(config)


VIT = {"model_type": "vit", "num_channels": 3, "image_size": 32, "patch_size": 8, "hidden_size": 16,
       "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24,
       "hidden_dropout_prob": 0.1}  # fmt: skip
RUNS = {
    "reviews": RANDOM["reviews"],
    "translation": RANDOM["translation"],
    "reviews/smoke_image": (f"model.from_config={json.dumps(VIT)}", *WINDOWS),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("task", RUNS)
def test_training_stays_the_same_with_dropout(task, tmp_path):
    train(task, tmp_path / "kept", *RUNS[task], *FEW)
    train(task, tmp_path / "anew", *RUNS[task], *FEW, CHECKPOINTED)
    assert_same_weights(tmp_path / "kept", tmp_path / "anew")
    assert lines(tmp_path / "kept") == lines(tmp_path / "anew")


@pytest.mark.slow
def test_and_so_it_does_in_the_other_engine_and_with_some_layers(tmp_path):
    train("reviews", tmp_path / "kept", *RANDOM["reviews"], *FEW)
    train("reviews", tmp_path / "trainer", *RANDOM["reviews"], *FEW, CHECKPOINTED, "engine=trainer")
    train("reviews", tmp_path / "some", *RANDOM["reviews"], *FEW, "train.activation_checkpointing=every_2_layers")
    assert_same_weights(tmp_path / "kept", tmp_path / "trainer")
    assert_same_weights(tmp_path / "kept", tmp_path / "some")


def passes(model: nn.Module) -> list[int]:
    """Returns how often each layer runs in one forward and backward pass."""
    counts = []
    for number, layer in enumerate(layers_of(model)):
        counts.append(0)

        def count(module, arguments, number=number):
            counts[number] += 1

        layer.attention.register_forward_pre_hook(count)
    model.train()
    model(input_ids=torch.ones(2, 8, dtype=torch.long)).logits.sum().backward()
    return counts


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("none", [1, 1, 1, 1, 1]), ("full", [2, 2, 2, 2, 2]), ("every_2_layers", [2, 1, 2, 1, 2]),
     ("selective", [2, 2, 2, 2, 2]), ("segments", [2, 2, 2, 2, 2]), ("segments_1", [2, 2, 2, 2, 2]),
     ("every_3_layers", [2, 1, 1, 2, 1]), ("every_9_layers", [2, 1, 1, 1, 1])],
)  # fmt: skip
def test_which_layers_run_twice(setting, expected):
    model = bert()
    spare_activations(model, TrainConfig(activation_checkpointing=setting))
    assert passes(model) == expected


def test_older_libraries_are_asked_by_their_own_name():
    asked = []

    class Older:
        supports_gradient_checkpointing = True

        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs):
            asked.append(gradient_checkpointing_kwargs)

        def modules(self):
            return []

    spare_activations(Older(), TrainConfig(activation_checkpointing="full"))
    assert asked == [{"use_reentrant": False}]
    with pytest.raises(ConfigError, match="the layers of Older are checkpointed all or none; use full"):
        spare_activations(Older(), TrainConfig(activation_checkpointing="every_2_layers"))


def test_models_that_cannot_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"received 'full', but ConvNext\w+ cannot recompute activations"):
        train("reviews/smoke_image", tmp_path / "run", CHECKPOINTED)
    model = bert()
    layers_of(model)[0].extra = nn.BatchNorm1d(16)
    with pytest.raises(ConfigError, match="running statistics would count every micro-batch twice"):
        spare_activations(model, TrainConfig(activation_checkpointing="full"))


@pytest.mark.parametrize("setting", ["every_0_layers", "every_2", "some", "Full", "segments_0"])
def test_other_words_are_rejected(setting, tmp_path):
    with pytest.raises(ConfigError, match=r"train\.activation_checkpointing: received"):
        train("reviews", tmp_path / "run", f"train.activation_checkpointing={setting}")


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_offloaded_activations_give_the_same_gradient(checkpointing):
    torch.manual_seed(0)
    plain = bert()
    moved = copy.deepcopy(plain)
    spare_activations(moved, TrainConfig(activation_checkpointing=checkpointing, activation_offload=True))
    ids = torch.arange(16).reshape(2, 8)
    for model in (plain, moved):
        model.train()
        torch.manual_seed(1)
        model(input_ids=ids).logits.square().sum().backward()
    for (name, one), other in zip(plain.named_parameters(), moved.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name


def test_what_is_offloaded_is_no_parameter():
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    spare_activations(layer, TrainConfig(activation_offload=True))
    layer.train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    out = layer(torch.ones(3, 4, requires_grad=True))
    saved = out.grad_fn._saved_mat1, out.grad_fn._saved_mat2
    assert [tensor.untyped_storage().data_ptr() in weights for tensor in saved] == [False, True]
    layer.eval()
    with torch.no_grad():
        layer(torch.ones(3, 4))
    with pytest.raises(RuntimeError):
        layer(torch.ones(3, 5))
    layer(torch.ones(3, 4))  # an error in a pass has left nothing behind
    x = torch.ones(3, 4, requires_grad=True)
    assert (x * x).grad_fn._saved_self.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_attention_is_chosen_and_rejected(tmp_path):
    few = ("train.max_steps=2", "checkpoint.save_steps=null", "train.per_device_train_batch_size=4")
    for name in ("eager", "sdpa"):
        train("reviews", tmp_path / name, *few, f"model.attn_implementation={name}")
    one, other = (lines(tmp_path / name, "eval_loss")[0]["eval_loss"] for name in ("eager", "sdpa"))
    assert one == pytest.approx(other, rel=float32_tolerance(steps=2))
    settings = (
        "model.config_overrides={}",
        "model.from_config.model_type=deberta-v2",
        "model.attn_implementation=sdpa",
    )
    with pytest.raises(ConfigError, match=r"received 'sdpa', which DebertaV2\w+ does not support; use eager"):
        train("reviews", tmp_path / "no", *settings)


def test_the_attention_asked_for_is_the_models(monkeypatch, tmp_path):
    import toolkit.run

    built = []
    build = toolkit.models.build.build_model
    monkeypatch.setattr(toolkit.models.build, "build_model", lambda *a: built.append(build(*a)) or built[-1])
    train("reviews", tmp_path / "run", "train.max_steps=1", "model.attn_implementation=eager")
    assert built[0].config._attn_implementation == "eager"
