"""Attention over the tokens of a batch, each sequence by itself."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from toolkit.models.unpadded.packing import LONGEST_TOGETHER, Packing

LONGEST_IN_FLOAT32 = 256
"""Tokens up to which attention in float32 is faster than in bfloat16 or float16 on a CPU."""
FLASH_CAPABILITY = (8, 0)
"""The oldest compute capability with PyTorch's flash attention."""
FLASH_SIZES, EFFICIENT_SIZES = range(8, 193, 8), range(4, 257, 4)
"""The sizes of heads that kernels of all these GPUs compute, in 16 bits and in float32."""
FLASH = ("query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal",
         "return_debug_mask")  # fmt: skip
EFFICIENT = ("query", "key", "value", "bias", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k",
             "dropout_p", "custom_mask_type", "compute_log_sumexp")  # fmt: skip
"""The arguments of PyTorch's kernels for sequences of any lengths, which its nested tensors call, too.

`torch.nn.attention.varlen` has no dropout and no float32.
"""
CAUSAL = 1
"""The type of mask of the second kernel under which tokens attend to none after them."""

Kernel = Literal["flash", "efficient", "together", "split"]
Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, each `[1, heads, tokens, size]`."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Packing | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **further: Any,
) -> tuple[Tensor, None]:
    """Computes attention for transformers' layers, as `[1, N, heads, size]` or padded, and no weights.

    Args:
        module: the attention module.
        query: `[1, heads, N, size]`, or padded, `[B, heads, T, size]`.
        key: `[1, heads, M, size]` or padded; may have fewer heads (grouped queries).
        value: like `key`.
        attention_mask: the packing, or a mask of the padded batch.
        dropout: probability with which an attention weight becomes zero.
        scaling: factor of the scores; None is one over the root of the size.
        is_causal: for padded tensors without a mask; None leaves it to the module.
        position_bias: `[1, heads, T, S]`, added to the scores.
        **further: further arguments of transformers' attention functions.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    packing = attention_mask
    if not isinstance(packing, Packing) or not _is_flat(packing, query, key):
        mask = packing.mask if isinstance(packing, Packing) else packing
        padded: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=is_causal,
            position_bias=position_bias, **further,
        )  # fmt: skip
        return padded
    return _flat_attention((query, key, value), packing, dropout, scaling, position_bias), None


def _flat_attention(
    heads: Heads, packing: Packing, dropout: float, scale: float | None, position_bias: Tensor | None
) -> Tensor:
    """Returns `[1, N, heads, size]`; arguments as for `attend`."""
    query, key, value = heads
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    causal = packing.causal and packing.queries is packing.keys
    longest = max(*packing.queries.lengths, *packing.keys.lengths)
    plain = packing.window is None and position_bias is None
    device = query.device.type
    # As autocast does, which some models need, since they normalise queries and keys in float32.
    autocast = torch.is_autocast_enabled(device) and query.dtype != torch.float64
    kept = torch.get_autocast_dtype(device) if autocast else query.dtype
    kernel = choose(query.device, kept, dropout, plain, longest, query.shape[-1])
    short = device == "cpu" and kept in (torch.bfloat16, torch.float16) and longest <= LONGEST_IN_FLOAT32
    dtype = torch.float32 if short else kept
    heads = query.to(dtype), key.to(dtype), value.to(dtype)
    if kernel in ("flash", "efficient"):
        flat = _flash if kernel == "flash" else _efficient
        return flat(heads, packing, dropout, causal, scale)
    bias = _bias(packing, position_bias, causal)
    if bias is not None and bias.dtype != torch.bool:
        bias = bias.to(dtype)
    compute = _together if kernel == "together" else _split
    with torch.autocast(device, enabled=False):
        return compute(heads, packing, bias, dropout, causal, scale).to(kept)


@cache
def has_kernel(device: torch.device, kernel: Literal["flash", "efficient"]) -> bool:
    """Returns whether a device and this version of torch have a kernel for sequences of any lengths."""
    if device.type != "cuda" or (kernel == "flash" and torch.cuda.get_device_capability(device) < FLASH_CAPABILITY):
        return False
    if kernel == "flash" and not torch.backends.cuda.is_flash_attention_available():
        return False
    expected = FLASH if kernel == "flash" else EFFICIENT
    found = getattr(torch.ops.aten, f"_{kernel}_attention_forward").default._schema.arguments
    return tuple(argument.name for argument in found[: len(expected)]) == expected


def choose(device: torch.device, dtype: torch.dtype, dropout: float, plain: bool, longest: int, size: int) -> Kernel:
    """Chooses how to compute attention with heads of `size`; `plain` is attention without a bias or a window."""
    if device.type == "cuda":
        return gpu_kernel(device, dtype, dropout, size) if plain else "split"
    return "together" if longest <= LONGEST_TOGETHER else "split"


def gpu_kernel(
    device: torch.device, dtype: torch.dtype, dropout: float, size: int
) -> Literal["flash", "efficient", "split"]:
    """Returns how a GPU computes attention to which nothing is added; arguments as for `choose`.

    With dropout, the gradients of the kernel for float32 are not those of the weights that its forward pass dropped
    (torch 2.11 on an H100; tests/gpu/test_attention.py).
    """
    if dtype in (torch.bfloat16, torch.float16) and size in FLASH_SIZES and has_kernel(device, "flash"):
        return "flash"
    if dtype == torch.float32 and dropout == 0 and size in EFFICIENT_SIZES and has_kernel(device, "efficient"):
        return "efficient"
    return "split"


def _is_flat(packing: Packing, query: Tensor, key: Tensor) -> bool:
    sides = (packing.queries, query), (packing.keys, key)
    return all(heads.shape[0] == 1 and heads.shape[2] == rows.total for rows, heads in sides)


def _bias(packing: Packing, position_bias: Tensor | None, causal: bool) -> Tensor | None:
    """Returns the scores' bias or mask `[1, 1 or heads, T, S]`, with the causal mask where it has one, or None."""
    window, lengths = packing.window, (max(packing.queries.lengths), max(packing.keys.lengths))
    if position_bias is None:
        return None if window is None else window[None, None, : lengths[0], : lengths[1]]
    bias = position_bias
    if bias.shape[-1] == 1:  # no bias in cross attention
        return None
    bias = bias[..., : lengths[0], : lengths[1]]
    if window is None and causal:
        window = torch.ones(lengths, dtype=torch.bool, device=bias.device).tril()
    if window is not None:
        bias = bias.masked_fill(~window[: lengths[0], : lengths[1]], torch.finfo(bias.dtype).min)
    return bias


