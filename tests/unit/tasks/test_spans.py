from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from toolkit.tasks.spans import best_answers, context_mask, masked_logits, top_spans

CONTEXT = "one two three four"
OFFSETS = [-1, -1, 0, 3, 4, 7, 8, 13, 14, 18]  # a first token, then one token a word


def every_span(start: list[float], end: list[float], mask: list[bool], longest: int) -> list[tuple[float, int, int]]:
    """Returns all allowed spans by brute force: best first, then earlier, then shorter ones."""
    spans = [
        (np.float32(start[s]) + np.float32(end[e]), s, e)
        for s in range(len(start))
        for e in range(s, min(s + longest, len(end)))
        if mask[s] and mask[e]
    ]
    return sorted(spans, key=lambda span: (-span[0], span[1], span[2]))


@pytest.mark.parametrize("coarse", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize(("n_best", "longest"), [(1, 1), (1, 30), (3, 4), (20, 5), (400, 100)])
def test_top_spans_equals_brute_force(n_best: int, longest: int, coarse: bool) -> None:
    generator = torch.Generator().manual_seed(n_best)
    start, end = (torch.randn(6, 17, generator=generator) for _ in range(2))
    if coarse:
        start, end = start.round(), end.round()
    mask = torch.rand(6, 17, generator=generator) > 0.3
    mask[:, 0] = False
    mask[5] = False
    found = top_spans(start, end, mask, n_best, longest)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "starts": (6, n_best), "ends": (6, n_best), "scores": (6, n_best), "null_score": (6,)
    }  # fmt: skip
    for i in range(6):
        expected = every_span(start[i].tolist(), end[i].tolist(), mask[i].tolist(), longest)[:n_best]
        expected += [(-math.inf, -1, -1)] * (n_best - len(expected))
        got = zip(found["scores"][i].tolist(), found["starts"][i].tolist(), found["ends"][i].tolist(), strict=True)
        assert list(got) == expected
    torch.testing.assert_close(found["null_score"], start[:, 0] + end[:, 0])


def test_top_spans_does_not_depend_on_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    start, end = (torch.randn(2, 9, generator=generator) for _ in range(2))
    mask = torch.tensor([[False, *[True] * 8]] * 2)
    alone = top_spans(start, end, mask, 60, 4)
    padded = top_spans(
        *(torch.nn.functional.pad(logits, (0, 11), value=99.0) for logits in (start, end)),
        torch.nn.functional.pad(mask, (0, 11)), 60, 4,
    )  # fmt: skip
    for name, value in alone.items():
        assert torch.equal(value, padded[name])


def test_top_spans_adds_up_in_float32() -> None:
    logits = torch.tensor([[0.0, 256.0, 1.0]], dtype=torch.bfloat16)
    found = top_spans(logits, logits, torch.tensor([[False, True, True]]), 2, 2)
    assert found["scores"].dtype == torch.float32
    assert found["scores"].tolist() == [[512.0, 257.0]]


