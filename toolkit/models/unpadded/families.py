"""Which models run without padding, why others do not, and the choice for a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import ConfigError
from toolkit.config.problems import CHANGED, clash, is_meant, several
from toolkit.config.sections import Config

if TYPE_CHECKING:
    import torch
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
    """All of a layer runs without padding, with the results of the padded model."""


@dataclass(frozen=True)
class Islands:
    """Layers run without padding, except for their attention, with the results of the padded model."""


@dataclass(frozen=True)
class NothingToGain:
    """There is no padding."""


@dataclass(frozen=True)
class Refused:
    """The model runs padded for a `reason`, a clause about the model."""

    reason: str


Coverage = Exact | Islands | NothingToGain | Refused


def coverage(config: PreTrainedConfig, attn_implementation: str | None = None) -> Coverage:
    """Returns whether a model can run without padding, given its attention (None for the default)."""
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
        return Refused(f"it skips layers at random, even the ones that remove or restore padding (set {zeros})")
    for name in ("use_weighted_layer_sum", "output_hidden_states", "output_attentions", "output_router_logits"):
        if getattr(config, name, False):
            return Refused(f"it returns the states of its layers ({name})")
    if getattr(config, "feat_extract_norm", None) == "group":
        return Refused("its clips have no mask, since it was trained without one (feat_extract_norm: group)")
    if getattr(config, "conv_kernel_size", 0) and kind in ISLANDS:
        return Refused("it has a convolution between its layers, which needs padded rows (conv_kernel_size)")
    chosen = attn_implementation or config._attn_implementation
    if kind in EXACT and chosen not in (None, "sdpa"):
        return Refused(f"its attention is {chosen}, and only sdpa is computed sequence by sequence")
    return Exact() if kind in EXACT else Islands()


KEY, PACKED = "train.unpadded", "packed"
POSITIONED = frozenset((
    "apertus", "arcee", "bitnet", "cohere", "cohere2", "cwm", "diffllama", "ernie4_5", "ernie4_5_moe", "exaone4",
    "gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neox", "granite",
    "granitemoe", "granitemoeshared", "helium", "hunyuan_v1_dense", "jais2", "llama", "ministral", "mistral", "mixtral",
    "olmo", "olmo2", "olmo3", "olmoe", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "seed_oss", "smollm3", "stablelm", "starcoder2", "vaultgemma",
))  # fmt: skip
"""Decoders that take positions, from which transformers finds where a row begins; tested likewise."""
COMPILE, MULTIPLE = "train.torch_compile", "train.pad_to_multiple_of"
_PADDED: dict[str, tuple[Any, str]] = {
    "train.mixed_precision": ("fp8", "fp8 matmuls need multiples of 16, but the number of tokens varies"),
    "parallel.pipeline": (several, "the stages of a pipeline exchange batches of one shape"),
    "parallel.sequence": (True, "layers would find the tokens of some processes only"),
    "parallel.context": (several, "the processes of a group compute equally many positions of each row"),
    "parallel.backend": ("deepspeed", "this has not been compared under DeepSpeed"),
}
"""With which settings a run is padded, and why."""
_UNSHARED = ("parallel.context", "parallel.pipeline", "parallel.sequence")
RULES = (
    *(clash({KEY: value, other: meant}, why, f"set {KEY} to auto")
      for value, others in ((True, _PADDED), (PACKED, _UNSHARED))
      for other, (meant, why) in _PADDED.items() if other in others),
    clash({KEY: PACKED, COMPILE: True}, "compiled code would be compiled again for every number of rows",
          f"set {KEY} to auto"),
    clash({KEY: True, COMPILE: True, "train.activation_checkpointing": CHANGED},
          "layers that are recomputed would not be compiled", f"set {KEY} to auto"),
)  # fmt: skip
"""Part of `toolkit.checks.rules.RULES`."""
DROPOUTS = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "attn_dropout", "dropout_rate")
"""Fields with the dropout of attention weights."""
WINDOWS = ("sliding_window", "local_attention")
"""Fields with the size of a window of attention."""
POSITION_BIASES = frozenset(("mt5", "t5", "umt5"))
"""Model types whose attention adds a bias to the scores."""


def problems(cfg: Config, config: PreTrainedConfig) -> list[str]:
    """Returns a full message if `train.unpadded` is true and the model needs padding, or nothing."""
    if cfg.train.unpadded == PACKED:
        return _packing_problems(cfg, config)
    if cfg.train.unpadded is not True:
        return []
    covered = coverage(config, cfg.model.attn_implementation)
    if isinstance(covered, NothingToGain):
        return [f"{KEY}: received true, but the rows of a {config.model_type} all have the same length; remove it"]
    if isinstance(covered, Refused):
        return [f"{KEY}: received true, but this model runs padded: {covered.reason}; set it to auto"]
    if isinstance(covered, Islands) and cfg.train.torch_compile:
        why = f"compiled layers of a {config.model_type} cannot pad their attention"
        return [f"{KEY}: received true, but {why}; set it to auto, or remove {COMPILE}"]
    mixture = any(name.endswith("experts") and value for name, value in config.to_dict().items())
    if cfg.train.pad_to_multiple_of is None or not (
        mixture or config.is_encoder_decoder or isinstance(covered, Islands)
    ):
        return []
    what = "the experts of a mixture, or attention between encoder and decoder or of its own, would see more tokens"
    return [f"{MULTIPLE}: without padding, {what}; remove it, or set {KEY} to auto"]


def _packing_problems(cfg: Config, config: PreTrainedConfig) -> list[str]:
    attention = cfg.model.attn_implementation or config._attn_implementation
    why = None
    if config.model_type not in POSITIONED or getattr(config, "auto_map", None):
        why = f"models of type {config.model_type} have not been compared with and without shared rows"
    elif attention not in (None, "sdpa", "eager"):
        why = f"with {attention}, attention would cross the rows; set model.attn_implementation to sdpa or eager"
    elif cfg.model.peft.method == "prompt_tuning":
        why = "virtual tokens (model.peft.method) would have to precede each row"
    return [f"{KEY}: received {PACKED!r}, but {why}"] if why else []


def choose(cfg: Config, config: PreTrainedConfig, device: torch.device) -> bool | str:
    """Decides whether a run computes without padding; with rows that share one, returns `PACKED`.

    Raises ConfigError if `train.unpadded` asks for either, and the model needs padding.
    """
    if found := problems(cfg, config):
        raise ConfigError(found)
    if cfg.train.unpadded == PACKED:
        return PACKED
    if cfg.train.unpadded is not True:
        if cfg.train.torch_compile or cfg.train.pad_to_multiple_of is not None:  # without padding only if asked for
            return False
        covered = coverage(config, cfg.model.attn_implementation)
        if cfg.train.unpadded is False or isinstance(covered, NothingToGain | Refused):
            return False
        if device.type == "cuda" and (isinstance(covered, Islands) or not _has_fast_kernel(cfg, config, device)):
            return False
    return not any(is_meant(cfg, key, meant) for key, (meant, _) in _PADDED.items())


def _has_fast_kernel(cfg: Config, config: PreTrainedConfig, device: torch.device) -> bool:
    """Returns whether a GPU computes all sequences in one call."""
    import torch

    from toolkit.models.unpadded.attention import gpu_kernel

    def largest(fields: Iterable[str]) -> float:
        return max(getattr(config, name, None) or 0 for name in fields)

    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(cfg.train.mixed_precision or "no", torch.float32)
    plain = largest(WINDOWS) == 0 and config.model_type not in POSITION_BIASES
    return plain and gpu_kernel(device, dtype, largest(DROPOUTS), size) != "split"
