"""Which models run without padding, and why others do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LAYERDROP = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
"""Fields that make a model skip layers at random in training, so that their parameters get no gradient."""
EXACT = frozenset((
    "albert", "apertus", "arcee", "bart", "bert", "bert-generation", "biogpt", "bitnet", "blenderbot",
    "blenderbot-small", "camembert", "cohere", "cohere2", "cwm", "data2vec-audio", "data2vec-text", "diffllama",
    "distilbert", "electra", "ernie", "ernie4_5", "ernie4_5_moe", "esm", "eurobert", "exaone4", "gemma", "gemma3_text",
    "glm", "glm4", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "granitemoe", "granitemoeshared", "helium",
    "hubert", "hunyuan_v1_dense", "jais2", "llama", "m2m_100", "marian", "mbart", "ministral", "mistral", "mixtral",
    "mobilebert", "modernbert", "mt5", "nomic_bert", "olmo", "olmo2", "olmo3", "olmoe", "opt", "pegasus", "persimmon",
    "phi", "phi3", "plbart", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "roberta", "roberta-prelayernorm", "seed_oss",
    "sew", "smollm3", "stablelm", "starcoder2", "t5", "umt5", "unispeech", "unispeech-sat", "wav2vec2", "xlm-roberta",
    "xlm-roberta-xl",
))  # fmt: skip
"""Model types whose layers use transformers' attention interface; a test compares each with the padded model."""
ISLANDS = frozenset(("deberta", "deberta-v2", "mpnet", "wavlm"))
"""Model types with attention of their own, which stays padded inside layers without padding; tested likewise."""
FIXED_LENGTH = frozenset((
    "audio-spectrogram-transformer", "beit", "convnext", "convnextv2", "deit", "dinov2", "resnet", "swin", "swinv2",
    "vit", "whisper",
))  # fmt: skip
"""Model types whose rows all have the same length."""

REASONS = {
    **dict.fromkeys(
        ("big_bird", "bigbird_pegasus", "led", "longformer", "longt5", "mra", "nystromformer", "pegasus_x", "reformer",
         "yoso"),
        "its attention reads blocks of padded rows",
    ),
    **dict.fromkeys(
        ("bamba", "falcon_mamba", "jamba", "lfm2", "mamba", "mamba2", "olmo_hybrid", "recurrent_gemma", "rwkv",
         "xlstm", "zamba", "zamba2"),
        "its layers pass a state from position to position",
    ),
    **dict.fromkeys(("bloom", "falcon", "mpt"), "its position biases are part of its mask"),
    **dict.fromkeys(("gemma2", "vaultgemma"), "its attention caps the scores, which sdpa does not"),
    **dict.fromkeys(
        ("codegen", "convbert", "ctrl", "flaubert", "fnet", "fsmt", "funnel", "gptj", "ibert", "megatron-bert",
         "openai-gpt", "prophetnet", "rembert", "roformer", "sew-d", "squeezebert", "switch_transformers", "xglm",
         "xlm", "xlnet"),
        "its attention does not use transformers' interface",
    ),
}  # fmt: skip
"""Why types of models run padded; of others, nothing is known."""


@dataclass(frozen=True)
class Exact:
    """All of a layer runs without padding, and results are those of the padded model."""


@dataclass(frozen=True)
class Islands:
    """Layers run without padding but for the attention itself, and results are those of the padded model."""


@dataclass(frozen=True)
class NothingToGain:
    """There is no padding."""


@dataclass(frozen=True)
class Refused:
    """The model runs padded.

    Args:
        reason: why, as a clause about the model.
    """

    reason: str


Coverage = Exact | Islands | NothingToGain | Refused


def coverage(config: PreTrainedConfig, attn_implementation: str | None = None) -> Coverage:
    """Returns whether a model can run without padding, from its configuration.

    Args:
        config: the model's configuration.
        attn_implementation: the attention that was asked for; None is the model's default.
    """
    kind = config.model_type
    if getattr(config, "auto_map", None):
        return Refused("its code comes with the model (trust_remote_code)")
    if kind in FIXED_LENGTH:
        return NothingToGain()
    if kind not in EXACT | ISLANDS:
        unknown = f"models of type {kind} have not been compared with and without padding"
        return Refused(REASONS.get(kind, unknown))
    if dropped := [name for name in LAYERDROP if (getattr(config, name, None) or 0) > 0]:
        zeros = ", ".join(f"model.config_overrides.{name}=0" for name in dropped)
        return Refused(f"it skips layers at random, and its first or last one takes padding out or in (set {zeros})")
    for name in ("use_weighted_layer_sum", "output_hidden_states", "output_attentions"):
        if getattr(config, name, False):
            return Refused(f"it returns the states of its layers ({name})")
    if getattr(config, "conv_kernel_size", 0) and kind in ISLANDS:
        return Refused("it has a convolution between its layers, which needs padded rows (conv_kernel_size)")
    chosen = attn_implementation or config._attn_implementation
    if kind in EXACT and chosen not in (None, "sdpa"):
        return Refused(f"its attention is {chosen}, and only sdpa is computed sequence by sequence")
    return Exact() if kind in EXACT else Islands()
