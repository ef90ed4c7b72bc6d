"""Small models of every family that `train.unpadded` covers, and their comparison with the padded model."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LENGTHS = (20, 3, 1, 7, 11, 15)
TARGETS = (3, 12, 5, 1, 2, 9)
SAMPLES = (200, 30, 60, 110, 150, 90)
VOCAB, LABELS = 50, 3
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_key_value_heads": 2,
    "head_dim": 4, "d_model": 16, "n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 64, "encoder_layers": 3,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "d_kv": 4, "d_ff": 32, "num_layers": 3, "num_heads": 4, "decoder_start_token_id": 2,
    "embedding_size": 8, "dim": 16, "n_layers": 3, "n_heads": 4, "hidden_dim": 32, "ffn_dim": 32, "n_inner": 32,
    "word_embed_proj_dim": 16, "decoder_vocab_size": VOCAB, "local_attention": 6, "sliding_window": 5,
    "num_decoder_layers": 2, "layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    "mask_time_prob": 0.0, "conv_dim": [8], "conv_stride": [5], "conv_kernel": [10], "num_feat_extract_layers": 1,
    "num_conv_pos_embedding_groups": 2, "num_conv_pos_embeddings": 4, "classifier_proj_size": 4,
    "feat_extract_norm": "layer", "apply_spec_augment": False, "num_labels": LABELS, "position_buckets": 8,
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip
"""Sizes by the names that families give them; each takes those that it has."""
CLASSIFIER, CAUSAL, TRANSLATOR = "SequenceClassification", "CausalLM", "Seq2SeqLM"
MASKED, TAGGER, ANSWERER, SPEECH = "MaskedLM", "TokenClassification", "QuestionAnswering", "AudioClassification"
MIXTURES = ("ernie4_5_moe", "granitemoe", "granitemoeshared", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
HEADS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), (ANSWERER, CLASSIFIER, MASKED, TAGGER)),
    **dict.fromkeys(
        ("albert", "camembert", "data2vec-text", "distilbert", "ernie", "eurobert", "mobilebert", "modernbert",
         "mpnet", "nomic_bert", "roberta-prelayernorm", "xlm-roberta-xl", "deberta", "deberta-v2"),
        (MASKED, CLASSIFIER),
    ),
    **dict.fromkeys(
        ("bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart", "mt5", "pegasus", "plbart", "t5",
         "umt5"),
        (TRANSLATOR,),
    ),
    **dict.fromkeys(
        ("data2vec-audio", "hubert", "sew", "unispeech", "unispeech-sat", "wav2vec2", "wavlm"), (SPEECH,)
    ),
    **dict.fromkeys(
        ("apertus", "arcee", "bert-generation", "biogpt", "bitnet", "cohere", "cohere2", "cwm", "diffllama",
         "ernie4_5", "exaone4", "gemma", "gemma3_text", "glm", "glm4", "gpt-sw3", "gpt_bigcode", "gpt_neox", "granite",
         "helium", "hunyuan_v1_dense", "jais2", "ministral", "olmo", "olmo2", "olmo3", "opt", "persimmon", "phi",
         "phi3", "seed_oss", "smollm3", "stablelm", "starcoder2"),
        (CAUSAL,),
    ),
    **dict.fromkeys(("gpt2", "llama", "mistral", "qwen2", "qwen3"), (CAUSAL, CLASSIFIER)),
    **dict.fromkeys(MIXTURES, (CAUSAL,)),
    "esm": (MASKED,),
}  # fmt: skip
"""Heads that are compared, by model type."""
SETTINGS: dict[str, dict[str, Any]] = {
    "bert-generation": {"is_decoder": True},
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "modernbert": {"classifier_pooling": "mean"},
    "mistral": {"layer_types": None},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1},
    "gpt_neox": {"rotary_pct": 1.0},
    "phi": {"partial_rotary_factor": 1.0},
    **{kind: {"experts_implementation": "eager"} for kind in MIXTURES},  # the default has no float64
}
"""Settings of a family beside its sizes."""
IN_FLOAT32 = ("cohere", "cohere2", "gemma", "gemma3_text", "helium")
"""Families that compute parts of a layer in float32 whatever the type of the model."""


@dataclass(frozen=True)
class Difference:
    """What differs between a model with and without padding, relative to the padded one."""

    output: float
    gradient: float
    flat: bool
    """Whether a linear layer of the second model saw tokens only."""
    shared: bool
    """Whether one saw fewer rows than the batch has."""


def build(kind: str, head: str, **settings: Any) -> nn.Module:
    """Returns a small model in float64 and training mode, without dropout."""
    import transformers

    base = transformers.AutoConfig.for_model(kind)
    fields = {**base.to_dict(), **dict.fromkeys(base.attribute_map)}
    values = {name: value for name, value in SIZES.items() if name in fields}
    values |= {name: 0.0 for name in fields if ("dropout" in name or "pdrop" in name) and _is_rate(base, name)}
    config = transformers.AutoConfig.for_model(kind, **{**values, **SETTINGS.get(kind, {}), **settings})
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{head}").from_config(config, dtype=torch.float64)
    model.double().train()
    return model


def _is_rate(config: Any, name: str) -> bool:
    return isinstance(getattr(config, name), float)


def batch(head: str, lengths: tuple[int, ...] = LENGTHS, targets: tuple[int, ...] = TARGETS) -> dict[str, Tensor]:
    """Returns the inputs of a model, padded on the right."""
    draw = torch.Generator().manual_seed(0)
    if head == SPEECH:
        mask = held(SAMPLES)
        return {"input_values": torch.randn(mask.shape, generator=draw).double() * mask, "attention_mask": mask}
    mask = held(lengths)
    ids = torch.randint(5, VOCAB, mask.shape, generator=draw)
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    if head == TRANSLATOR:
        mask = held(targets)
        ids = torch.randint(5, VOCAB, mask.shape, generator=draw)
        inputs |= {"decoder_input_ids": ids * mask, "decoder_attention_mask": mask}
    return inputs


def held(lengths: tuple[int, ...]) -> Tensor:
    """Returns the mask `[B, T]` of rows of these lengths."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def scores(outputs: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Returns the logits of a model, 0 on padding."""
    if "start_logits" in outputs:
        logits = torch.stack([outputs.start_logits, outputs.end_logits], -1)
    else:
        logits = outputs.logits
    return (
        logits
        if logits.dim() == 2
        else logits * inputs.get("decoder_attention_mask", inputs["attention_mask"])[..., None]
    )


