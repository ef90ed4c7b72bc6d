"""Promises on synthetic sets whose true probabilities are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from toolkit.base.errors import RunError
from toolkit.tasks.heads import HEADS, Head
from toolkit.tasks.heads.decisions import RULES, Promise, calibrate, fit

SETS, ROWS = 20, 500


def head(kind: str, labels: str = "abc") -> Head:
    return HEADS[kind](SimpleNamespace(labels=list(labels), label_map={}, scale_targets=False))


def classes(seed: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Returns the true probabilities of three classes, and classes drawn from them."""
    random = np.random.default_rng(seed)
    odds = np.exp(3 * random.normal(size=(rows, 3)))
    scores = odds / odds.sum(1, keepdims=True)
    return scores, np.minimum((random.random((rows, 1)) > scores.cumsum(1)).sum(1), 2)


def labels(seed: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    scores = 1 / (1 + np.exp(-4 * random.normal(size=(rows, 3)) + [0, 1, 3]))  # the last one is rare
    return scores, (random.random(scores.shape) < scores).astype(float)


def overconfident(scores: np.ndarray) -> np.ndarray:
    sharp = scores**3
    return (sharp / sharp.sum(1, keepdims=True)).astype(np.float32)


@pytest.mark.fast(1)
@pytest.mark.parametrize("value", [0.85, 0.9, 0.95])
def test_the_precision_of_decided_rows_is_kept_as_often_as_promised(value: float) -> None:
    many, decided, kept = classes(10**6, 50_000), 0, 0
    for seed in range(SETS):
        scores, targets = classes(seed)
        found = fit(head("single_label_classification"), (overconfident(scores), targets), Promise("precision", value),
                    strict=False)  # fmt: skip
        least = found["thresholds"][""]
        after = head("single_label_classification").tempered(overconfident(many[0]), found["temperature"])
        sure = after.max(1) >= (2 if least is None else least)
        decided += bool(sure.any())
        kept += not sure.any() or many[0].max(1)[sure].mean() >= value
    assert kept >= 0.95 * SETS
    assert decided >= SETS / 4  # it promises something


@pytest.mark.parametrize("rule", ["precision", "recall"])
def test_each_label_keeps_its_promise_as_often_as_promised(rule: str) -> None:
    many, kept, found = labels(10**6, 50_000)[0], 0, 0
    for seed in range(SETS):
        scores, targets = labels(seed)
        for one, true, truth in zip(scores.T, targets.T == 1, many.T, strict=True):
            threshold, _ = RULES[rule](one, true, Promise(rule, 0.85))
            if threshold is not None:
                chosen = truth >= threshold
                whole = truth[chosen].sum() / (chosen.sum() if rule == "precision" else truth.sum())
                kept, found = kept + (whole >= 0.85), found + 1
    assert found > 2 * SETS
    assert kept >= 0.95 * found


def test_a_looser_threshold_than_the_found_one_breaks_the_promise_more_often() -> None:
    """The search is not idle: it goes as far as the rows allow."""
    scores, targets = classes(1, 5000)
    right = scores.argmax(1) == targets
    threshold, best = RULES["precision"](scores.max(1), right, Promise("precision", 0.9))
    assert best > 0.9
    assert threshold is not None
    assert 0.9 <= right[scores.max(1) >= threshold].mean() < 0.93


def test_a_threshold_is_between_scores_so_that_rounding_changes_nothing() -> None:
    scores, targets = classes(1)
    threshold, _ = RULES["precision"](scores.max(1), scores.argmax(1) == targets, Promise("precision", 0.85))
    assert threshold is not None
    assert np.abs(scores.max(1) - threshold).min() > 1e-7


@pytest.mark.slow
def test_the_f1_of_the_best_threshold_is_the_largest() -> None:
    from sklearn.metrics import f1_score

    scores, targets = labels(3)
    threshold, _ = RULES["best_f1"](scores[:, 0], targets[:, 0] == 1, Promise("best_f1"))
    every = [f1_score(targets[:, 0], scores[:, 0] >= each) for each in scores[:, 0]]
    assert f1_score(targets[:, 0], scores[:, 0] >= threshold) == pytest.approx(max(every))


def table(sections: list[Any], title: str) -> dict[Any, list[Any]]:
    (found,) = (section.blocks[0] for section in sections if section.title.startswith(title))
    return {row[0]: list(row[1:]) for row in found.rows}


@pytest.mark.parametrize("kind", ["single_label_classification", "multi_label_classification"])
def test_an_overconfident_model_is_less_so_on_other_rows(kind: str) -> None:
    scores, targets = classes(1) if kind.startswith("single") else labels(1)
    sharp = overconfident(scores) if kind.startswith("single") else scores**3 / (scores**3 + (1 - scores) ** 3)
    halves = {name: (sharp[part], targets[part]) for name, part in {"a": slice(250), "b": slice(250, None)}.items()}
    found, sections = calibrate(head(kind), halves, Promise())
    assert 2 < found["temperature"] < 4.5
    for name, (before, after) in table(sections, "Probabilities").items():
        assert after < before, name


def test_a_temperature_is_that_by_which_logits_were_multiplied() -> None:
    scores, targets = classes(5, 20_000)
    found = fit(head("single_label_classification"), (overconfident(scores), targets), Promise())
    assert found["temperature"] == pytest.approx(3, rel=0.05)


def test_sets_contain_the_true_class_as_often_as_promised() -> None:
    many, shares = classes(10**6, 50_000), []
    for seed in range(SETS):
        found = fit(head("single_label_classification"), classes(seed), Promise(sets=0.9))
        after = head("single_label_classification").tempered(many[0], found["temperature"])
        true = after[np.arange(len(after)), many[1]]
        shares.append((true >= 1 - found["misses"][""]).mean())
    assert 0.895 < np.mean(shares) < 0.91


def test_intervals_contain_the_number_as_often_as_promised_and_unknown_ones_do_not_count() -> None:
    random, shares = np.random.default_rng(0), []
    for _ in range(SETS):
        scores = random.normal(size=(200, 2))
        targets = scores + random.standard_t(3, size=scores.shape) * [1, 10]
        targets[::4, 0] = np.nan
        found = fit(head("regression", "ab"), (scores, targets), Promise(sets=0.8))
        errors = np.abs(random.standard_t(3, size=(20_000, 2)) * [1, 10])
        shares.append((errors <= [*found["misses"].values()]).mean(0))
    assert np.mean(shares, axis=0) == pytest.approx([0.8, 0.8], abs=0.02)


def test_too_few_rows_for_sets_say_what_they_can_show() -> None:
    scores, targets = classes(1, 30)
    with pytest.raises(RunError, match=r"--sets 0.99: 30 rows can show at most 0.9677"):
        fit(head("single_label_classification"), (scores, targets), Promise(sets=0.99))


def test_the_best_that_can_be_kept_can_be_kept() -> None:
    scores, targets = classes(1, 200)
    with pytest.raises(RunError, match="the best that can be kept is") as raised:
        fit(head("single_label_classification"), (scores, targets), Promise("precision", 0.99))
    best = float(str(raised.value).split("kept is ")[1].split(". ")[0])
    assert fit(head("single_label_classification"), (scores, targets), Promise("precision", best - 1e-3))["thresholds"][
        ""
    ]
