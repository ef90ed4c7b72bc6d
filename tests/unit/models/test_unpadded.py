"""Models without padding compute what padded ones do."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from unpadded_families import (
    CAUSAL,
    CLASSIFIER,
    IN_FLOAT32,
    LENGTHS,
    MASKED,
    TRANSLATOR,
    batch,
    build,
    copies,
    difference,
    gradients,
    recompute,
)

from toolkit.config.sections import Config, ModelConfig, ParallelConfig, TrainConfig
from toolkit.models.unpadded import attention, families
from toolkit.models.unpadded.attention import choose
from toolkit.models.unpadded.families import Exact, Islands, NothingToGain, Refused, coverage
from toolkit.models.unpadded.layers import install, stacks
from toolkit.models.unpadded.packing import Packing, Rows

pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")  # WavLM's own
FEW = [
    ("bert", CLASSIFIER), ("llama", CAUSAL), ("mistral", CAUSAL), ("t5", TRANSLATOR), ("bart", TRANSLATOR),
    ("wav2vec2", "AudioClassification"), ("albert", CLASSIFIER), ("modernbert", CLASSIFIER),
    ("deberta-v2", CLASSIFIER), ("mpnet", CLASSIFIER), ("wavlm", "AudioClassification"),
]  # fmt: skip
"""One family for each way in which layers are handled."""


@pytest.fixture(params=["split", "together"])
def kernel(request, monkeypatch):
    monkeypatch.setattr(attention, "LONGEST_TOGETHER", 0 if request.param == "split" else 64)
    return request.param


def assert_same(padded, unpadded, inputs, flat=True, tolerance=1e-12):
    found = difference(padded, unpadded, inputs)
    assert found.flat == flat
    assert found.output <= tolerance
    assert found.gradient <= tolerance


@pytest.mark.fast(6)
@pytest.mark.parametrize(("kind", "head"), FEW)
def test_outputs_and_gradients_are_those_of_the_padded_model(kind, head, kernel):
    assert kind not in IN_FLOAT32
    assert_same(*copies(kind, head), batch(head))


@pytest.mark.fast(4)
@pytest.mark.parametrize(("kind", "head"), FEW)
def test_recomputed_layers_find_the_packing_again(kind, head):
    padded, unpadded = copies(kind, head)
    if not unpadded.supports_gradient_checkpointing:
        pytest.skip(f"{kind} cannot recompute activations")
    recompute(unpadded)
    assert_same(padded, unpadded, batch(head))


@pytest.mark.parametrize(("kind", "head"), [("bert", CLASSIFIER), ("deberta-v2", CLASSIFIER), ("t5", TRANSLATOR)])
def test_two_passes_may_be_in_flight(kind, head):
    padded, unpadded = copies(kind, head)
    recompute(unpadded)
    inputs = batch(head), batch(head, (4, 9, 2), (6, 1, 5))
    for model in (padded, unpadded):
        losses = [model(**each).logits.pow(2)[:, :1].sum() for each in inputs]
        for loss in losses:
            loss.backward()
    for (name, wanted), (_, found) in zip(padded.named_parameters(), unpadded.named_parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.fast(5)
@pytest.mark.parametrize("padded_sides", ["both", "source", "target", "neither"])
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_either_side_of_a_translation_may_have_no_padding(kind, padded_sides, kernel):
    lengths = (9, 4, 1) if padded_sides in ("both", "source") else (9, 9, 9)
    targets = (3, 7, 5) if padded_sides in ("both", "target") else (7, 7, 7)
    assert_same(*copies(kind, TRANSLATOR), batch(TRANSLATOR, lengths, targets), flat=padded_sides != "neither")


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_decoder_without_a_mask_attends_to_all_before(kind):
    inputs = batch(TRANSLATOR, (9, 4, 1), (7, 7, 7))
    masked = dict(inputs)
    del inputs["decoder_attention_mask"]
    padded, unpadded = copies(kind, TRANSLATOR)
    torch.testing.assert_close(unpadded(**inputs).logits, padded(**masked).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "head"), [("bert", MASKED), ("llama", CAUSAL), ("deberta-v2", MASKED)])
@pytest.mark.parametrize("change", ["left", "hole", "empty row", "one row"])
def test_masks_of_any_form(kind, head, change):
    inputs = batch(head, (6, 3, 5))
    mask = inputs["attention_mask"]
    if change == "left":
        mask = mask.flip(1)
        inputs["position_ids"] = torch.arange(6).expand(3, 6)
    elif change == "hole":
        mask[0, 2] = 0
    elif change == "one row":
        inputs = {name: value[1:2] for name, value in inputs.items()}
        mask = inputs["attention_mask"]
    else:
        mask[1] = 0
    inputs["attention_mask"] = mask
    if head == CAUSAL and change != "one row":
        inputs["position_ids"] = torch.arange(6).expand(3, 6)
    padded, unpadded = copies(kind, head)
    rows = slice(None) if change != "empty row" else [0, 2]
    results = [model.eval()(**inputs).logits[rows] for model in (padded, unpadded)]
    if results[0].dim() == 3:
        kept = inputs["attention_mask"][rows].bool()
        results = [result[kept] for result in results]
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "head"), FEW)
def test_evaluation_runs_without_padding_too(kind, head):
    padded, unpadded = (model.eval() for model in copies(kind, head))
    inputs = batch(head)
    with torch.no_grad():
        assert_close_on_tokens(padded(**inputs).logits, unpadded(**inputs).logits, inputs)


def assert_close_on_tokens(wanted, found, inputs):
    if wanted.dim() == 3:
        kept = inputs.get("decoder_attention_mask", inputs["attention_mask"]).bool()
        wanted, found = wanted[kept], found[kept]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("kind", "head"), [("t5", TRANSLATOR), ("bart", TRANSLATOR), ("llama", CAUSAL)])
def test_generation_with_a_cache_stays_as_it_is(kind, head, beams):
    inputs = {name: value for name, value in batch(head).items() if not name.startswith("decoder")}
    if head == CAUSAL:
        inputs = {name: value.flip(1) for name, value in inputs.items()}
    settings = {"max_new_tokens": 6, "num_beams": beams, "do_sample": False, "min_new_tokens": 6}
    texts = [model.eval().generate(**inputs, decoder_start_token_id=2, **settings) for model in copies(kind, head)]
    assert texts[0].tolist() == texts[1].tolist()


@pytest.mark.parametrize(("kind", "head"), [("bert", CLASSIFIER), ("t5", TRANSLATOR), ("deberta-v2", CLASSIFIER)])
def test_adapters(kind, head):
    from peft import LoraConfig, get_peft_model

    targets = {"bert": ["query", "dense"], "t5": ["q", "wo"], "deberta-v2": ["query_proj", "dense"]}[kind]
    models = copies(kind, head)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        adapted = [
            get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False)).double().train()
            for model in models
        ]
    adapted[1].load_state_dict(adapted[0].state_dict())
    assert_same(*adapted, batch(head))


def test_a_copy_of_a_model_runs_without_padding_by_itself():
    padded, unpadded = copies("llama", CAUSAL)
    second = copy.deepcopy(unpadded)
    with torch.no_grad():
        for weight in unpadded.parameters():
            weight.zero_()
    assert_same(padded, second, batch(CAUSAL))


def test_layers_without_hooks_run_padded():
    """A model that is built from the configuration of one without padding has the attention, but no hooks."""
    padded, unpadded = copies("bert", CLASSIFIER)
    bare = type(unpadded)(unpadded.config).double().train()
    bare.load_state_dict(padded.state_dict())
    assert_same(padded, bare, batch(CLASSIFIER), flat=False)


def test_states_of_layers_are_rejected():
    _, unpadded = copies("bert", CLASSIFIER)
    with pytest.raises(ValueError, match="output_hidden_states: the layers of a model without padding"):
        unpadded(**batch(CLASSIFIER), output_hidden_states=True)


@pytest.mark.parametrize(("kind", "head"), [("bert", CLASSIFIER), ("t5", TRANSLATOR), ("bart", TRANSLATOR)])
def test_dropout_of_attention_is_never_left_out(kind, head, kernel, monkeypatch):
    rate = {"bert": "attention_probs_dropout_prob", "t5": "dropout_rate", "bart": "attention_dropout"}[kind]
    _, unpadded = copies(kind, head, **{rate: 0.25})
    rates, name = [], "scaled_dot_product_attention"
    kept = getattr(nn.functional, name)
    monkeypatch.setattr(nn.functional, name, lambda *a, **named: rates.append(named["dropout_p"]) or kept(*a, **named))
    unpadded(**batch(head))
    assert rates
    assert set(rates) == {0.25}
    rates.clear()
    unpadded.eval()(**batch(head))
    assert set(rates) == {0.0}


@pytest.mark.fast(2)
@pytest.mark.parametrize("lengths", [LENGTHS, (8, 8, 8), (20,)])
@pytest.mark.parametrize(("kind", "head"), [each for each in FEW if each[1] != TRANSLATOR][:6])
def test_tokens_are_filled_up_to_a_multiple(kind, head, lengths, kernel):
    padded, unpadded = build(kind, head), build(kind, head)
    install(unpadded, multiple=50)
    seen = set()
    next(stacks(unpadded))[-1].register_forward_pre_hook(lambda _, given: seen.add(given[0].shape[:2]))
    assert_same(padded, unpadded, batch(head, lengths))
    assert all(rows == 1 and tokens % 50 == 0 for rows, tokens in seen)


def test_a_batch_is_never_as_long_as_its_tokens_are_filled_up():
    rows = Rows.of((torch.arange(64) >= 4)[None], multiple=32)
    assert rows.total == 96
    assert torch.equal(
        rows.put(rows.take(torch.arange(64.0)[None])), torch.arange(64.0)[None] * (torch.arange(64) >= 4)
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("bias", [None, "bias"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_of_short_sequences_is_computed_in_float32(causal, bias, dtype, kernel):
    """The result is that of float32, rounded, whatever autocast says."""
    rows = Rows.of(torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool())
    packing = Packing(rows, rows, causal, None, {})
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 5, 8).to(dtype) for _ in range(3))
    bias = torch.randn(1, 2, 4, 4) if bias else None
    exact = attention.attend(nn.Module(), query.float(), key.float(), value.float(), packing, position_bias=bias)[0]
    with torch.autocast("cpu", dtype):
        found = attention.attend(nn.Module(), query, key, value, packing, position_bias=bias)[0]
    assert found.dtype == dtype
    assert torch.equal(found, exact.to(dtype))


@pytest.mark.parametrize("longest", [0, 256])
@pytest.mark.parametrize(("kind", "head"), [("qwen3", CAUSAL), ("t5", TRANSLATOR), ("bert", CLASSIFIER)])
def test_models_in_mixed_precision(kind, head, longest, monkeypatch):
    monkeypatch.setattr(attention, "LONGEST_IN_FLOAT32", longest)
    padded, unpadded = (model.float() for model in copies(kind, head))
    inputs = batch(head)
    with torch.autocast("cpu", torch.bfloat16):
        (wanted, expected), (found, got) = gradients(padded, inputs), gradients(unpadded, inputs)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)
    total = [torch.stack([grad.norm() for grad in grads.values()]).norm() for grads in (expected, got)]
    torch.testing.assert_close(*total, rtol=0.05, atol=0)


def test_longer_sequences_keep_their_type(monkeypatch):
    monkeypatch.setattr(attention, "LONGEST_IN_FLOAT32", 2)
    types, name = [], "scaled_dot_product_attention"
    kept = getattr(nn.functional, name)
    monkeypatch.setattr(nn.functional, name, lambda q, *a, **named: types.append(q.dtype) or kept(q, *a, **named))
    rows = Rows.of(torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool())
    heads = torch.randn(1, 2, 5, 8, dtype=torch.bfloat16)
    attention.attend(nn.Module(), heads, heads, heads, Packing(rows, rows, False, None, {}))
    assert set(types) == {torch.bfloat16}


@pytest.mark.parametrize(
    ("device", "dtype", "dropout", "plain", "longest", "size", "expected"),
    [
        ("cpu", torch.float32, 0.1, True, 64, 64, "together"), ("cpu", torch.float32, 0.1, True, 65, 64, "split"),
        ("cuda", torch.bfloat16, 0.1, True, 20, 64, "flash"), ("cuda", torch.float16, 0.0, True, 999, 8, "flash"),
        ("cuda", torch.float32, 0.0, True, 20, 4, "efficient"), ("cuda", torch.float32, 0.1, True, 20, 4, "split"),
        ("cuda", torch.bfloat16, 0.0, True, 20, 4, "split"), ("cuda", torch.float64, 0.0, True, 20, 64, "split"),
        ("cuda", torch.bfloat16, 0.0, False, 20, 64, "split"),
    ],
)  # fmt: skip
def test_which_kernel_computes_attention(device, dtype, dropout, plain, longest, size, expected, monkeypatch):
    monkeypatch.setattr(attention, "has_kernel", lambda device, kernel: True)
    assert choose(torch.device(device), dtype, dropout, plain, longest, size) == expected
    monkeypatch.setattr(attention, "has_kernel", lambda device, kernel: False)
    without = expected if device == "cpu" else "split"
    assert choose(torch.device(device), dtype, dropout, plain, longest, size) == without


def test_this_torch_has_the_kernels_of_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.backends.cuda.is_flash_attention_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 0))
    has_kernel = attention.has_kernel.__wrapped__
    assert all(has_kernel(torch.device("cuda"), kernel) for kernel in ("flash", "efficient"))
    assert not has_kernel(torch.device("cpu"), "efficient")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 5))
    assert [has_kernel(torch.device("cuda"), kernel) for kernel in ("flash", "efficient")] == [False, True]


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_kernels_for_any_lengths_get_every_sequence(causal, kernel, monkeypatch):
    """A stand-in computes what these operations of torch do, which run on GPUs only."""

    def in_parts(query, key, value, ends, key_ends, longest, longest_key, dropout, is_causal, scale):
        assert ends.dtype == key_ends.dtype == torch.int32
        assert (longest, longest_key) == (int(ends.diff().max()), int(key_ends.diff().max()))
        assert (is_causal, dropout) == (causal, 0.25)
        parts = []
        for start, end, first, last in zip(ends[:-1], ends[1:], key_ends[:-1], key_ends[1:], strict=True):
            heads = [x.transpose(0, 1) for x in (query[start:end], key[first:last], value[first:last])]
            part = nn.functional.scaled_dot_product_attention(*heads, is_causal=causal, scale=scale)
            parts.append(part.transpose(0, 1))
        return torch.cat(parts)

    def flash(query, key, value, ends, key_ends, longest, longest_key, dropout, is_causal, debug, *, scale):
        assert not debug
        return in_parts(query, key, value, ends, key_ends, longest, longest_key, dropout, is_causal, scale), None

    def efficient(query, key, value, bias, ends, key_ends, longest, longest_key, dropout, mask, logs, *, scale):
        assert (bias, logs) == (None, True)
        flat = (x[0] for x in (query, key, value))
        return in_parts(*flat, ends, key_ends, longest, longest_key, dropout, mask == 1, scale)[None], None

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash)
    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", efficient)
    rows = Rows.of(torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]).bool())
    packing = Packing(rows, rows, causal, None, {})
    query, key, value = (torch.randn(1, heads, 9, 8) for heads in (4, 2, 2))
    expected = attention.attend(nn.Module(), query, key, value, packing, scaling=0.3)[0]
    monkeypatch.setattr(attention, "choose", lambda *_: kernel)
    found = attention.attend(nn.Module(), query, key, value, packing, 0.25, scaling=0.3)[0]
    torch.testing.assert_close(found, expected)


def test_which_models_are_covered():
    def of(kind, attn=None, head=CLASSIFIER, **settings):
        return coverage(build(kind, head, **settings).config, attn)

    assert of("bert") == Exact()
    assert of("deberta-v2") == Islands()
    assert coverage(build("bert", CLASSIFIER).config, "eager") == Refused(
        "its attention is eager, and only sdpa is computed sequence by sequence"
    )
    assert isinstance(of("deberta-v2", conv_kernel_size=3), Refused)
    assert isinstance(of("wav2vec2", head="AudioClassification", layerdrop=0.1), Refused)
    assert isinstance(of("wav2vec2", head="AudioClassification", use_weighted_layer_sum=True), Refused)
    from transformers import BloomConfig, FalconH1Config, ViTConfig, XLNetConfig

    assert coverage(ViTConfig()) == NothingToGain()
    assert coverage(BloomConfig()) == Refused("its position biases are part of its mask")
    assert coverage(XLNetConfig()) == Refused("its attention does not use transformers' interface")
    compared = "models of type falcon_h1 have not been compared with and without padding"
    assert coverage(FalconH1Config()) == Refused(compared)

    assert isinstance(of("mixtral", head=CAUSAL, output_router_logits=True), Refused)
    assert isinstance(of("wav2vec2", head="AudioClassification", feat_extract_norm="group"), Refused)


@pytest.mark.parametrize(
    ("kind", "head", "settings", "precision", "has_kernel", "expected"),
    [
        ("bert", CLASSIFIER, {}, "bf16", True, True),
        ("bert", CLASSIFIER, {}, "bf16", False, False),
        ("bert", CLASSIFIER, {}, "no", True, True),
        ("bert", CLASSIFIER, {"attention_probs_dropout_prob": 0.1}, "fp16", True, True),
        ("bert", CLASSIFIER, {"attention_probs_dropout_prob": 0.1}, "no", True, False),
        ("t5", TRANSLATOR, {}, "bf16", True, False),
        ("mistral", CAUSAL, {"sliding_window": 4}, "bf16", True, False),
        ("mistral", CAUSAL, {"sliding_window": None}, "bf16", True, True),
        ("deberta-v2", CLASSIFIER, {}, "bf16", True, False),
    ],
)
def test_what_auto_becomes_on_a_gpu(kind, head, settings, precision, has_kernel, expected, monkeypatch):
    monkeypatch.setattr(attention, "has_kernel", lambda device, kernel: has_kernel)
    unused: Any = None
    cfg = Config(
        output_dir="unused", task=unused, data=unused, eval=unused, checkpoint=unused, tracking=unused, trainer=unused,
        model=ModelConfig(), parallel=ParallelConfig(), train=TrainConfig(mixed_precision=precision),
    )  # fmt: skip
    config = build(
        kind,
        head,
        **{"hidden_size": 32, "num_attention_heads": 2, "d_model": 32, "d_kv": 16, "head_dim": 16, **settings},
    ).config
    assert families.choose(cfg, config, torch.device("cuda")) is expected


def test_a_model_is_installed_on_the_attention_of_its_parts():
    model = build("t5", TRANSLATOR)
    install(model)
    assert {module.config._attn_implementation for module in (model.encoder, model.decoder)} == {"unpadded_sdpa"}
    assert gradients(model, batch(TRANSLATOR))[0].isfinite().all()


@pytest.mark.parametrize(
    ("kind", "head", "lengths", "flat"),
    [
        ("bert", CLASSIFIER, (20, 18, 20), False),
        ("bert", CLASSIFIER, (20, 12, 18), True),
        ("bert", CLASSIFIER, (100, 92, 94), False),  # where rows are computed one by one, this pays earlier
        ("bert", CLASSIFIER, (100, 80, 88), True),
        ("t5", TRANSLATOR, (20, 19, 20), True),  # whose sides must agree
    ],
)
def test_a_batch_with_little_padding_is_computed_with_it_where_that_is_faster(kind, head, lengths, flat):
    padded, unpadded = build(kind, head, max_position_embeddings=128), build(kind, head, max_position_embeddings=128)
    unpadded.load_state_dict(padded.state_dict())
    install(unpadded, always=False)
    assert_same(padded, unpadded, batch(head, lengths, lengths), flat=flat)
