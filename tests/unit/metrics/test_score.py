"""Intervals against published and exact values, and the scores of constant answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from toolkit.metrics.classification import CLASSIFICATION, classification_quality, classification_scores
from toolkit.metrics.entities import entity_quality
from toolkit.metrics.generation import translation_quality, translation_scores
from toolkit.metrics.intervals import FEWEST_EXAMPLES, Interval, bootstrap, wilson
from toolkit.metrics.likelihood import likelihood_quality, likelihood_scores
from toolkit.metrics.multi_label import multi_label_quality, multi_label_scores
from toolkit.metrics.regression import regression_quality, regression_scores
from toolkit.metrics.score import Quality
from toolkit.metrics.squad import squad_quality, squad_scores


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998 (Statistics in Medicine 17), table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilsons_interval_has_the_published_values(right: int, count: int, low: float, high: float) -> None:
    assert wilson(right / count, count) == pytest.approx((low, high), abs=5e-5)


def mean(sums: np.ndarray) -> dict[str, np.ndarray]:
    return {"mean": sums[:, 0] / 400}


def test_a_bootstrapped_mean_agrees_with_the_normal_interval_and_repeats() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, size=(400, 1))
    found = bootstrap(values, mean)["mean"]
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)
    assert bootstrap(values, mean)["mean"] == found


def test_counted_rows_are_drawn_like_repeated_ones() -> None:
    repeated = bootstrap(np.repeat([[0.0], [1.0]], [300, 100], axis=0), mean)["mean"]
    counted = bootstrap([[0.0], [1.0]], mean, counts=[300, 100])["mean"]
    assert counted == pytest.approx(repeated, abs=0.01)
    assert counted == pytest.approx(wilson(0.25, 400), abs=0.01)


def test_few_examples_have_no_bootstrapped_interval() -> None:
    assert bootstrap(np.zeros((FEWEST_EXAMPLES - 1, 1)), mean) == {}


LABELS = ["bad", "fair", "good"]


def classified(shares: tuple[float, ...], right: float, size: int = 251) -> tuple[np.ndarray, np.ndarray]:
    """Returns predictions of random classes and the classes."""
    random = np.random.default_rng(1)
    true = random.choice(3, size=size, p=shares)
    return np.where(random.random(size) < right, true, random.integers(3, size=size)), true


def assert_covers(quality: Quality, scores: dict[str, float], most: float) -> None:
    """Asserts that each interval is narrow and contains its score."""
    for name, (low, high) in quality.intervals.items():
        assert low < scores[name] < high, name
        assert high - low < most, name


def test_uneven_classes_ask_for_macro_f1() -> None:
    predicted, true = classified((0.05, 0.21, 0.74), right=0.9)
    quality, scores = (
        function(predicted, true, LABELS) for function in (classification_quality, classification_scores)
    )
    assert set(quality.intervals) == {score.name for score in CLASSIFICATION}
    assert_covers(quality, scores, 0.2)
    share = float((true == 2).mean())
    assert quality.baseline["accuracy"] == share
    assert quality.baseline["f1_macro"] == pytest.approx(2 * share / (1 + share) / 3)
    assert (quality.constant, quality.trusted) == ("always 'good'", "f1_macro")
    assert quality.hints == (f"{share:.0%} of the examples are 'good': trust f1_macro, in which every class counts "
                             "equally.",)  # fmt: skip


def test_even_classes_trust_accuracy_and_chance_is_called_by_its_name() -> None:
    predicted, true = classified((0.3, 0.3, 0.4), right=0.9)
    quality = classification_quality(predicted, true, LABELS)
    assert (quality.trusted, quality.hints) == ("accuracy", ())
    predicted, true = classified((0.3, 0.3, 0.4), right=0.05)
    (hint,) = classification_quality(predicted, true, LABELS).hints
    assert hint == "On 251 examples, this accuracy is not clearly better than always answering 'good'."


def test_a_score_below_that_of_a_constant_answer_is_called_worse() -> None:
    true = np.array([0, 1, 2, 2, 2] * 20)
    (hint,) = classification_quality(np.zeros_like(true), true, LABELS).hints
    assert hint == "On 100 examples, this accuracy is clearly worse than always answering 'good'."
    labels = np.eye(3)[true]
    (hint,) = multi_label_quality(1 - labels, labels, LABELS).hints
    assert hint == "On 100 examples, this f1_micro is clearly worse than always answering 'good'."
    only = np.full(20, 2)  # nothing is better than the constant answer, but much is worse
    assert len(classification_quality(only, only, LABELS).hints) == 1
    assert (
        classification_quality(only - 1, only, LABELS).hints[-1].startswith("On 20 examples, this accuracy is clearly")
    )
    one = np.full((30, 1), 4.0)
    assert regression_quality(one, one, ["value"]).hints == ()


@pytest.mark.parametrize(
    ("true", "trusted"), [([2] * 12, "accuracy"), ([0] * 3 + [2] * 9, "mcc"), ([0] * 6 + [2] * 6, "accuracy")]
)
def test_absent_classes_are_named_with_the_score_that_a_perfect_model_can_reach(true: list[int], trusted: str) -> None:
    quality, scores = (function(true, true, LABELS) for function in (classification_quality, classification_scores))
    present = len(set(true))
    assert (quality.trusted, scores[trusted]) == (trusted, 1.0)
    absent = "'bad', 'fair'" if present == 1 else "'fair'"
    assert quality.hints == (
        f"No example here is of {absent} ({3 - present} of 3 classes): macro averages count them as 0, so that even a "
        f"model without errors gets {scores['f1_macro']:.3g}. Trust {trusted}, or evaluate rows of all classes.",
    )
    labels = np.eye(3)[true]
    several = multi_label_quality(labels, labels, LABELS).hints
    assert several == (quality.hints[0].replace("classes", "labels").replace(f"Trust {trusted}", "Trust f1_micro"),)
    tags = [[f"B-{LABELS[each]}"] for each in true]
    assert entity_quality(tags, tags, LABELS).hints[0].startswith(f"No example here is of {absent} (")


def test_no_interval_ends_in_rounding_errors() -> None:
    assert all(wilson(0.0, count).low == 0.0 and wilson(1.0, count).high == 1.0 for count in range(1, 300))


def test_figures_keep_the_names_of_their_scores() -> None:
    quality = Quality({"f1": Interval(0.25, 0.5)}, "always 'a'", {"f1": 0.125})
    assert quality.figures("eval_") == {"eval_f1_low": 0.25, "eval_f1_high": 0.5, "eval_f1_baseline": 0.125}


def test_regression_is_compared_with_the_mean() -> None:
    random = np.random.default_rng(2)
    true = random.normal(10, 2, size=(300, 1))
    predicted = true + random.normal(0, 1, size=(300, 1))
    quality, scores = (function(predicted, true, ["value"]) for function in (regression_quality, regression_scores))
    assert_covers(quality, scores, 0.4)
    assert set(quality.intervals) == {"mse", "rmse", "mae"}
    assert quality.constant == f"always the mean ({true.mean():.4g})"
    assert quality.baseline["rmse"] == pytest.approx(true.std())
    assert (quality.baseline["r2"], quality.hints) == (0.0, ())
    (hint,) = regression_quality(np.zeros_like(true), true, ["value"]).hints
    assert hint == "On 300 examples, this rmse is clearly worse than always answering the mean."
    noise = random.normal(0, true.std(), size=(300, 1))
    (hint,) = regression_quality(true + noise, true, ["value"]).hints
    assert hint == "On 300 examples, this rmse is not clearly better than always answering the mean."


def test_unknown_targets_are_not_counted() -> None:
    true = np.array([[1.0, math.nan], [2.0, 5.0], [3.0, 7.0]] * 10)
    quality = regression_quality(true + 1, true, ["a", "b"])
    assert quality.intervals["rmse"] == pytest.approx((1.0, 1.0))
    assert quality.constant == "always the mean of each number"
    labels = np.array([[1.0, math.nan], [1.0, 0.0], [0.0, 1.0]] * 10)
    quality = multi_label_quality(np.nan_to_num(labels), labels, ["a", "b"])
    assert quality.intervals["f1_micro"] == pytest.approx((1.0, 1.0))
    assert quality.intervals["subset_accuracy"] == wilson(1.0, 20)


def test_labels_are_compared_with_the_most_frequent_set() -> None:
    random = np.random.default_rng(3)
    true = (random.random((200, 3)) < (0.1, 0.6, 0.5)).astype(float)
    predicted = np.where(random.random((200, 3)) < 0.1, 1 - true, true)
    quality, scores = (function(predicted, true, LABELS) for function in (multi_label_quality, multi_label_scores))
    assert_covers(quality, scores, 0.2)
    assert quality.constant in ("always 'fair, good'", "always 'fair'")
    assert quality.baseline["subset_accuracy"] < scores["subset_accuracy"]


def test_answers_documents_and_translations_have_intervals() -> None:
    texts, answers = ["red fox", "blue fox", "x"] * 20, [["the red fox"]] * 60
    assert_covers(squad_quality(texts, answers), squad_scores(texts, answers), 0.3)
    random = np.random.default_rng(4)
    tokens = random.integers(20, 40, size=80)
    losses, correct = tokens * random.uniform(1, 2, size=80), tokens // 2
    scores = likelihood_scores(losses.sum(), tokens.sum(), correct.sum(), None)
    assert_covers(likelihood_quality(losses, tokens, correct), scores, 0.8)
    texts = [f"the {['cat', 'dog', 'fox'][i % 3]} sat on a mat in house {i}" for i in range(60)]
    references = [f"the {['cat', 'dog'][i % 2]} sat on the mat in house {i}" for i in range(60)]
    quality = translation_quality(texts, references, "13a")
    assert quality.intervals.keys() == {"bleu", "chrf"}
    assert_covers(quality, translation_scores(texts, references, "13a"), 15)


def test_the_private_functions_of_sacrebleu_are_there() -> None:
    metric = BLEU()
    assert callable(metric._extract_corpus_statistics)
    assert callable(metric._compute_score_from_stats)
