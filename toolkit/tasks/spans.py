"""Post-processing of extractive question answering: converts logits to spans, and spans to answers.

Windows come from `windows`: position 0 means "no answer here", and padding is on the right.
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
"""Score, first character and end (exclusive) of a span of the context."""


def context_mask(offsets: Sequence[Sequence[int]], width: int) -> Tensor:
    """Returns a mask of the tokens that belong to the context.

    Args:
        offsets: `offsets` of B windows, as returned by `encode_windows`.
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
    """Removes padding from the softmax over positions, so that the loss does not depend on the batch.

    Args:
        start_logits: `[B, T]`.
        end_logits: `[B, T]`.
        attention_mask: `[B, T]`, 0 on padding.

    Returns:
        Both logits `[B, T]`, with the lowest number of their dtype at padding.
    """
    import torch

    padding = attention_mask == 0
    lowest = torch.finfo(start_logits.dtype).min
    return start_logits.masked_fill(padding, lowest), end_logits.masked_fill(padding, lowest)


def top_spans(
    start_logits: Tensor, end_logits: Tensor, context_mask: Tensor, n_best: int, max_answer_tokens: int
) -> dict[str, Tensor]:
    """Finds each window's exact best spans: start <= end, at most `max_answer_tokens` tokens, context only.

    Args:
        start_logits: `[B, T]`.
        end_logits: `[B, T]`.
        context_mask: `[B, T]` bool.
        n_best: N, number of spans to return per window.
        max_answer_tokens: L, largest number of tokens of a span.

    Returns:
        `starts`, `ends` (`[B, N]` int64 token positions, -1 if there are fewer spans), `scores` (`[B, N]` float32, the
        sum of both logits, best first, -inf if there are fewer) and `null_score` (`[B]` float32, that of position 0).
        Equal scores are ordered by start, then by length.
    """
    import torch
    from torch.nn import functional

    null_score = start_logits[:, 0].float() + end_logits[:, 0].float()
    start = start_logits.float().masked_fill(~context_mask, -math.inf)
    end = end_logits.float().masked_fill(~context_mask, -math.inf)
    width = start.shape[1]
    reach = min(max_answer_tokens, width)
    end = functional.pad(end, (0, reach - 1), value=-math.inf)
    # The N best spans start at the N positions with the best spans, so only these positions are expanded.
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
        starts: `[W, N]` token positions in W windows, -1 without a span, as returned by `top_spans`.
        ends: `[W, N]` token positions, in the same form.
        scores: `[W, N]`, best first.
        null_score: `[W]`, score of position 0.
        features: columns `example` and `offsets` of the W windows; every example has at least one window.
        rows: the examples, with `id` and `context`; a window's `example` is an index of these rows.
        n_best: number of texts to keep per example, in addition to the null answer.
        null_threshold: margin by which the null answer must win.
        allow_null: whether "no answer" is allowed.

    Returns:
        Per example, in row order: `id`, `prediction_text` ("" for no answer, or if no span is possible), `score`
        (its probability among the n-best, 0.0 if there are none) and `n_best`: a list of `text`, `score`
        (probability) and `start` (character in the context, -1 for no answer), best first, without duplicate texts.

    Raises:
        AssertionError: if a span is outside of its window.
    """
    spans: dict[int, list[Span]] = defaultdict(list)
    nulls: dict[int, float] = {}
    windows = zip(features["example"], features["offsets"], starts, ends, scores, null_score.tolist(), strict=True)
    for window, (example, offsets, window_starts, window_ends, window_scores, null) in enumerate(windows):
        nulls[example] = min(null, nulls.get(example, math.inf))
        found = zip(window_scores.tolist(), window_starts.tolist(), window_ends.tolist(), strict=True)
        spans[example] += [_span(window, offsets, *each) for each in found if each[1] >= 0]
    return [
        {"id": row["id"]}
        | _answer(row["context"], spans[example], n_best, nulls[example] if allow_null else None, null_threshold)
        for example, row in enumerate(rows)
    ]


def _span(window: int, offsets: Sequence[int], score: float, start: int, end: int) -> Span:
    if 2 * end >= len(offsets):
        raise AssertionError(
            f"the span of tokens {start} to {end}, score {score}, is outside of window {window}, which has "
            f"{len(offsets) // 2} tokens"
        )
    return score, offsets[2 * start], offsets[2 * end + 1]


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
    """Returns the best texts without duplicates, with score and first character; ties go to the earlier one."""
    texts: dict[str, tuple[str, float, int]] = {}
    for score, start, end in sorted(spans, key=lambda span: (-span[0], span[1], span[2])):
        text = context[start:end]
        stripped = text.strip()
        if stripped and stripped not in texts:
            texts[stripped] = (stripped, score, start + len(text) - len(text.lstrip()))
        if len(texts) == n_best:
            break
    return list(texts.values())
