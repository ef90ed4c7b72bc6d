"""Which layers of an architecture are split by tensor parallelism, and how.

In attention and in MLPs the first layers are split by their outputs, so that each process computes some of the heads or
of the hidden units, and the last layer is split by its inputs, so that one sum over processes completes its outputs.
Everything between two such pairs is complete on every process: norms, residuals and the heads of classifiers. The
vocabulary of language models is split by `toolkit.distributed.tensor.vocabulary`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from toolkit.base.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

COLUMNS, ROWS = "colwise", "rowwise"
GATHERED_COLUMNS, SCATTERED_ROWS = "colwise_gather_output", "rowwise_split_input"
HEAD_NORM = "replicated_with_grad_allreduce"
FUSED_COLUMNS = "colwise_of_3"
STYLES = {
    COLUMNS: "splits outputs; each process continues with its part",
    ROWS: "splits inputs, of which each process has its part; the outputs are summed",
    GATHERED_COLUMNS: "splits outputs and gathers them",
    SCATTERED_ROWS: "splits complete inputs; the outputs are summed",
    HEAD_NORM: "a norm of each head by itself; the gradients of all heads are summed",
    FUSED_COLUMNS: "splits each of three matrices that are stored side by side, as GPT-2's queries, keys and values",
}
"""What a plan can do with a layer: names of transformers' styles, and one of the toolkit's."""


@dataclass(frozen=True)
class TensorPlan:
    """How the layers of an architecture are split over processes."""

    styles: Mapping[str, str]
    """The style of each layer that is split, by regular expression of its name in the base model."""
    sizes: tuple[str, ...]
    """Fields of the configuration that the number of processes must divide."""
    divided: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Attributes of modules to divide by the number of processes, by regular expression of the names."""


def _plan(
    layer: str, columns: str, rows: str, sizes: tuple[str, ...], divided: tuple[str, ...] = (), fused: str = ""
) -> TensorPlan:
    """Returns a plan of the parts of each `layer`, by expressions of their names; `divided` is one, and attributes."""
    names = {COLUMNS: columns, ROWS: rows, FUSED_COLUMNS: fused}
    styles = {rf"{layer}\.{name}": style for style, found in names.items() for name in found.split()}
    return TensorPlan(styles, sizes, {rf"{layer}\.{divided[0]}": divided[1:]} if divided else {})


_HEADS = ("num_attention_heads", "intermediate_size")
_CODER_HEADS = ("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim")
_CODER = (r"(encoder|decoder)\.layers\.\d+", r"(self_attn|encoder_attn)\.[qkv]_proj fc1",
          r"(self_attn|encoder_attn)\.out_proj fc2", _CODER_HEADS)  # fmt: skip
_BERT = _plan(
    r"encoder\.layer\.\d+",
    r"(attention\.self\.(query|key|value)|intermediate\.dense)",
    r"attention\.output\.dense output\.dense",
    _HEADS,
)
_WAV2VEC2 = _plan(
    r"encoder\.layers\.\d+",
    r"attention\.[qkv]_proj feed_forward\.intermediate_dense",
    r"attention\.out_proj feed_forward\.output_dense",
    _HEADS,
)
# The columns of the table of relative positions are heads.
_T5_ATTENTION = "(SelfAttention|EncDecAttention)"
_T5_COLUMNS = rf"{_T5_ATTENTION}\.([qkv]|relative_attention_bias) DenseReluDense\.wi(_\d)?"
PLANS: dict[str, TensorPlan] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), _BERT),
    "distilbert": _plan(r"transformer\.layer\.\d+", r"attention\.[qkv]_lin ffn\.lin1",
                        r"attention\.out_lin ffn\.lin2", ("n_heads", "hidden_dim")),
    "vit": _plan(r"layers\.\d+", r"attention\.[qkv]_proj mlp\.fc1", r"attention\.o_proj mlp\.fc2", _HEADS),
    "t5": _plan(".*", _T5_COLUMNS, rf"{_T5_ATTENTION}\.o DenseReluDense\.wo", ("num_heads", "d_ff"),
                (_T5_ATTENTION, "n_heads", "inner_dim")),
    **dict.fromkeys(("bart", "marian", "mbart"), _plan(*_CODER)),
    "whisper": _plan(*_CODER, ("(self_attn|encoder_attn)", "num_heads")),
    "gpt2": _plan(r"h\.\d+", r"mlp\.c_fc", r"attn\.c_proj mlp\.c_proj", ("n_head", "n_inner"),
                  ("attn", "split_size"), fused=r"attn\.c_attn"),
    **dict.fromkeys(("wav2vec2", "hubert"), _WAV2VEC2),
}  # fmt: skip
"""The toolkit's own plans, by `model_type`, for architectures for which transformers has none."""
LIBRARY_PLANS = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt_neox", "olmo2",
    "starcoder2", "smollm3", "granite",
)  # fmt: skip
"""Architectures whose plan in transformers (`base_model_tp_plan`) is used, since a test shows that it is exact."""
_LEFT_COMPLETE = "embedding_rowwise"
"""A style of transformers that is not used: splitting the embedding is a choice, and a tied output head is complete."""
_HEAD_NORM_FIELDS = ("qk_layernorm", "use_qk_norm")
"""Fields that add norms of queries and keys, of which transformers' plans say nothing."""


