"""Scores as text: the trusted one first, with its interval and baseline."""

from __future__ import annotations

from types import SimpleNamespace

from toolkit.api.batch import Description
from toolkit.metrics.intervals import Interval
from toolkit.metrics.score import Quality, Score, per_class_scores
from toolkit.report.scores import Scores, described

TASK = SimpleNamespace(
    best_metric="accuracy", scores=(Score("accuracy"), Score("f1_macro"), *per_class_scores(["f1"], ["a"]))
)
METRICS = {"loss": 0.5, "accuracy": 0.92434, "f1_macro": 0.75, "f1/a": 0.5}


def test_uneven_classes_show_macro_f1_first() -> None:
    quality = Quality(
        {"accuracy": Interval(0.885, 0.951), "f1_macro": Interval(0.7, 0.8)},
        "always 'positive'", {"accuracy": 0.74, "f1_macro": 0.2836}, "f1_macro", ("Trust it.",),
    )  # fmt: skip
    scores = Scores(TASK, {"validation": METRICS, "test": METRICS}, {"validation": quality})
    assert scores.lines() == {
        "eval_f1_macro": "0.75 (0.7 to 0.8; always 'positive': 0.2836)",
        "eval_accuracy": "0.9243 (0.885 to 0.951; always 'positive': 0.74)",
        "eval_loss": "0.5",
        "test_accuracy": "0.9243",
        "test_f1_macro": "0.75",
        "test_loss": "0.5",
    }
    header, rows = scores.table()
    assert header == ["score", "value", "95 % interval", "always 'positive'"]
    assert rows[1] == ["eval_accuracy", "0.9243", "0.885 to 0.951", "0.74"]
    assert scores.hints == ["Trust it."]
    assert scores.figures["eval_f1_macro_baseline"] == 0.2836


def test_a_task_without_quality_has_plain_scores() -> None:
    scores = Scores(TASK, {"validation": METRICS}, {})
    assert scores.table() == (
        ["score", "value"],
        [["eval_accuracy", "0.9243"], ["eval_f1_macro", "0.75"], ["eval_loss", "0.5"]],
    )
    assert (scores.hints, scores.figures) == ([], {})


def test_aligned_words_are_below_each_other_in_the_terminal() -> None:
    words = [
        ("equal", "one", "one"),
        ("substitution", "too", "three"),
        ("insertion", "uh", ""),
        ("deletion", "", "six"),
    ]
    assert described(Description("clip.wav", "one too uh", "one three six", words)) == (
        "clip.wav\n    predicted one too   uh ***\n    expected  one three ** six"
    )
    assert described(Description("clip.wav", "one", "one", words[:1])) == "clip.wav\n    -> one, expected one"
    predicted, expected = described(Description("", "", "", words * 20)).splitlines()[1:]
    assert predicted.startswith("    predicted one too   uh *** one too")
    assert len(predicted) == len(expected) <= 80
    assert predicted.endswith("…")
