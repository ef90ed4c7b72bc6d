"""Post-processing of extractive question answering: converts logits to spans, and spans to answers.

Windows come from `windows`: position 0 means "no answer here", and padding is on the right.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import IGNORE_INDEX, BadRow
from toolkit.base.errors import InputError
from toolkit.modalities.text import encode_once, encode_with_overflow

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


Answers = dict[str, list[Any]]
"""Gold answers of a question: `text` and `answer_start` (characters into the context), one entry per answer."""


def check_answer(row: Mapping[str, Any]) -> tuple[Answers, bool]:
    """Checks the gold answers of a row, equally long lists `text` and `answer_start`, against its context.

    Empty lists mean "no answer".

    Returns:
        The answers without surrounding blanks (starts moved along), and whether there were such blanks.

    Raises:
        BadRow: if an answer is not at its start in the context, or the answers are not of that form.
    """
    answers = row["answers"]
    if not isinstance(answers, Mapping) or not all(
        isinstance(answers.get(key), list) for key in ("text", "answer_start")
    ):
        raise BadRow(f"answers must hold the lists text and answer_start, got {_short(answers)}")
    texts, starts = answers["text"], answers["answer_start"]
    if len(texts) != len(starts):
        raise BadRow(f"answers have {len(texts)} text but {len(starts)} answer_start entries")
    checked = [_check_text(row["context"], text, start) for text, start in zip(texts, starts, strict=True)]
    clean: Answers = {"text": [text for text, _ in checked], "answer_start": [start for _, start in checked]}
    return clean, bool(clean["text"] != texts)


def encode_windows(
    rows: Mapping[str, Sequence[Any]], tokenizer: Any, max_length: int, doc_stride: int, labelled: bool
) -> dict[str, list[Any]]:
    """Tokenises questions with their contexts, in as many windows as each needs; nothing is padded.

    Args:
        rows: columns `question` and `context` and, where `labelled`, `answers` as `check_answer` returns them.
        tokenizer: a fast tokenizer.
        max_length: most tokens in a window.
        doc_stride: tokens of context that neighbouring windows share.
        labelled: whether to label the windows with the first gold answer.

    Returns:
        One entry per window in each of: `input_ids`, `attention_mask`, `token_type_ids` (if the tokenizer gives
        them), `length` (tokens), `example` (the row's position in `rows`), `offsets` (`[start, end, start, end, ...]`:
        the characters of the context that each token stands for, -1 -1 outside the context), `cut_question` (whether
        the question was truncated) and `start`, `end`
        (tokens of the answer, inclusive; 0 0 in windows that do not hold all of it; `IGNORE_INDEX` without labels).

    Raises:
        InputError: if the tokenizer is not fast, `max_length` leaves no room for the context, or the context begins
            at position 0.
    """
    known: dict[str, Any] = {}
    questions = _fit_questions(rows["question"], tokenizer, _question_limit(tokenizer, max_length, doc_stride), known)
    context_first = tokenizer.padding_side == "left"
    pairs = [questions, list(rows["context"])]
    encoded: Any = encode_with_overflow(
        tokenizer,
        *(reversed(pairs) if context_first else pairs),
        known=known,
        truncation="only_first" if context_first else "only_second",
        max_length=max_length,
        stride=doc_stride,
        return_attention_mask=True,
    )
    owners = encoded["overflow_to_sample_mapping"]
    contexts = [_context(window, 0 if context_first else 1) for window in encoded.encodings]
    if context_first and any(context.start == 0 and len(context) for context in contexts):
        raise InputError(
            f"{type(tokenizer).__name__} puts the context first, with no token before it, so position 0, which stands "
            'for "no answer", is a word of the context; use a model whose tokenizer begins with a special token'
        )
    offsets = [_offsets(*pair) for pair in zip(encoded["offset_mapping"], contexts, strict=True)]
    labels = _labels(offsets, contexts, owners, rows["answers"] if labelled else [None] * len(questions))
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {
        **{name: encoded[name] for name in names if name in encoded},
        "length": [len(ids) for ids in encoded["input_ids"]],
        "example": owners,
        "offsets": offsets,
        "cut_question": [questions[owner] != rows["question"][owner].lstrip() for owner in owners],
        "start": [start for start, _ in labels],
        "end": [end for _, end in labels],
    }


def _check_text(context: str, text: Any, start: Any) -> tuple[str, int]:
    if not isinstance(text, str) or not text.strip():
        raise BadRow(f"an answer's text must be text that is not empty, got {_short(text)}")
    if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start < len(context):
        raise BadRow(
            f"answer_start of answer {_short(text)} must be a whole number from 0 to {len(context) - 1} "
            f"(the context has {len(context)} characters), got {_short(start)}"
        )
    stripped = text.strip()
    shifted = start + len(text) - len(text.lstrip())
    # The start may count from the text as it stands, or from the text without its blanks.
    places = (shifted, start) if context.startswith(text, start) else (start, shifted)
    for place in places:
        if context.startswith(stripped, place):
            return stripped, place
    raise BadRow(
        f"answer {_short(text)} is not at answer_start {start} (there: {_short(context[start : start + len(text)])})"
    )


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:76]}...{shown[-1]}"


def _question_limit(tokenizer: Any, max_length: int, doc_stride: int) -> int:
    """Most tokens of a question: a quarter of what is left beside `doc_stride` stays for new context."""
    if not tokenizer.is_fast:
        raise InputError(
            f"{type(tokenizer).__name__} cannot tell which characters a token stands for, which extractive question "
            "answering needs; use a model that has a fast tokenizer"
        )
    special = tokenizer.num_special_tokens_to_add(pair=True)
    room = max_length - special - doc_stride
    if room < 2:
        raise InputError(
            f"task.max_length {max_length} leaves no room for new context in a window: {special} special tokens and "
            f"task.doc_stride {doc_stride} take {special + doc_stride} of it; raise max_length or lower doc_stride"
        )
    return int(room - max(1, room // 4))


def _fit_questions(questions: Sequence[str], tokenizer: Any, limit: int, known: dict[str, Any]) -> list[str]:
    """Returns questions without leading blanks (some are padded with many), cut to `limit` tokens."""
    fitted = [question.lstrip() for question in questions]
    for i, encoding in enumerate(encode_once(tokenizer, fitted, known)):
        # A shorter text may split into other tokens, so it is measured again after each cut.
        while len(encoding) > limit and fitted[i]:
            fitted[i] = fitted[i][: min(encoding.offsets[limit][0], len(fitted[i]) - 1)]
            (encoding,) = encode_once(tokenizer, [fitted[i]], known)
    return fitted


def _context(window: Any, side: int) -> range:
    """Returns the tokens of the context, which is side 0 or 1 of the pair."""
    sides = window.sequence_ids
    first = sides.index(side) if side in sides else 0
    return range(first, first + sides.count(side))


def _offsets(offsets: list[tuple[int, int]], context: range) -> list[int]:
    """Returns the offsets of a window one after the other, -1 outside the context."""
    inside = chain.from_iterable(offsets[context.start : context.stop])
    return [*[-1] * (2 * context.start), *inside, *[-1] * (2 * (len(offsets) - context.stop))]


def _labels(
    offsets: Sequence[Sequence[int]],
    contexts: Sequence[range],
    owners: Sequence[int],
    answers: Sequence[Answers | None],
) -> list[tuple[int, int]]:
    """Returns start and end token of each window's label.

    A tokenizer may drop characters at the answer's edges, so a window must hold the widest stretch of the answer that
    the example's windows have tokens for.
    """
    found = [_overlap(flat, part, answers[own]) for flat, part, own in zip(offsets, contexts, owners, strict=True)]
    widest: dict[int, tuple[int, int]] = {}
    for owner, overlap in zip(owners, found, strict=True):
        if overlap:
            low, high = widest.get(owner, overlap[1])
            widest[owner] = (min(low, overlap[1][0]), max(high, overlap[1][1]))
    labels = []
    for owner, overlap in zip(owners, found, strict=True):
        if answers[owner] is None:
            labels.append((IGNORE_INDEX, IGNORE_INDEX))
        else:
            labels.append(overlap[0] if overlap and overlap[1] == widest[owner] else (0, 0))
    return labels


def _overlap(
    flat: Sequence[int], context: range, answers: Answers | None
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """First and last token that share characters with the first gold answer, and the characters that they span."""
    if not answers or not answers["text"]:
        return None
    start = answers["answer_start"][0]
    end = start + len(answers["text"][0])
    # Characters do not go back from one token to the next.
    first = bisect_right(context, start, key=lambda token: flat[2 * token + 1])
    last = bisect_left(context, end, key=lambda token: flat[2 * token]) - 1
    if first > last:
        return None
    low, high = context[first], context[last]
    return (low, high), (flat[2 * low], flat[2 * high + 1])


Span = tuple[float, int, int]
"""Score, first character and end (exclusive) of a span of the context."""


def context_mask(offsets: Sequence[Sequence[int]], width: int) -> Tensor:
    """Returns a mask of the tokens that belong to the context, `[B, T]` bool, False on padding.

    The `offsets` of B windows are those of `encode_windows`; T is the `width` that they are padded to on the right.
    """
    import numpy as np
    import torch

    mask = np.zeros((len(offsets), width), dtype=bool)
    for row, flat in zip(mask, offsets, strict=True):
        row[: len(flat) // 2] = np.array(flat[::2]) >= 0
    return torch.from_numpy(mask)


def masked_logits(start_logits: Tensor, end_logits: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Removes padding (mask 0) from the softmax over positions, so that the loss does not depend on the batch.

    Returns both logits `[B, T]`, with the lowest number of their dtype at padding.
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
        (its probability among the n-best, 0.0 if there are none), `no_answer_score` (that of the null answer, if it is
        allowed) and `n_best`: a list of `text`, `score`
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
    none = {} if null is None else {"no_answer_score": next(entry["score"] for entry in ranked if not entry["text"])}
    return {"prediction_text": text, "score": chosen, **none, "n_best": ranked}


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
