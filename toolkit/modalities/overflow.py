"""Encodes texts in windows: all their tokens, in pieces that a model can read."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import InputError
from toolkit.modalities.text import forget_truncation

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase


def encode_with_overflow(tokenizer: PreTrainedTokenizerBase, *texts: list[str], **options: Any) -> BatchEncoding:
    """Encodes texts, or pairs of texts, with offsets and with all tokens that do not fit into the first window.

    Args:
        tokenizer: a fast tokenizer.
        *texts: the texts, or the first and the second texts of pairs.
        **options: `truncation`, `max_length`, `stride` and others of the tokenizer's call.

    Returns:
        One entry per window; `overflow_to_sample_mapping` has the position of its text.

    Raises:
        InputError: if the installed `tokenizers` loses tokens.
    """
    if not _keeps_all_windows():
        raise InputError(
            f"tokenizers {version('tokenizers')} loses all but the first windows of long texts; install another "
            f"version: pip install 'tokenizers!={version('tokenizers')}'"
        )
    encoded = tokenizer(*texts, return_overflowing_tokens=True, return_offsets_mapping=True, **options)
    forget_truncation(tokenizer)
    return encoded


@cache
def _keeps_all_windows() -> bool:
    """Returns whether a text of four tokens has four windows of one; with tokenizers 0.23.1 and 0.23.2, it has one."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(1)
    first = tokenizer.encode("a a a a")
    return len(first.overflowing) == 3
