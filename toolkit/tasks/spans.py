"""Extractive question answering, on the way out: a model's scores become spans, and spans become answers.

Windows are those of `windows`: position 0 stands for "no answer here", and padding is on the right.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Span = tuple[float, int, int]
"""Score, first character and end (exclusive) of a stretch of the context."""


def context_mask(offsets: Sequence[Sequence[int]], width: int) -> Tensor:
    """Which tokens belong to the context.

    Args:
        offsets: `offsets` of B windows, as `encode_windows` gives them.
        width: T, the length that the windows are padded to on the right.

    Returns:
        `[B, T]` bool, False on padding.
    """
    import torch

    mask = torch.zeros(len(offsets), width, dtype=torch.bool)
    for row, flat in zip(mask, offsets, strict=True):
        row[: len(flat) // 2] = torch.tensor(flat[::2]) >= 0
    return mask


def masked_logits(start_logits: Tensor, end_logits: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Takes padding out of the softmax over positions, so that a loss does not depend on the batch.

    Args:
        start_logits: `[B, T]`.
        end_logits: `[B, T]`.
        attention_mask: `[B, T]`, 0 on padding.

    Returns:
        Both logits with their dtype's lowest number on padding.
    """
    import torch

    padding = attention_mask == 0
    lowest = torch.finfo(start_logits.dtype).min
    return start_logits.masked_fill(padding, lowest), end_logits.masked_fill(padding, lowest)


def top_spans(
    start_logits: Tensor, end_logits: Tensor, context_mask: Tensor, n_best: int, max_answer_tokens: int
) -> dict[str, Tensor]:
    """Finds each window's best spans, exactly: start <= end, at most `max_answer_tokens` tokens, context only.

    Args:
        start_logits: `[B, T]`.
        end_logits: `[B, T]`.
        context_mask: `[B, T]` bool.
        n_best: N, spans to return per window.
        max_answer_tokens: L, most tokens of a span.

    Returns:
        `starts`, `ends` (`[B, N]` int64 token positions, -1 where there are fewer spans), `scores` (`[B, N]` float32,
        the sum of both logits, best first, -inf where there are fewer) and `null_score` (`[B]` float32, that of
        position 0). Of equal scores the one that starts first comes first, then the shorter.
    """
    import torch
    from torch.nn import functional

    null_score = start_logits[:, 0].float() + end_logits[:, 0].float()
    start = start_logits.float().masked_fill(~context_mask, -math.inf)
    end = end_logits.float().masked_fill(~context_mask, -math.inf)
    width = start.shape[1]
    reach = min(max_answer_tokens, width)
    end = functional.pad(end, (0, reach - 1), value=-math.inf)
    # A span among the N best starts at one of the N positions whose own best span is best: only those are expanded.
    best_from = start + functional.max_pool1d(end[:, None], kernel_size=reach, stride=1)[:, 0]
    order = best_from.sort(dim=1, descending=True, stable=True).indices
    candidates = order[:, : min(n_best, width)].sort(dim=1).values
    ends = candidates[:, :, None] + torch.arange(reach, device=start.device)
    scores = start.gather(1, candidates)[:, :, None] + end.gather(1, ends.flatten(1)).view_as(ends)
    scores, picked = scores.flatten(1).sort(dim=1, descending=True, stable=True)
    scores, picked = scores[:, :n_best], picked[:, :n_best]
    none = scores == -math.inf
    missing = (0, n_best - scores.shape[1])
    return {
        "starts": functional.pad(candidates.gather(1, picked // reach).masked_fill(none, -1), missing, value=-1),
        "ends": functional.pad(ends.flatten(1).gather(1, picked).masked_fill(none, -1), missing, value=-1),
        "scores": functional.pad(scores, missing, value=-math.inf),
        "null_score": null_score,
    }


def best_answers(
    starts: np.ndarray,
    ends: np.ndarray,
    scores: np.ndarray,
    null_score: np.ndarray,
    features: Mapping[str, Iterable[Any]],
    rows: Iterable[Mapping[str, Any]],
    n_best: int,
    null_threshold: float,
    allow_null: bool,
) -> list[dict[str, Any]]:
    """Merges the spans of all windows into one answer per example.

    The null answer follows the official baseline for SQuAD v2 (`write_predictions` in google-research/bert's
    `run_squad.py`): its score is the lowest over the example's windows, and it wins if it beats the best span by
    more than `null_threshold`.

    Args:
        starts: `[W, N]` token positions in W windows, -1 where there is no span, as `top_spans` gives them.
        ends: `[W, N]` token positions, in the same form.
        scores: `[W, N]`, best first.
        null_score: `[W]`, that of position 0.
        features: columns `example` and `offsets` of the W windows; every example has at least one.
        rows: the examples, with `id` and `context`; a window's `example` is a position here.
        n_best: texts to keep per example (the null answer comes on top).
        null_threshold: how far the null answer must be ahead.
        allow_null: whether "no answer" is an answer.

    Returns:
        Per example, in row order: `id`, `prediction_text` ("" for no answer, or if no span is possible), `score`
        (its probability among the n-best, 0.0 if there are none) and `n_best`: a list of `text`, `score`
        (probability) and `start` (character in the context, -1 for no answer), best first and each text once.
    """
    spans: dict[int, list[Span]] = defaultdict(list)
    nulls: dict[int, float] = {}
    windows = zip(features["example"], features["offsets"], starts, ends, scores, null_score.tolist(), strict=True)
    for example, offsets, window_starts, window_ends, window_scores, null in windows:
        nulls[example] = min(null, nulls.get(example, math.inf))
        found = zip(window_scores.tolist(), window_starts.tolist(), window_ends.tolist(), strict=True)
        spans[example] += [(score, offsets[2 * s], offsets[2 * e + 1]) for score, s, e in found if s >= 0]
    return [
        {"id": row["id"]}
        | _answer(row["context"], spans[example], n_best, nulls[example] if allow_null else None, null_threshold)
        for example, row in enumerate(rows)
    ]


def _answer(
    context: str, spans: Iterable[Span], n_best: int, null: float | None, null_threshold: float
) -> dict[str, Any]:
    candidates = _best_texts(context, spans, n_best)
    text, score, _ = candidates[0] if candidates else ("", -math.inf, -1)
    if null is not None:
        text = "" if null - score > null_threshold else text
        candidates = sorted([*candidates, ("", null, -1)], key=lambda candidate: -candidate[1])
    weights = [math.exp(score - candidates[0][1]) for _, score, _ in candidates]
    ranked = [
        {"text": candidate, "score": weight / sum(weights), "start": start}
        for (candidate, _, start), weight in zip(candidates, weights, strict=True)
    ]
    chosen = next((entry["score"] for entry in ranked if entry["text"] == text), 0.0)
    return {"prediction_text": text, "score": chosen, "n_best": ranked}


def _best_texts(context: str, spans: Iterable[Span], n_best: int) -> list[tuple[str, float, int]]:
    """The best-scoring texts, each once, with their score and first character; the earlier one of equal scores."""
    texts: dict[str, tuple[str, float, int]] = {}
    for score, start, end in sorted(spans, key=lambda span: (-span[0], span[1], span[2])):
        text = context[start:end]
        stripped = text.strip()
        if stripped and stripped not in texts:
            texts[stripped] = (stripped, score, start + len(text) - len(text.lstrip()))
        if len(texts) == n_best:
            break
    return list(texts.values())
