"""Segments and selective recomputation give the same gradients with less memory; compression an error that is known."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import transformers
from random_runs import RANDOM
from runs import assert_same_weights, assert_splits_agree, lines, train
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from toolkit.base.errors import ConfigError, RunError
from toolkit.config.sections import TrainConfig
from toolkit.distributed.placement import stacks_of
from toolkit.engine.callbacks.peak import Ledger
from toolkit.models.activations import KINDS, spare_activations
from toolkit.models.fast_dropout import recomputing, use_fast_dropout
from toolkit.models.segments import segment_layers

IDS = torch.arange(24).reshape(2, 12) % 40 + 3
SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
CASES = {
    "bert": ("BertForSequenceClassification", {**SMALL, "num_hidden_layers": 5}, {"input_ids": IDS}),
    "modernbert": (  # local and global attention: layers have different masks
        "ModernBertForSequenceClassification",
        {**SMALL, "num_hidden_layers": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
         "sep_token_id": 2, "local_attention": 4, "global_attn_every_n_layers": 2, "mlp_dropout": 0.1},
        {"input_ids": IDS},
    ),
    "gpt2": (
        "GPT2LMHeadModel", {"vocab_size": 50, "n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 16,
         "bos_token_id": 1, "eos_token_id": 2},
        {"input_ids": IDS, "use_cache": False},
    ),
    "t5": (  # the first layer's position bias goes through all others
        "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 5, "num_heads": 2, "dropout_rate": 0.1},
        {"input_ids": IDS, "decoder_input_ids": IDS[:, :7], "use_cache": False},
    ),
    "vit": (
        "ViTForImageClassification",
        {"image_size": 16, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2,
         "intermediate_size": 24, "hidden_dropout_prob": 0.1},
        {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 256).reshape(2, 3, 16, 16)},
    ),
}  # fmt: skip


def build(case: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    name, sizes, inputs = CASES[case]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    return kind(kind.config_class(**sizes)).train(), inputs


def gradients(case: str, setting: str, fast_dropout: bool = False, **more: str) -> tuple[list[torch.Tensor], int]:
    """Returns the gradients of a pass with dropout, and the bytes that it kept for the backward pass."""
    model, inputs = build(case)
    if fast_dropout:
        use_fast_dropout(model)
    train_config = TrainConfig(activation_checkpointing=setting, **more)
    spare_activations(model, train_config, recomputing if fast_dropout else None)
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    torch.manual_seed(1)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(**inputs).logits.square().sum()
    state = torch.get_rng_state()
    loss.backward()
    assert torch.equal(state, torch.get_rng_state())  # the backward pass draws nothing
    return [p.grad for p in model.parameters() if p.grad is not None], sum(kept.values())


@pytest.mark.fast(3)
@pytest.mark.parametrize("fast", [False, True], ids=["torch", "fast_dropout"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_with_dropout_are_bit_identical(case, fast):
    expected, _ = gradients(case, "none", fast)
    for setting in ("full", "segments", "segments_1", "segments_9", "nested_segments", "selective"):
        found, _ = gradients(case, setting, fast)
        assert len(found) == len(expected)
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True)), setting


def test_a_cache_of_keys_is_left_out():
    CASES["cached"] = (*CASES["gpt2"][:2], {"input_ids": IDS})  # attention to a cache rounds differently
    try:
        (one, _), (other, _) = gradients("cached", "none"), gradients("cached", "segments")
    finally:
        del CASES["cached"]
    assert all(torch.allclose(left, right, rtol=1e-4, atol=1e-5) for left, right in zip(one, other, strict=True))


def test_segments_keep_fewer_inputs_and_selective_keeps_more():
    CASES["deep"] = (CASES["bert"][0], {**SMALL, "num_hidden_layers": 16}, {"input_ids": IDS})
    try:
        kept = {name: gradients("deep", name)[1] for name in ("none", "selective", "full", "segments")}
    finally:
        del CASES["deep"]
    assert kept["segments"] < kept["full"] < kept["none"]
    # 12 inputs of 2 x 12 x 16 floats fewer: 4 segments instead of 16 layers.
    assert kept["full"] - kept["segments"] == 12 * 2 * 12 * 16 * 4


def held(setting: str, layers: int) -> float:
    """Returns the bytes of the tensors of a training pass, in inputs of a layer, and its weights."""
    sizes = {**SMALL, "hidden_size": 64, "num_key_value_heads": 2, "num_hidden_layers": layers}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).train()
    spare_activations(model, TrainConfig(activation_checkpointing=setting))
    ledger = Ledger()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    own = sum(ledger.see(tensor) for parameter in model.parameters() for tensor in (parameter, parameter.grad))
    with ledger:
        model(input_ids=torch.arange(256).view(1, 256) % 50, use_cache=False).logits.square().sum().backward()
    return (ledger.peak - own) / (256 * 64 * 4)


@pytest.mark.slow
def test_nested_segments_hold_one_more_input_for_twice_the_layers():
    nested = [held("nested_segments", layers) for layers in (8, 16, 32)]
    assert [after - before for before, after in itertools.pairwise(nested)] == pytest.approx([1, 1], abs=0.2)
    assert held("segments", 32) > nested[-1] + 10


def test_stacks_are_the_lists_of_layers():
    assert [len(stack) for stack in stacks_of(build("t5")[0])] == [5, 5]
    assert [len(stack) for stack in stacks_of(build("bert")[0])] == [5]


def test_a_pass_that_fails_leaves_nothing_behind():
    model, inputs = build("bert")
    expected, _ = gradients("bert", "none")
    spare_activations(model, TrainConfig(activation_checkpointing="segments"))
    third = model.bert.encoder.layer[3].output.dense
    forward = third.forward
    third.forward = lambda *a: (_ for _ in ()).throw(MemoryError)
    with pytest.raises(MemoryError):
        model(**inputs)
    third.forward = forward
    torch.manual_seed(1)
    model(**inputs).logits.square().sum().backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    model.eval()
    with torch.no_grad():
        assert model(**inputs).logits.shape == (2, 2)


def test_layers_that_do_not_pass_on_their_results_are_rejected():
    layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    segment_layers(layers, 1)
    with pytest.raises(RunError, match="layers of type Linear do not pass their results on to each other"):
        layers[1](layers[0](torch.ones(2, 3)) * 2)
    layers[1](layers[0](torch.ones(2, 3))).sum().backward()
    assert layers[0].weight.grad is not None


def test_models_that_skip_layers_are_rejected():
    config = transformers.Wav2Vec2Config(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, layerdrop=0.1,
                                         intermediate_size=16, num_conv_pos_embeddings=4,
                                         num_conv_pos_embedding_groups=2)  # fmt: skip
    model = transformers.AutoModelForAudioClassification.from_config(config)
    with pytest.raises(ConfigError, match=r"skips layers at random \(model\.config_overrides\.layerdrop\)"):
        spare_activations(model, TrainConfig(activation_checkpointing="segments"))
    with pytest.raises(ConfigError, match=r"convolutions over time, .*set it to bf16"):
        spare_activations(model, TrainConfig(activation_compression="int8"))


@pytest.mark.slow
def test_both_engines_and_unpadded_rows_train_the_same(tmp_path):
    few = ("train.max_steps=3", "checkpoint.save_steps=null")
    train("reviews", tmp_path / "none", *RANDOM["reviews"], *few)
    train("reviews", tmp_path / "segments", *RANDOM["reviews"], *few, "train.activation_checkpointing=segments")
    train("reviews", tmp_path / "selective", *RANDOM["reviews"], *few, "engine=trainer",
          "train.activation_checkpointing=selective")  # fmt: skip
    train("reviews", tmp_path / "nested", *RANDOM["reviews"], *few, "engine=trainer",
          "train.activation_checkpointing=nested_segments")  # fmt: skip
    for name in ("segments", "selective", "nested"):
        assert_same_weights(tmp_path / "none", tmp_path / name)
        assert lines(tmp_path / "none") == lines(tmp_path / name)


@pytest.mark.parametrize(("kind", "most"), [("bf16", 2**-8), ("int8", 0.5 / 127)])
def test_what_is_stored_is_near_and_does_not_depend_on_other_rows(kind, most):
    store, restore = KINDS[kind]
    values = torch.randn(6, 5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 10
    values[0, 0] = 0
    found = restore(store(values), values.dtype)
    limits = values.abs() if kind == "bf16" else values.abs().amax(-1, keepdim=True)
    assert ((found - values).abs() <= limits * most * (1 + 1e-9)).all()
    assert torch.equal(found[2:4], restore(store(values[2:4]), values.dtype))
    longer = restore(store(nn.functional.pad(values, (0, 9))), values.dtype)  # as attention to padding
    assert torch.equal(longer[..., :40], found)
    mask = torch.tensor([[0.0, -math.inf, 0.0], [torch.finfo(torch.float32).min, 0.0, 0.0]])
    masked = restore(store(mask), mask.dtype)
    assert torch.equal(masked == 0, mask == 0)
    assert masked.min() < -1e38
    assert not masked.isnan().any()
    assert sum(part.nbytes for part in store(values)) < (0.26 if kind == "bf16" else 0.16) * values.nbytes


@pytest.mark.parametrize(("kind", "most"), [("bf16", 0.02), ("int8", 0.1)])
def test_compression_keeps_less_and_nearly_the_gradient(kind, most):
    (expected, kept), (found, fewer) = (gradients("bert", "none", activation_compression=k) for k in ("none", kind))
    assert fewer < 0.75 * kept
    off = math.sqrt(sum(float((one - other).square().sum()) for one, other in zip(expected, found, strict=True)))
    error = off / math.sqrt(sum(float(one.square().sum()) for one in expected))
    assert 0 < error < most


@pytest.mark.slow
def test_a_run_measures_the_error_and_is_the_same_for_every_split(tmp_path, capsys):
    few = ("train.max_steps=2", "train.activation_compression=int8", "train.optim=sgd", "data.max_train_samples=16",
           "eval.eval_steps=null", "checkpoint.save_steps=null")  # fmt: skip
    assert_splits_agree("reviews", tmp_path, *few)
    assert "activations are stored in int8: the gradient of a row differs" in capsys.readouterr().out
    result = train("reviews", tmp_path / "trainer", *few, "engine=trainer", "checkpoint.save_steps=1")
    error = result.further["activation_compression_error"]
    assert 0 < error < 0.2
    resumed = train("reviews", tmp_path / "trainer", *few, "train.max_steps=3", "checkpoint.resume=auto")
    assert resumed.further["activation_compression_error"] == error
