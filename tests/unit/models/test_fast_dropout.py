"""Dropout with 16-bit random numbers: the same distribution as PyTorch's, exact gradients, everywhere in a model."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from runs import lines, train, weights
from stopping import DROPOUT, StoppedError, stopper
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from toolkit.base.errors import CheckpointError
from toolkit.config.sections import TrainConfig
from toolkit.models.activations import spare_activations
from toolkit.models.fast_dropout import FastDropout, attention, dropout, is_chosen, kept, recomputing, use_fast_dropout

MANY = 1 << 22
SIGMAS = 4.5
"""Deviations beyond this many standard deviations happen once in 150,000 fair draws; the seeds are fixed."""


def is_fair(count: float, trials: int, probability: float) -> bool:
    deviation = math.sqrt(trials * probability * (1 - probability))
    return abs(count - trials * probability) < SIGMAS * deviation


@pytest.mark.parametrize("steps", [1, 6554, 32768, 65535])
def test_each_element_is_dropped_at_the_rate(steps):
    torch.manual_seed(steps)
    dropped = 1 - kept(torch.empty(MANY), steps).long()
    assert is_fair(int(dropped.sum()), MANY, steps / 65536)
    for lane in dropped.view(-1, 4).T:  # the four parts of one 64-bit number
        assert is_fair(int(lane.sum()), MANY // 4, steps / 65536)


def test_elements_are_dropped_independently():
    torch.manual_seed(1)
    rate = 6554 / 65536
    first, second = (1 - kept(torch.empty(MANY), 6554).long() for _ in range(2))
    assert is_fair(int((first * second).sum()), MANY, rate**2)
    for lag in (1, 2, 3, 4, 5, 8, 384):
        assert is_fair(int((first[lag:] * first[:-lag]).sum()), MANY - lag, rate**2)
    runs = first.view(-1, 4).sum(1)  # all numbers of dropped elements among the parts of one number
    for count in range(5):
        chance = math.comb(4, count) * rate**count * (1 - rate) ** (4 - count)
        assert is_fair(int((runs == count).sum()), MANY // 4, chance)


@pytest.mark.parametrize("shape", [(3,), (1, 7), (0, 4), (), (5, 2, 3)])
def test_any_shape_is_dropped(shape):
    torch.manual_seed(0)
    given = torch.ones(shape, dtype=torch.float64)
    result = dropout(given, 0.5)
    assert result.shape == given.shape
    assert set(result.flatten().tolist()) <= {0.0, 2.0}


def test_what_is_kept_is_scaled_by_the_rounded_rate_exactly():
    torch.manual_seed(0)
    given = torch.randn(1000, dtype=torch.float64)
    result = dropout(given, 0.1)
    torch.testing.assert_close(result[result != 0], given[result != 0] * 65536 / (65536 - 6554), rtol=1e-15, atol=0)


@pytest.mark.parametrize(("rate", "training", "expected"), [(0.0, True, 1.0), (1.0, True, 0.0), (0.1, False, 1.0)])
def test_what_is_not_random_is_exact(rate, training, expected):
    assert torch.equal(dropout(torch.ones(8), rate, training), torch.full((8,), expected))


def test_rates_out_of_range_are_rejected_as_by_pytorch():
    for rate in (-0.1, 1.1):
        with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
            dropout(torch.ones(2), rate)


def masks() -> dict[str, torch.Tensor | None]:
    """Returns masks of scores `[2, 3, 4, 5]`; in the first two, a query sees no key."""
    seen = torch.rand(2, 1, 4, 5, generator=torch.Generator().manual_seed(3)) > 0.4
    seen[1, 0, 2] = False
    infinite = torch.zeros(2, 1, 4, 5, dtype=torch.float64).masked_fill(~seen, -math.inf)
    bias = torch.randn(1, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return {"boolean": seen, "infinite": infinite, "padding": seen[:, :, :1], "bias": bias, "none": None}


def vectors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 2)]
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("name", "is_causal"), [*((name, False) for name in masks()), ("none", True)])
def test_attention_is_the_formula_with_the_mask_that_was_drawn(name, is_causal):
    mask = masks()[name]
    query, key, value = vectors()
    torch.manual_seed(1)
    found = attention(query, key, value, attn_mask=mask, dropout_p=0.25, is_causal=is_causal, scale=0.7)
    torch.manual_seed(1)
    drawn = kept(torch.empty(2, 3, 4, 5), 16384).double() / 0.75
    identity = torch.eye(5, dtype=torch.float64).expand(2, 3, 5, 5)
    probabilities = functional.scaled_dot_product_attention(query, key, identity, mask, 0.0, is_causal, scale=0.7)
    torch.testing.assert_close(found, (probabilities * drawn) @ value, rtol=1e-13, atol=1e-13)
    assert found.isfinite().all()


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", masks())
def test_gradients_of_attention(name):
    mask = masks()[name]
    inputs = [*vectors(), *([mask.requires_grad_()] if name == "bias" else [])]

    def attend(*tensors):
        torch.manual_seed(2)
        bias = tensors[3] if name == "bias" else mask
        return attention(*tensors[:3], attn_mask=bias, dropout_p=0.3)

    assert torch.autograd.gradcheck(attend, inputs)


def test_gradients_of_dropout_and_of_causal_attention():
    def drop(given):
        torch.manual_seed(3)
        return dropout(given, 0.4)

    def attend(*tensors):
        torch.manual_seed(3)
        return attention(*tensors, dropout_p=0.4, is_causal=True)

    assert torch.autograd.gradcheck(drop, torch.randn(3, 5, dtype=torch.float64, requires_grad=True))
    assert torch.autograd.gradcheck(attend, vectors())


def test_attention_has_the_mean_and_variance_of_pytorchs():
    torch.manual_seed(4)
    draws = 4000
    query, key, value = (torch.randn(1, 1, 6, 4, dtype=torch.float64).expand(draws, 2, 6, 4) for _ in range(3))
    ours = attention(query, key, value, dropout_p=0.3)
    theirs = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.3)
    plain = functional.scaled_dot_product_attention(query, key, value)[0, 0]
    error = theirs.std((0, 1)) / math.sqrt(2 * draws)
    for found in (ours, theirs):
        assert ((found.mean((0, 1)) - plain).abs() < SIGMAS * error).all()
    torch.testing.assert_close(ours.var((0, 1)), theirs.var((0, 1)), rtol=0.1, atol=0)


def test_without_dropout_attention_is_pytorchs():
    query, key, value = vectors()
    mask = masks()["boolean"]
    expected = functional.scaled_dot_product_attention(query, key, value, mask)
    assert torch.equal(attention(query, key, value, attn_mask=mask), expected)


def test_grouped_heads_and_autocast():
    query, key = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4)
    with FastDropout():
        torch.manual_seed(0)
        grouped = functional.scaled_dot_product_attention(query, key, key, dropout_p=0.2, enable_gqa=True)
    torch.manual_seed(0)
    repeated = key.repeat_interleave(2, 1)
    assert torch.equal(grouped, attention(query, repeated, repeated, dropout_p=0.2))
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        half = attention(query, repeated, repeated, dropout_p=0.2)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), grouped, rtol=0.05, atol=0.05)


def model_of(head: str, kind: str, **fields) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **fields)
    auto_class = getattr(transformers, f"AutoModel{head}")
    return auto_class.from_config(config).train()


TEXT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": 20}  # fmt: skip
CODER = {"vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "attention_dropout": 0.1,
         "activation_dropout": 0.1, "max_position_embeddings": 20}  # fmt: skip
FAMILIES = {
    "bert": ("ForMaskedLM", TEXT),
    "deberta-v2": ("ForMaskedLM", {**TEXT, "relative_attention": True}),
    "gpt2": ("ForCausalLM", {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20}),
    "llama": ("ForCausalLM", {**TEXT, "num_key_value_heads": 1, "attention_dropout": 0.1}),
    "bart": ("ForSeq2SeqLM", CODER),
    "t5": ("ForSeq2SeqLM", {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}),
    "wav2vec2": ("ForAudioClassification", {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "conv_dim": [8],
        "conv_stride": [5], "conv_kernel": [10], "num_feat_extract_layers": 1, "num_conv_pos_embedding_groups": 2,
        "num_conv_pos_embeddings": 4, "classifier_proj_size": 4, "mask_time_prob": 0.0, "layerdrop": 0.0}),
    "vit": ("ForImageClassification", {**TEXT, "image_size": 8, "patch_size": 4, "hidden_dropout_prob": 0.1,
                                       "attention_probs_dropout_prob": 0.1}),
}  # fmt: skip


def inputs_of(kind: str) -> dict[str, torch.Tensor]:
    if kind == "wav2vec2":
        return {"input_values": torch.randn(2, 200)}
    if kind == "vit":
        return {"pixel_values": torch.randn(2, 3, 8, 8)}
    ids = torch.arange(24).reshape(2, 12) + 3
    mask = torch.ones_like(ids)
    mask[0, 8:] = 0
    decoder = {"decoder_input_ids": ids.flip(1)} if kind in ("bart", "t5") else {}
    return {"input_ids": ids, "attention_mask": mask, **decoder}


class Drawn(TorchDispatchMode):
    """Counts operations that draw random numbers."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in function.tags:
            self.names.append(function._opname)
        return function(*args, **(kwargs or {}))


