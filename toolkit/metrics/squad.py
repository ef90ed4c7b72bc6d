"""Exact match and F1 of extractive question answering as an `evaluate.Metric`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import evaluate
from datasets import Features, List, Value

from toolkit.metrics.answers import exact_match, f1
from toolkit.metrics.memory import InMemoryMetric


class Squad(InMemoryMetric):
    """SQuAD v1 and v2 scores as fractions (0 to 1).

    `compute(predictions=[{"id", "prediction_text"}], references=[{"id", "answers": {"text", "answer_start"}}])`
    matches the two by id, in any order, and returns `exact_match` and `f1`. A reference with an empty `text` list
    has no answer; where there is one, `no_answer_f1` (the part of those questions that got an empty prediction)
    and, over the questions with an answer, `has_answer_exact_match` and `has_answer_f1` are there too.

    Raises:
        ValueError: from `compute`, for a missing, unknown or repeated id.
    """

    def _info(self) -> evaluate.MetricInfo:
        answers = {"text": List(Value("string")), "answer_start": List(Value("int64"))}
        return evaluate.MetricInfo(
            description="Exact match and token F1 of question answering, with and without unanswerable questions.",
            citation="Rajpurkar et al. 2016, arXiv 1606.05250; Rajpurkar et al. 2018, arXiv 1806.03822",
            inputs_description="predictions: id, prediction_text; references: id, answers (text, answer_start).",
            features=Features(
                predictions={"id": Value("string"), "prediction_text": Value("string")},
                references={"id": Value("string"), "answers": answers},
            ),
        )

    def _compute(
        self, predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        texts = _by_id(predictions, "predictions", "prediction_text")
        golds = {key: answers["text"] for key, answers in _by_id(references, "references", "answers").items()}
        if texts.keys() != golds.keys():
            missing, unknown = sorted(golds.keys() - texts.keys()), sorted(texts.keys() - golds.keys())
            raise ValueError(
                f"predictions and references must have the same ids: {_some(missing)} without a prediction, "
                f"{_some(unknown)} without a reference"
            )
        scores = {key: (exact_match(texts[key], golds[key]), f1(texts[key], golds[key])) for key in golds}
        answered = [scores[key] for key in golds if golds[key]]
        unanswerable = [scores[key] for key in golds if not golds[key]]
        result = _means(scores.values())
        if unanswerable:
            result |= {"no_answer_f1": _means(unanswerable)["f1"]}
            if answered:
                result |= {f"has_answer_{name}": value for name, value in _means(answered).items()}
        return result


def _by_id(items: Sequence[Mapping[str, Any]], side: str, field: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in items:
        if item["id"] in found:
            raise ValueError(f"{side}: id {item['id']!r} is there more than once; ids must be unique")
        found[item["id"]] = item[field]
    return found


def _means(scores: Iterable[tuple[float, float]]) -> dict[str, float]:
    exact, overlap = zip(*scores, strict=True)
    return {"exact_match": sum(exact) / len(exact), "f1": sum(overlap) / len(overlap)}


def _some(ids: list[str]) -> str:
    return f"{len(ids)} ids" + (f" (the first is {ids[0]!r})" if ids else "")
