"""The micro-batches that are tried, and the settings that each needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from toolkit.config.keys import written
from toolkit.config.sections import Config
from toolkit.lab.launch import batch_and_accumulation

STEP = 1.5
"""Least factor between two sizes: divisors of a window that are closer to each other are left out."""
SCALES = {"linear": 1.0, "sqrt": 0.5}
"""Power of the window's growth by which each rule scales the learning rate: linear (Goyal et al. 2017, arXiv
1706.02677), square root (Hoffer et al. 2017, arXiv 1705.08741)."""


@dataclass(frozen=True)
class Size:
    """A micro-batch to try.

    Args:
        micro_batch: its rows, or its tokens if the run has a budget of tokens.
        rows: rows of it at most, if they are the longest.
        window: rows of a step on each data rank.
        settings: the settings that make it, by dotted key.
    """

    micro_batch: int
    rows: int
    window: int
    settings: dict[str, Any]

    @property
    def overrides(self) -> list[str]:
        """The settings as overrides of the command line."""
        return written(self.settings)


def sizes_of(cfg: Config, longest: int, most_rows: int, reference: float, scale: str | None) -> list[Size]:
    """Returns the sizes to try, the smallest first.

    Up to the configured window, the window stays and accumulation changes, so that every size trains the same steps.
    With a rule for the learning rate, windows then double up to `most_rows`.

    Args:
        cfg: the configuration.
        longest: tokens of the longest row.
        most_rows: rows of the largest window on each data rank.
        reference: rows of a step on each data rank for which the configured rate is meant.
        scale: key of `SCALES`, or None if the rate stays.
    """
    train, window = cfg.train, window_of(cfg)
    by_tokens = train.max_tokens_per_batch is not None

    def size(rows: int, window: int, tokens: int | None = None) -> Size:
        rates = _rates(cfg, window / reference, scale)
        if not by_tokens:
            made = {"train.per_device_train_batch_size": rows, "train.gradient_accumulation_steps": window // rows}
            return Size(rows, rows, window, made | rates)
        tokens = rows * longest if tokens is None else tokens
        made = {"train.max_tokens_per_batch": tokens}
        if window != window_of(cfg):
            made |= {"train.per_device_train_batch_size": window, "train.gradient_accumulation_steps": 1}
        return Size(tokens, max(1, tokens // longest), window, made | rates)

    found = [size(rows, window) for rows in (_doubled(window) if by_tokens else _divisors(window))]
    if by_tokens:
        found.append(size(0, window, train.max_tokens_per_batch))
    else:
        found.append(size(train.per_device_train_batch_size, window))
    if scale is not None:
        found += [size(rows, rows) for rows in _beyond(window, most_rows)]
    return sorted({each.micro_batch: each for each in found}.values(), key=lambda each: each.micro_batch)


def window_of(cfg: Config) -> int:
    """Returns the rows of a step on each data rank."""
    return prod(batch_and_accumulation(cfg))


def _divisors(window: int) -> list[int]:
    kept = [1]
    for size in range(2, window):
        if window % size == 0 and STEP * kept[-1] <= size <= window / STEP:
            kept.append(size)
    return [*kept, window]


def _doubled(window: int) -> list[int]:
    return [*(2**power for power in range((window - 1).bit_length())), window]


def _beyond(window: int, most: int) -> Iterator[int]:
    while (window := 2 * window) <= most:
        yield window


def _rates(cfg: Config, growth: float, scale: str | None) -> dict[str, Any]:
    """Returns the learning rates for a window that has grown by a factor."""
    if scale is None or growth == 1:
        return {}
    train, factor = cfg.train, growth ** SCALES[scale]
    rates = {"learning_rate": train.learning_rate, "head_learning_rate": train.head_learning_rate}
    return {f"train.{name}": float(f"{rate * factor:.4g}") for name, rate in rates.items() if rate is not None}
