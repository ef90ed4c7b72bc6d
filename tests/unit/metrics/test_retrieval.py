"""Scores of rankings, computed by hand; tests/recipes/test_embeddings.py compares them with sentence-transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from toolkit.metrics.retrieval import (
    correlation_quality,
    correlations,
    grouped_ranks,
    ranks_of,
    retrieval_quality,
    retrieval_scores,
)


def test_scores_are_means_over_queries():
    found = retrieval_scores([[1, 4], [11], []])
    ideal = 1 + 1 / math.log2(3)
    assert found == pytest.approx({
        "recall_at_1": 0.5 / 3, "recall_at_5": 1 / 3, "recall_at_10": 1 / 3, "mrr_at_10": 1 / 3,
        "ndcg_at_10": (1 + 1 / math.log2(5)) / ideal / 3, "map": ((1 + 2 / 4) / 2 + 1 / 11) / 3,
    })  # fmt: skip
    assert set(retrieval_scores([]).values()) == {0.0}


def test_intervals_are_over_queries():
    ranks = [[1 + number % 3] for number in range(30)]
    found, value = retrieval_quality(ranks).intervals["mrr_at_10"], retrieval_scores(ranks)["mrr_at_10"]
    assert found.low < value < found.high
    assert not retrieval_quality(ranks[:9]).intervals


def test_of_equally_good_documents_earlier_ones_come_first(monkeypatch):
    monkeypatch.setattr("toolkit.metrics.retrieval.CHUNK", 4)  # one query at a time
    scores = np.array([[1.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert ranks_of([[2, 0], [3]], 4, lambda part: scores[part]) == ([[2, 3], [4]], [1, 0])


def test_groups_with_both_kinds_of_rows_are_ranked():
    groups, answers = ["a", "b", "a", "a", "c", "c", "b"], [True, True, False, True, False, False, True]
    assert grouped_ranks(groups, [0.1, 0.2, 0.3, 0.9, 0.5, 0.6, 0.1], answers) == [[1, 3]]


def test_correlations_are_those_of_scipy():
    from scipy.stats import pearsonr, spearmanr

    random = np.random.default_rng(0)
    one, other = random.integers(0, 5, 40), random.normal(size=40)
    found = correlations(one, other)
    assert found == pytest.approx(
        {"spearman": spearmanr(one, other).statistic, "pearson": pearsonr(one, other).statistic}
    )
    ends = correlation_quality(one, other).intervals["spearman"]
    assert ends.low < found["spearman"] < ends.high
    assert correlations([1, 1], [1, 2]) == {"spearman": 0.0, "pearson": 0.0}
