"""Generates text with a causal language model."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from toolkit.tasks.blocks import separators

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TOP_K = 50
"""Number of most likely tokens to sample from (Fan et al. 2018, arXiv 1805.04833; transformers' default)."""


def continue_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    max_new_tokens: int,
    block_size: int,
    seed: int,
) -> str:
    """Continues a prompt by sampling; reproducible for the same model, prompt and seed.

    Args:
        model: the unwrapped model in evaluation mode.
        tokenizer: its tokenizer.
        prompt: start of the text; may be empty.
        max_new_tokens: largest number of tokens to generate.
        block_size: largest number of tokens in total; longer prompts are truncated on the left.
        seed: seed of the sampling; the global random state is not changed.

    Returns:
        The prompt and its continuation.
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
        # With virtual tokens the library recomputes position ids, which is correct here.
        warnings.filterwarnings("ignore", "Position ids are not supported for parameter efficient tuning")
        torch.manual_seed(seed)
        generate: Any = model.generate
        output = generate(inputs, attention_mask=torch.ones_like(inputs), generation_config=settings)
    return f"{prompt}{tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)}"
