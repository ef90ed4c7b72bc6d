"""Heads and samplers of reviews in complete runs: training does not depend on the split of a window."""

from __future__ import annotations

import json

import pytest
from runs import SGD, assert_splits_agree, lines, train

from toolkit.base.errors import ConfigError
from toolkit.tasks.heads.single_label import SingleLabel

LABELS = {
    "single_label_classification": ["a", "b", "b", "b", "c"],
    "multi_label_classification": [["a"], {"a": True, "b": None}, [], {"c": True, "a": None, "b": None}, ["b", "c"]],
    "regression": [[-100.0, 1.0], [2.5, None], [None, 0.0], [1.0, 1.0], [3.0, 4.0]],
}
FOCUS = ("task.focal_gamma=2", "task.label_smoothing_factor=0.1")
STEPS = (*SGD, "train.learning_rate=0.05", "train.num_train_epochs=2")


@pytest.fixture
def rows(tmp_path):
    """Writes 21 texts of uneven length with labels for a problem type, and returns the settings that read them."""

    def write(kind: str) -> tuple[str, ...]:
        labels = LABELS[kind]
        texts = [{"text": "fine words " * (1 + i % 7), "label": labels[i % len(labels)]} for i in range(21)]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, texts)))
        return (
            f"data.train_file={tmp_path / 'rows.jsonl'}", "data.validation_file=null", "data.validation_split=0",
            "data.max_eval_samples=null", "eval.eval_steps=null", f"task.problem_type={kind}",
        )  # fmt: skip

    return write


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("kind", "settings", "known"),
    [
        ("single_label_classification", (*FOCUS, "task.class_weights=balanced"), None),  # items are weights
        ("multi_label_classification", (), 4 * 12 + 3),
        ("multi_label_classification", FOCUS, 4 * 12 + 3),
        ("regression", (), 4 * 8 + 2),
        ("regression", ("task.scale_targets=true",), 4 * 8 + 2),
    ],
)
def test_every_split_of_a_window_trains_a_head_alike(kind, settings, known, rows, tmp_path):
    assert_splits_agree("reviews", tmp_path, *STEPS, *rows(kind), *settings)
    if known is not None:
        assert sum(line["num_items"] for line in lines(tmp_path / "8x1", "loss")) == 2 * known


def test_balanced_epochs_have_as_many_of_each_class_over_every_split(rows, tmp_path, monkeypatch):
    seen, count = [], SingleLabel.count_items
    monkeypatch.setattr(
        SingleLabel, "count_items", lambda head, labels: seen.extend(labels.tolist()) or count(head, labels)
    )
    balanced = "train.train_sampling_strategy=balanced"
    train("reviews", tmp_path / "run", *rows("single_label_classification"), balanced, "train.num_train_epochs=1",
          "train.per_device_train_batch_size=7", "train.gradient_accumulation_steps=1")  # fmt: skip
    counted = [label for label in seen if label >= 0]
    assert {label: counted.count(label) for label in set(counted)} == {0: 7, 1: 7, 2: 7}
    assert_splits_agree("reviews", tmp_path, *STEPS, *rows("single_label_classification"), balanced)


def test_rows_without_classes_cannot_be_balanced(rows, tmp_path):
    with pytest.raises(ConfigError, match=r"received 'balanced', .*no classes"):
        train("reviews", tmp_path / "run", *rows("regression"), "train.train_sampling_strategy=balanced")