def trained(model: nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    model(**inputs).logits.square().sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("kind", FAMILIES)
def test_all_dropout_of_a_model_is_drawn_fast(kind):
    head, fields = FAMILIES[kind]
    model, inputs = model_of(head, kind, **fields), inputs_of(kind)
    expected = copy.deepcopy(model).eval()(**inputs).logits
    with Drawn() as plainly:
        trained(model, inputs)
    use_fast_dropout(model)
    with Drawn() as fast:
        trained(model, inputs)
    # PyTorch's attention with dropout draws inside one operation, or in several.
    assert {*plainly.names} & {"bernoulli_", "_scaled_dot_product_attention_math", "native_dropout"}
    assert {*fast.names} <= {"random_", "rand"}  # one number for each layer that `layerdrop` might skip
    assert fast.names.count("random_") >= 2  # one for each layer, or more
    with Drawn() as evaluated:
        assert torch.equal(model.eval()(**inputs).logits, expected)
    assert not {*evaluated.names} & {"random_", "bernoulli_"}


@pytest.mark.fast(6)
@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_recomputed_activations_have_the_same_masks(kind, dtype):
    head, fields = FAMILIES[kind]
    model, inputs = model_of(head, kind, **fields), inputs_of(kind)
    recomputed = copy.deepcopy(model)
    for each in (model, recomputed):
        use_fast_dropout(each)
    spare_activations(recomputed, TrainConfig(activation_checkpointing="full"), recomputing)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        for one, other in zip(trained(model, inputs), trained(recomputed, inputs), strict=True):
            assert torch.equal(one, other)


def test_a_model_without_dropout_stays_as_it_is():
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = model_of("ForMaskedLM", "bert", **{**TEXT, **without})
    assert not use_fast_dropout(model)
    assert not model._forward_pre_hooks
    adapted = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    assert use_fast_dropout(adapted)
    model.config.classifier_dropout = None
    model.config.class_weights = {0: 1.5}  # by label
    assert not use_fast_dropout(model)
    model.config.attention_probs_dropout_prob = 0.1  # modules may read it in each pass
    assert use_fast_dropout(model)


def test_an_error_of_the_model_leaves_nothing_behind():
    model = model_of("ForMaskedLM", "bert", **TEXT)
    use_fast_dropout(model)
    with pytest.raises(ValueError, match="specify"):
        model()
    with Drawn() as drawn:
        functional.dropout(torch.ones(4), 0.5)
    assert "random_" not in drawn.names


def test_what_auto_becomes():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [is_chosen(TrainConfig(fast_dropout=value), cpu) for value in ("auto", True, False)] == [True, True, False]
    assert [is_chosen(TrainConfig(fast_dropout=value), gpu) for value in ("auto", True, False)] == [False, True, False]
    assert not is_chosen(TrainConfig(torch_compile=True), cpu)


@pytest.mark.slow
def test_a_run_names_it_and_rejects_to_resume_with_another(tmp_path, monkeypatch):
    train("reviews", tmp_path / "whole", *DROPOUT)
    stop_before = stopper(monkeypatch)
    stop_before(9)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "run", *DROPOUT)
    stop_before(None)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["resolved"]["train.fast_dropout"] is True
    off = ("train.fast_dropout=false", "checkpoint.resume=auto")
    with pytest.raises(CheckpointError, match=r"train\.fast_dropout: .* set train\.fast_dropout=true"):
        train("reviews", tmp_path / "run", *DROPOUT, *off)
    train("reviews", tmp_path / "run", *DROPOUT, "train.fast_dropout=true", "checkpoint.resume=auto")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    train("reviews", tmp_path / "plain", *DROPOUT, "train.fast_dropout=false")
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "plain")
    assert any(not torch.equal(one[name], other[name]) for name in one)