def plan_of(config: PreTrainedConfig) -> TensorPlan | None:
    """Returns the plan of a model's architecture, or None if it has none."""
    if config.model_type in PLANS:
        return PLANS[config.model_type]
    plan = getattr(config, "base_model_tp_plan", None) or {}
    found = {name: style for name, style in plan.items() if style != _LEFT_COMPLETE}
    if config.model_type not in LIBRARY_PLANS or not found or set(found.values()) - STYLES.keys():
        return None
    styles = {re.escape(name).replace(r"\*", r"\d+"): style for name, style in found.items()}
    # Where outputs are gathered, heads are not split.
    heads = () if GATHERED_COLUMNS in found.values() else ("num_attention_heads", "num_key_value_heads")
    return TensorPlan(styles, (*heads, "intermediate_size"))


def plan_problems(config: PreTrainedConfig, size: int) -> list[str]:
    """Returns why an architecture cannot be split over `size` processes."""
    key = f"parallel.tensor: received {size}"
    plan = plan_of(config)
    if plan is None:
        known = ", ".join(sorted([*PLANS, *LIBRARY_PLANS]))
        return [
            f"{key}, but there is no plan for splitting the layers of {config.model_type}, only for those of {known}; "
            "set parallel.fsdp instead"
        ]
    problems = [
        f"{key}, but {name} adds norms that the plan for {config.model_type} does not split; set parallel.fsdp instead"
        for name in _HEAD_NORM_FIELDS
        if getattr(config, name, False)
    ]
    sizes = {name: getattr(config, name, None) for name in plan.sizes}
    wrong = [f"{name} ({value})" for name, value in sizes.items() if isinstance(value, int) and value % size]
    if wrong:
        problems.append(f"{key}, which does not divide the model's {' and '.join(wrong)}; set a number that does")
    return problems


def split_modules(model: PreTrainedModel, size: int) -> dict[str, tuple[nn.Module, str]]:
    """Returns the modules that a plan splits over `size` processes, and their styles, by name in the base model.

    Raises ConfigError if an entry of the plan matches no module of its kind, or a layer cannot be divided.
    """
    plan = plan_of(model.config)
    assert plan is not None, "checked by plan_problems"
    modules = dict(model.base_model.named_modules())
    found: dict[str, tuple[nn.Module, str]] = {}
    problems = []
    for pattern, style in plan.styles.items():
        matched = {name: (module, style) for name, module in modules.items() if re.fullmatch(pattern, name)}
        if not matched:
            problems.append(
                f"the plan for {model.config.model_type} splits layers named {pattern!r}, and {type(model).__name__} "
                "has none; its transformers version may differ from those that the toolkit supports"
            )
        found |= matched
    for name, (module, style) in found.items():
        if width := _undivided_width(module, style, size):
            problems.append(f"{name} has a width of {width}, which it does not divide; set a number that does")
    if problems:
        raise ConfigError([f"parallel.tensor: received {size}, but {problem}" for problem in problems])
    return found


def _undivided_width(module: nn.Module, style: str, size: int) -> int:
    """Returns the width of the outputs or inputs that a style splits if `size` does not divide it, else 0."""
    if style == HEAD_NORM:
        return 0
    inputs, outputs = widths(module)
    width = inputs if style in (ROWS, SCATTERED_ROWS) else outputs // 3 if style == FUSED_COLUMNS else outputs
    return width if width % size else 0


def widths(module: nn.Module) -> tuple[int, int]:
    """Returns the numbers of inputs and outputs of a linear layer or an embedding."""
    weight = cast(Tensor, module.weight)
    return (weight.shape[1], weight.shape[0]) if isinstance(module, nn.Linear) else (weight.shape[0], weight.shape[1])
