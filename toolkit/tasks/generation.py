"""Text that a causal language model makes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from toolkit.tasks.blocks import separators

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TOP_K = 50
"""Only so many of the most likely tokens are drawn from (Fan et al. 2018, arXiv 1805.04833; transformers' default)."""


def continue_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    max_new_tokens: int,
    block_size: int,
    seed: int,
) -> str:
    """Continues a text with tokens drawn at random, the same for the same model, prompt and seed.

    Args:
        model: unwrapped, in evaluation mode.
        tokenizer: its tokenizer.
        prompt: how the text begins, as part of what is returned; may be empty.
        max_new_tokens: most tokens to add.
        block_size: most tokens in all; of a longer prompt the model sees the end.
        seed: of the draw; the global random numbers are left as they are.
    """
    from transformers import GenerationConfig

    begin, end = separators(tokenizer)
    block_size -= getattr(getattr(model, "active_peft_config", None), "num_virtual_tokens", 0)
    ids = [begin, *tokenizer(prompt, add_special_tokens=False)["input_ids"]][-(block_size - 1) :]
    settings = GenerationConfig(
        do_sample=True, top_k=TOP_K, max_new_tokens=min(max_new_tokens, block_size - len(ids)),
        bos_token_id=begin, eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    inputs = torch.tensor([ids], device=model.device)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        # Of virtual tokens: positions are counted anew with them, as they should be.
        warnings.filterwarnings("ignore", "Position ids are not supported for parameter efficient tuning")
        torch.manual_seed(seed)
        generate: Any = model.generate
        output = generate(inputs, attention_mask=torch.ones_like(inputs), generation_config=settings)
    return f"{prompt}{tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)}"
