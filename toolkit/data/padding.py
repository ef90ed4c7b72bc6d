"""Pads batches of text to few different lengths (`train.pad_to_multiple_of`)."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ATTRIBUTE = "pads_to_multiple_of"


def padding_to(tokenizer: PreTrainedTokenizerBase, multiple: int | None) -> PreTrainedTokenizerBase:
    """Returns a tokenizer with which the text modalities pad batches to a multiple of this many tokens.

    Args:
        tokenizer: the run's processor; it does not change.
        multiple: the number, or None to pad to the longest row.
    """
    if multiple is None:
        return tokenizer
    padding = copy.copy(tokenizer)
    setattr(padding, _ATTRIBUTE, multiple)
    return padding


def multiple_of(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Returns what a tokenizer pads to a multiple of, or None."""
    return getattr(tokenizer, _ATTRIBUTE, None)


def padded_length(longest: int, multiple: int | None) -> int:
    """Returns the length of a batch whose longest row has `longest` tokens."""
    return longest if multiple is None else math.ceil(longest / multiple) * multiple
