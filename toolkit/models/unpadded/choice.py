"""Decides whether a run leaves out padding (`train.unpadded`), before it loads weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from toolkit.base.errors import ConfigError
from toolkit.config.problems import Rule
from toolkit.config.sections import Config
from toolkit.models.unpadded.families import Islands, NothingToGain, Refused, coverage

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

KEY = "train.unpadded"
_ELSE = f"set {KEY} to auto"
_PADDED = (
    Rule(
        lambda c: c.train.torch_compile,
        (KEY, "train.torch_compile"),
        "compiled code would be compiled again for every number of tokens",
        _ELSE,
    ),
    Rule(
        lambda c: c.train.pad_to_multiple_of is not None,
        (KEY, "train.pad_to_multiple_of"),
        "padding to a multiple is for layers that compute it",
        _ELSE,
    ),
    Rule(
        lambda c: c.train.mixed_precision == "fp8",
        (KEY, "train.mixed_precision"),
        "products in fp8 need sizes that are multiples of 16, and the number of tokens is any",
        _ELSE,
    ),
    Rule(
        lambda c: c.parallel.pipeline > 1,
        (KEY, "parallel.pipeline"),
        "the stages of a pipeline exchange batches of one shape",
        _ELSE,
    ),
    Rule(
        lambda c: c.parallel.backend == "deepspeed",
        (KEY, "parallel.backend"),
        "this has not been compared under DeepSpeed",
        _ELSE,
    ),
)
"""With which settings a run is padded."""


def _if_asked_for(rule: Rule) -> Rule:
    return replace(rule, when=lambda c: c.train.unpadded is True and rule.when(c))


RULES = tuple(map(_if_asked_for, _PADDED))
"""Part of `toolkit.checks.rules.RULES`."""
DROPOUTS = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "attn_dropout", "dropout_rate")
"""Fields with the dropout of attention weights."""
WINDOWS = ("sliding_window", "local_attention")
"""Fields with the size of a window of attention."""
POSITION_BIASES = frozenset(("mt5", "t5", "umt5"))
"""Model types whose attention adds a bias to the scores."""


def problems(cfg: Config, config: PreTrainedConfig) -> list[str]:
    """Returns a full message if `train.unpadded` is true and the model cannot leave out padding, or nothing."""
    if cfg.train.unpadded is not True:
        return []
    covered = coverage(config, cfg.model.attn_implementation)
    if isinstance(covered, NothingToGain):
        return [f"{KEY}: received true, but the rows of a {config.model_type} all have the same length; remove it"]
    if isinstance(covered, Refused):
        return [f"{KEY}: received true, but this model runs padded: {covered.reason}; set it to auto"]
    return []


def choose(cfg: Config, config: PreTrainedConfig, device: torch.device) -> bool:
    """Returns whether a run leaves out padding.

    Args:
        cfg: resolved configuration.
        config: the model's configuration.
        device: the device that computes.

    Raises:
        ConfigError: if `train.unpadded` is true and the model cannot leave out padding.
    """
    if found := problems(cfg, config):
        raise ConfigError(found)
    if cfg.train.unpadded is not True:
        covered = coverage(config, cfg.model.attn_implementation)
        if cfg.train.unpadded is False or isinstance(covered, NothingToGain | Refused):
            return False
        if device.type == "cuda" and (isinstance(covered, Islands) or not _has_fast_kernel(cfg, config, device)):
            return False
    return not any(rule.when(cfg) for rule in _PADDED)


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
