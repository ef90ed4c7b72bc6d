"""Which tokens of a row are trained, measured by the gradient of the task's own loss, not read from its labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from toolkit.api.batch import IGNORE_INDEX, Batch, Processor
from toolkit.api.random import RowRandom
from toolkit.api.task import Task
from toolkit.data.batching.batches import collate

if TYPE_CHECKING:
    import datasets

LEAST = 1e-6
"""Weights below are none."""
OPENED, CLOSED = "⟦", "⟧"
"""Around trained tokens."""


@dataclass(frozen=True)
class Signal:
    """The tokens of a feature row, and the weight of each in the loss: 1 is that of a token of a mean over tokens."""

    row: str
    tokens: Sequence[str]
    weights: Sequence[float]
    unlike: int
    """Tokens whose weight is 0 although they have a label, or the other way round."""

    @property
    def trained(self) -> int:
        """The number of tokens with a weight."""
        return sum(weight > LEAST for weight in self.weights)

    @property
    def text(self) -> str:
        """The tokens, those that are trained within brackets."""
        text = ""
        for trained, pairs in groupby(zip(self.tokens, self.weights, strict=True), lambda pair: pair[1] > LEAST):
            part = "".join(token for token, _ in pairs)
            text += f"{OPENED}{part}{CLOSED}" if trained else part
        return text

    def lines(self) -> list[str]:
        """Returns what is said about the row, with its text."""
        given = [weight for weight in self.weights if weight > LEAST]
        low, high = (min(given), max(given)) if given else (0.0, 0.0)
        usual = not given or (high - low < LEAST and abs(high - 1) < LEAST)
        weight = "" if usual else f", weights {low:.3g} to {high:.3g}"
        found = [f"row {self.row}: {self.trained:,} of {len(self.tokens):,} tokens are trained{weight}"]
        if not given:
            found.append("no token is trained: the row changes nothing")
        if self.unlike:
            found.append(f"{self.unlike:,} tokens have a label and no gradient, or a gradient and no label")
        return [*found, self.text]


def signals(task: Task, processor: Processor, features: datasets.Dataset, count: int, seed: int) -> list[Signal]:
    """Measures the first feature rows, at most `count`, of a task that `predicts_tokens`."""
    random, found = RowRandom(seed, epoch=0), []
    for row in islice(features, count):
        batch = collate([row], task, processor, random)
        weights, known = _measured(task, batch), batch["labels"][0] != IGNORE_INDEX
        unlike = int(((weights > LEAST) != known).sum())
        found.append(Signal(str(row["number"]), *_shown(batch, processor, weights), unlike))
    return found


def _measured(task: Task, batch: Batch) -> torch.Tensor:
    """Returns the weight of each label `[T]`: the gradient of the loss by logits that know nothing.

    By equal logits of n classes, a token of weight 1 has a gradient whose absolute values add up to 2 (n - 1) / n.
    """
    labels = batch["labels"]
    classes = max(int(labels.max()), 0) + 2
    logits = torch.zeros(*labels.shape, classes, dtype=torch.float32, requires_grad=True)
    outputs: Any = SimpleNamespace(logits=logits)
    loss = task.loss_sum(outputs, batch)
    gradient = torch.autograd.grad(loss, logits, allow_unused=True)[0] if loss.requires_grad else None
    sums = torch.zeros(labels.shape[1]) if gradient is None else gradient[0].abs().sum(-1)
    return sums * classes / (2 * (classes - 1))


def _shown(batch: Batch, processor: Processor, weights: torch.Tensor) -> tuple[list[str], list[float]]:
    """Returns the tokens of a row, and their weights; a causal model predicts each from those before it."""
    ids, labels = batch["inputs"]["input_ids"][0], batch["labels"][0]
    known = labels != IGNORE_INDEX
    if "decoder_input_ids" in batch["inputs"] or ids.shape != labels.shape:  # an encoder-decoder's labels are its text
        shown, own = labels[known], weights[known]
    elif torch.equal(labels[:-1][known[:-1]], ids[1:][known[:-1]]):  # labels are the next tokens
        last = labels[-1:] if known[-1] else labels[:0]
        shown = torch.cat([ids, last])
        own = torch.cat([weights.new_zeros(1), weights])[: len(shown)]
    else:  # masked tokens, or tags
        shown, own = torch.where(known, labels, ids) if "labelled" in batch else ids, weights
    real = batch["inputs"].get("attention_mask")
    length = len(shown) if real is None or len(shown) < len(ids) else int(real[0].sum()) + len(shown) - len(ids)
    tokens = [processor.decode([int(token)]) for token in shown[:length]]
    return tokens, own[:length].tolist()
