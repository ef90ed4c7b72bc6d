"""Generates text with a causal language model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import IGNORE_INDEX
from toolkit.base.errors import InputError
from toolkit.tasks.blocks import separators

if TYPE_CHECKING:
    import torch
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
    """Returns a prompt and its continuation by sampling; see `continue_tokens`."""
    begin, end = separators(tokenizer)
    ids = [begin, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    continuation = continue_tokens(model, ids, [end], max_new_tokens, block_size, seed)
    return f"{prompt}{tokenizer.decode(continuation, skip_special_tokens=True)}"


def continue_tokens(
    model: Any, ids: list[int], end: Sequence[int], max_new_tokens: int, block_size: int, seed: int | None = None
) -> list[int]:
    """Continues tokens by sampling with a seed, or else by greedy search, and returns the new ones.

    Of many tokens, only the last ones are used, as `kept_tokens` says; new ones fill what is left of `block_size`.
    `end` are the tokens that end an answer: generation stops at a single one, as at those of the model's generation
    configuration; what follows several is cut off. The global random state is not changed.
    """
    import torch
    from transformers import GenerationConfig

    block_size -= getattr(getattr(model, "active_peft_config", None), "num_virtual_tokens", 0)
    ids = ids[-kept_tokens(max_new_tokens, block_size) :]
    settings = GenerationConfig(
        do_sample=seed is not None, max_new_tokens=min(max_new_tokens, block_size - len(ids)), pad_token_id=end[0],
        eos_token_id=stop_tokens(model, end) or None,
        **({} if seed is None else {"top_k": TOP_K}),
    )  # fmt: skip
    inputs = torch.tensor([ids], device=model.device)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        # With virtual tokens the library recomputes position ids, which is correct here.
        warnings.filterwarnings("ignore", "Position ids are not supported for parameter efficient tuning")
        if seed is not None:
            torch.manual_seed(seed)
        output = model.generate(inputs, attention_mask=torch.ones_like(inputs), generation_config=settings)
    new: list[int] = output[0, len(ids) :].tolist()
    return new if len(end) == 1 else new[: next((i for i in range(len(new)) if new[i : i + len(end)] == [*end]), None)]


def script_name(causal: bool, answers: bool) -> str:
    """Returns the template of a language model's script (see `Task.script`); `answers` for one that answers prompts.

    Raises:
        InputError: if the model is masked.
    """
    if not causal:
        raise InputError(
            "toolkit export: a masked language model has no predict.py, because `toolkit predict` scores it with "
            "random masks. Its folder model/ can be used with transformers.pipeline('fill-mask')."
        )
    return "chat" if answers else "language_model"


def script_values(
    model: Any, tokenizer: PreTrainedTokenizerBase, end: Sequence[int], max_new_tokens: int, block_size: int
) -> dict[str, Any]:
    """Returns what the script of a causal model needs, nothing for others; arguments are those of `continue_tokens`."""
    if getattr(model, "generation_config", None) is None:
        return {}
    kept, ending = kept_tokens(max_new_tokens, block_size), tokenizer.decode([*end]) if len(end) > 1 else ""
    stops = stop_tokens(model, end) or None
    return {"begin": separators(tokenizer)[0], "end": end[0], "ending": ending, "stops": stops, "kept": kept}


def kept_tokens(max_new_tokens: int, block_size: int) -> int:
    """Returns the number of a prompt's last tokens that are used; arguments are those of `continue_tokens`.

    In training, prompt and answer share `block_size` tokens: a long prompt is read whole, and its answer is short.
    """
    return block_size - min(max_new_tokens, max(1, block_size // 8))


def stop_tokens(model: Any, end: Sequence[int]) -> list[int]:
    """Returns a single token of `end` and the tokens at which the model's generation configuration stops."""
    stops = model.generation_config.eos_token_id
    single = end if len(end) == 1 else ()
    return sorted({*single, *(stops if isinstance(stops, list) else [] if stops is None else [stops])})


def continue_all(
    model: Any, prompts: Sequence[list[int]], end: Sequence[int], max_new_tokens: int, block_size: int
) -> torch.Tensor:
    """Continues several prompts by greedy search, one by one, so that none depends on the others.

    Returns `[prompts, T]` int64 new tokens, padded with `IGNORE_INDEX`; arguments are those of `continue_tokens`.
    """
    import torch

    new = [torch.tensor(continue_tokens(model, ids, end, max_new_tokens, block_size)) for ids in prompts]
    return torch.nn.utils.rnn.pad_sequence(new, batch_first=True, padding_value=IGNORE_INDEX)
