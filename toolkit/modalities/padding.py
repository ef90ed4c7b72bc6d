"""Pads batches of text to few different lengths (`train.pad_to_multiple_of`)."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

from toolkit.api.task import limits_of
from toolkit.modalities.positions import positions

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

KEY = "train.pad_to_multiple_of"
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


def shape_problems(config: PreTrainedConfig, options: Any, multiple: int, num_virtual_tokens: int = 0) -> list[str]:
    """Returns which limits of a task's options, rounded up, exceed the model's positions, as full messages.

    Args:
        config: the model's configuration.
        options: the task's options.
        multiple: `train.pad_to_multiple_of`.
        num_virtual_tokens: length of a prefix of prompt tuning.
    """
    room = positions(config)
    if room is None:
        return []
    room -= num_virtual_tokens
    given = {name: getattr(options, name) for side, name in limits_of(options).items() if side != "generated"}
    return [
        f"{KEY}: received {multiple}, with which task.{name}={value} becomes {padded_length(value, multiple)} tokens, "
        f"but this {config.model_type} supports at most {room}; set task.{name} to {room // multiple * multiple}"
        for name, value in given.items()
        if value and value <= room < padded_length(value, multiple)
    ]