def _split(
    heads: Heads, packing: Packing, bias: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> Tensor:
    """Computes one sequence after the other; `split` has one gradient, where slices had one of full size each."""
    queries, keys = packing.queries.sequences, packing.keys.sequences
    parts = [
        nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=None if bias is None else bias[..., :n, :m], dropout_p=dropout,
            is_causal=causal and bias is None, scale=scale,
        ).transpose(1, 2)
        for q, k, v, n, m in zip(
            *(side.split(sizes, 2) for side, sizes in zip(heads, (queries, keys, keys), strict=True)),
            queries, keys, strict=True,
        )
    ]  # fmt: skip
    return torch.cat(parts, 1)


def _together(
    heads: Heads, packing: Packing, bias: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> Tensor:
    """Computes all sequences in one call, padded to the longest."""
    device = heads[0].device
    queries, keys = packing.queries.left, packing.keys.left
    rows, columns = queries.longest, keys.longest
    held = torch.tensor(packing.keys.sequences, device=device)
    mask = (torch.arange(columns, device=device) < held[:, None])[:, None, None]
    if bias is None and causal:
        mask = mask & torch.ones(rows, columns, dtype=torch.bool, device=device).tril()
    elif bias is not None and bias.dtype == torch.bool:
        mask = mask & bias
    elif bias is not None:
        mask = bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
    sides = zip((queries, keys, keys), heads, strict=True)
    query, key, value = (side.put(x.transpose(1, 2).contiguous()).transpose(1, 2) for side, x in sides)
    compute = nn.functional.scaled_dot_product_attention
    result = compute(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)
    return queries.take(result.transpose(1, 2))


def _flash(heads: Heads, packing: Packing, dropout: float, causal: bool, scale: float | None) -> Tensor:
    """Computes all sequences in one call, in 16 bits (Dao 2023, arXiv 2307.08691)."""
    result: Tensor = torch.ops.aten._flash_attention_forward(
        *(x[0].transpose(0, 1) for x in heads), *_sizes(packing, heads[0].device), dropout, causal, False, scale=scale
    )[0]  # fmt: skip
    return result.unsqueeze(0)


def _efficient(heads: Heads, packing: Packing, dropout: float, causal: bool, scale: float | None) -> Tensor:
    """Computes all sequences in one call, in float32, without dropout (Rabe and Staats 2021, arXiv 2112.05682)."""
    result: Tensor = torch.ops.aten._efficient_attention_forward(
        *(x.transpose(1, 2) for x in heads), None, *_sizes(packing, heads[0].device), dropout,
        CAUSAL if causal else 0, True, scale=scale,
    )[0]  # fmt: skip
    return result


def _sizes(packing: Packing, device: torch.device) -> tuple[Tensor, Tensor, int, int]:
    """Returns where the sequences of queries and keys end, and how long the longest are."""
    queries, keys = packing.queries, packing.keys
    return queries.ends_on(device), keys.ends_on(device), max(queries.lengths), max(keys.lengths)