def gradients(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns a model's logits and the gradient of a random sum of them."""
    logits = scores(model(**inputs), inputs)
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).to(logits.dtype)
    model.zero_grad()
    (logits * weights).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), grads


def difference(padded: nn.Module, unpadded: nn.Module, inputs: dict[str, Tensor]) -> Difference:
    """Compares two models; NaN counts as a difference."""
    from toolkit.models.unpadded.layers import stacks

    shapes: set[tuple[int, ...]] = set()
    hooks = [
        module.register_forward_hook(lambda _, arguments, output: shapes.add(tuple(arguments[0].shape[:2])))
        for stack in stacks(unpadded)
        for module in stack[-1].modules()
        if type(module).__name__ in ("Linear", "Conv1D")
    ]
    (expected, wanted), (got, found) = gradients(padded, inputs), gradients(unpadded, inputs)
    for hook in hooks:
        hook.remove()
    assert wanted.keys() == found.keys()
    total = torch.stack([grad.norm() for grad in wanted.values()]).norm()
    gradient = [(wanted[n] - found[n]).norm() / torch.maximum(wanted[n].norm(), 1e-3 * total) for n in wanted]
    output = (expected - got).norm() / expected.norm()
    flat = any(rows == 1 and tokens > 1 for rows, tokens in shapes)
    shared = any(1 < rows < len(LENGTHS) for rows, _ in shapes)
    return Difference(float(output), float(torch.stack(gradient).max()), flat, shared)


def copies(kind: str, head: str, packed: bool = False, **settings: Any) -> tuple[nn.Module, nn.Module]:
    """Returns a padded model, and the same one without padding, or with rows that share one (`packed`)."""
    from toolkit.models.unpadded.layers import install

    padded = build(kind, head, **settings)
    unpadded = copy.deepcopy(padded)
    install(unpadded, packed=packed)  # type: ignore[arg-type]
    return padded, unpadded


def recompute(model: Any) -> None:
    """Makes a model recompute the activations of its layers."""
    # Under its former name before transformers 5.20 or so.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
