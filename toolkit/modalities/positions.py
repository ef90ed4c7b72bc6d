"""Checks the lengths of texts against the positions of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.api.task import limits_of
from toolkit.data.batching.budget import padded_length

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ROBERTA_POSITIONS = frozenset({
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
RELATIVE_POSITIONS = frozenset({"t5", "mt5", "umt5", "xlnet"})


def too_long(config: PreTrainedConfig, options: Any) -> list[str]:
    """Returns which limits of the options are above the model's number of positions, as full messages."""
    room = positions(config)
    if room is None:
        return []
    given = {name: getattr(options, name) for name in limits_of(options).values()}
    takes = f"this {config.model_type} supports at most {room} tokens"
    return [f"task.{name}: received {value}, but {takes}" for name, value in given.items() if value and value > room]


def prefix_problems(config: PreTrainedConfig, options: Any, num_virtual_tokens: int) -> list[str]:
    """Returns a full message if the longest input and a prefix of virtual tokens exceed the model's positions."""
    room, limits = positions(config), limits_of(options)
    name = limits.get("input", limits.get("source", ""))
    longest = getattr(options, name, None)
    if room is None or longest is None or not longest <= room < longest + num_virtual_tokens:
        return []  # `too_long` refuses inputs that are too long without a prefix
    return [
        f"model.peft.num_virtual_tokens: received {num_virtual_tokens}, but task.{name} allows inputs of {longest} "
        f"tokens, and this {config.model_type} has {room} positions for both; lower one of them"
    ]


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
        f"train.pad_to_multiple_of: received {multiple}, with which task.{name}={value} becomes "
        f"{padded_length(value, multiple)} tokens, but this {config.model_type} supports at most {room}; set "
        f"task.{name} to {room // multiple * multiple}"
        for name, value in given.items()
        if value and value <= room < padded_length(value, multiple)
    ]


def positions(config: PreTrainedConfig) -> int | None:
    """Returns the largest number of tokens of an input, None if the model does not limit it."""
    room: int | None = getattr(config, "max_position_embeddings", None)
    if room is None or config.model_type in RELATIVE_POSITIONS:
        return None
    # RoBERTa and similar models count positions from the padding id.
    return room - ((config.pad_token_id or 0) + 1 if config.model_type in ROBERTA_POSITIONS else 0)