def test_context_mask_is_false_on_padding_and_the_question() -> None:
    mask = context_mask([OFFSETS, [-1, -1, 0, 3]], 6)
    assert mask.tolist() == [[False, True, True, True, True, False], [False, True, False, False, False, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masked_logits_take_padding_out_of_the_loss(dtype: torch.dtype) -> None:
    start, end = torch.randn(2, 2, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    attention_mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    masked = masked_logits(start, end, attention_mask)
    for before, after in zip((start, end), masked, strict=True):
        assert after.dtype == dtype
        assert torch.equal(after[0, :3], before[0, :3])
        assert torch.equal(after[0].softmax(0)[:3], before[0, :3].softmax(0))
        assert after.log_softmax(1).isfinite().all()  # also where everything is padding: the row of an empty batch


def answers(windows: list[dict[str, Any]], contexts: list[str], **options: Any) -> list[dict[str, Any]]:
    """Returns `best_answers` for windows given by `example`, `spans` (score, start, end) and `null`."""
    width = max(len(window["spans"]) for window in windows)
    spans = np.array([w["spans"] + [(-math.inf, -1, -1)] * (width - len(w["spans"])) for w in windows]).reshape(
        len(windows), width, 3
    )
    features = {
        "example": [window["example"] for window in windows],
        "offsets": [window.get("offsets", OFFSETS) for window in windows],
    }
    rows = [{"id": f"q{i}", "context": context} for i, context in enumerate(contexts)]
    options = {"n_best": 5, "null_threshold": 0.0, "allow_null": False} | options
    return best_answers(
        spans[..., 1].astype(np.int64), spans[..., 2].astype(np.int64), spans[..., 0].astype(np.float32),
        np.array([window["null"] for window in windows], np.float32), features, rows, **options,
    )  # fmt: skip


def test_windows_of_an_example_are_merged_and_texts_kept_once() -> None:
    second = [-1, -1, 8, 13, 14, 18]
    found = answers(
        [
            {"example": 0, "spans": [(2.0, 1, 1), (1.0, 3, 3)], "null": 0.0},
            {"example": 1, "spans": [(5.0, 4, 4)], "null": 0.0},
            {"example": 0, "spans": [(3.0, 1, 1), (0.0, 1, 2)], "null": 0.0, "offsets": second},
        ],
        [CONTEXT, CONTEXT],
    )
    assert [(answer["id"], answer["prediction_text"]) for answer in found] == [("q0", "three"), ("q1", "four")]
    texts = [(entry["text"], entry["start"]) for entry in found[0]["n_best"]]
    assert texts == [("three", 8), ("one", 0), ("three four", 8)]
    weights = np.exp([3.0, 2.0, 0.0])
    assert [entry["score"] for entry in found[0]["n_best"]] == pytest.approx(list(weights / weights.sum()))
    assert found[0]["score"] == found[0]["n_best"][0]["score"]
    assert found[1]["score"] == 1.0


def test_n_best_counts_different_texts_and_the_order_of_windows_does_not_matter() -> None:
    windows = [
        {"example": 0, "spans": [(2.0, 1, 1), (2.0, 2, 2)], "null": 0.0},
        {"example": 0, "spans": [(2.0, 1, 1), (1.0, 3, 3)], "null": 1.0},
    ]
    forwards, backwards = (answers(order, [CONTEXT], n_best=2) for order in (windows, windows[::-1]))
    assert forwards == backwards
    assert [entry["text"] for entry in forwards[0]["n_best"]] == ["one", "two"]


def test_the_null_score_is_the_lowest_over_windows_and_must_beat_the_threshold() -> None:
    windows = [{"example": 0, "spans": [(1.0, 1, 1)], "null": 9.0}, {"example": 0, "spans": [(0.0, 2, 2)], "null": 3.0}]

    def text(**options: Any) -> str:
        return answers(windows, [CONTEXT], **options)[0]["prediction_text"]

    assert text() == "one"
    assert text(allow_null=True) == ""
    assert text(allow_null=True, null_threshold=1.9) == ""
    assert text(allow_null=True, null_threshold=2.0) == "one"
    assert text(allow_null=True, null_threshold=-100.0) == ""


def test_the_null_answer_is_one_of_the_n_best() -> None:
    window = {"example": 0, "spans": [(1.0, 1, 1), (0.0, 2, 2)], "null": 0.5}
    [answer] = answers([window], [CONTEXT], n_best=2, allow_null=True, null_threshold=-1.0)
    assert [(entry["text"], entry["start"]) for entry in answer["n_best"]] == [("one", 0), ("", -1), ("two", 4)]
    assert sum(entry["score"] for entry in answer["n_best"]) == pytest.approx(1.0)
    assert answer["prediction_text"] == ""
    assert answer["score"] == answer["no_answer_score"] == answer["n_best"][1]["score"]
    [answer] = answers([window], [CONTEXT], n_best=2, allow_null=True)
    assert (answer["prediction_text"], answer["no_answer_score"]) == ("one", answer["n_best"][1]["score"])


def test_an_example_without_spans_has_an_empty_answer() -> None:
    windows = [{"example": 0, "spans": [(1.0, 1, 1)], "null": 0.0}, {"example": 1, "spans": [], "null": -2.0}]
    empty = {"id": "q1", "prediction_text": ""}
    assert answers(windows, [CONTEXT, CONTEXT])[1] == empty | {"score": 0.0, "n_best": []}
    null = {"text": "", "score": 1.0, "start": -1}
    assert answers(windows, [CONTEXT, CONTEXT], allow_null=True)[1] == empty | {
        "score": 1.0,
        "no_answer_score": 1.0,
        "n_best": [null],
    }


def test_blanks_around_an_answer_are_left_out() -> None:
    offsets = [-1, -1, 0, 3, 3, 7, 7, 8]  # tokens that hold the blank before their word; a token of one blank
    window = {"example": 0, "spans": [(4.0, 3, 3), (3.0, 2, 3)], "null": 0.0, "offsets": offsets}
    [answer] = answers([window], [CONTEXT])
    assert [(entry["text"], entry["start"]) for entry in answer["n_best"]] == [("two", 4)]


def test_answers_can_be_written_as_json() -> None:
    [answer] = answers([{"example": 0, "spans": [(1.0, 1, 1)], "null": 0.0}], [CONTEXT], allow_null=True)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_a_span_that_its_window_cannot_have_is_an_error() -> None:
    windows = [{"example": 0, "spans": [(1.0, 1, 1)], "null": 0.0}, {"example": 0, "spans": [(2.0, 3, 5)], "null": 0.0}]
    with pytest.raises(AssertionError, match=r"tokens 3 to 5, score 2.0, is outside of window 1, which has 5 tokens"):
        answers(windows, [CONTEXT])
