"""Heads and samplers of reviews in complete runs: training does not depend on the split of a window."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pair_runs
import pytest
import torch
from commands import run_command
from exports import assert_equal_answers, exported, write_rows
from launching import fork
from runs import FLOAT64, ROOT, SGD, assert_splits_agree, lines, train, weights
from tolerances import float32_tolerance
from transformers import AutoTokenizer

from toolkit.base.errors import ConfigError, DataError
from toolkit.modalities.text import POOLINGS
from toolkit.recipe import load_task_type
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
        texts = [
            {"text": "fine words " * (1 + i % 7), "label": labels[i % len(labels)], "weight": 1 + i % 3}
            for i in range(21)
        ]
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
        ("single_label_classification", ("task.class_weights={b: 3.0}", "data.columns.weight=weight"), None),
        ("multi_label_classification", ("task.class_weights=balanced", "data.columns.weight=weight"), None),
        ("regression", ("data.columns.weight=weight", "task.long_texts=windows", "task.max_length=12"), None),
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


def test_a_row_that_weighs_two_is_a_row_twice(rows, tmp_path):
    plain = [{"text": f"word{i} fine", "label": "ab"[i % 2], "weight": 1.0} for i in range(6)]
    twice = [{**plain[0], "weight": 1.0}, *plain]
    heavy = [{**plain[0], "weight": 2.0}, *plain[1:]]
    for name, content in (("twice", twice), ("heavy", heavy)):
        with (tmp_path / f"{name}.csv").open("w") as file:
            writer = csv.DictWriter(file, ["text", "label", "weight"])
            writer.writeheader()
            writer.writerows(content)
        train("reviews", tmp_path / name, *SGD, "train.max_steps=1", "train.per_device_train_batch_size=7",
              "train.gradient_accumulation_steps=1", f"data.train_file={tmp_path / f'{name}.csv'}",
              f"data.validation_file={tmp_path / 'twice.csv'}", "data.validation_split=0",
              "data.columns.weight=weight")  # fmt: skip
    one, other = (lines(tmp_path / name, "loss")[0] for name in ("twice", "heavy"))
    assert one["num_items"] == other["num_items"] == 7
    assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-5)
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_a_column_named_weight_is_a_weight_only_if_asked(rows, tmp_path):
    settings = (*SGD, "train.max_steps=1", *rows("single_label_classification"))
    train("reviews", tmp_path / "run", *settings)
    assert lines(tmp_path / "run", "loss")[0]["num_items"] == 16
    (tmp_path / "rows.jsonl").write_text('{"text": "a b", "label": "x", "weight": -1}\n' * 3)
    with pytest.raises(DataError, match="'weight' holds -1, not a positive number"):
        train("reviews", tmp_path / "other", *settings, "data.columns.weight=weight")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("task.class_weights={d: 2.0}",), "no label is named 'd'"),
        (("task.class_weights={a: 2.0, bb: 2.0}", "task.labels=[a, b, c]"), "'bb', which is not in task.labels"),
        (("task.class_weights={a: -2.0}",), "class_weights"),
        (("task.doc_stride=5",), "no effect with task.long_texts .truncate."),
        (("task.doc_stride=200", "task.long_texts=windows"), "at most half of task.max_length, 32"),
    ],
)
def test_weights_and_windows_that_do_not_fit_are_rejected(settings, message, rows, tmp_path):
    with pytest.raises((ConfigError, DataError), match=message):
        train("reviews", tmp_path / "run", *rows("single_label_classification"), "task.max_length=64", *settings)


WINDOWS = ("task.long_texts=windows", "task.max_length=12", "data.columns.weight=weight")
PAIRS = (*WINDOWS, "data.columns.text_pair=label", "task.truncation=only_first")


@pytest.mark.parametrize("settings", [WINDOWS, PAIRS])
def test_windows_are_trained_alike_without_padding(settings, rows, tmp_path):
    for unpadded in ("true", "false"):
        train("reviews", tmp_path / unpadded, *STEPS, *rows("single_label_classification"), *settings,
              f"train.unpadded={unpadded}", "task.pooling=max", double=True)  # fmt: skip
    found, expected = (weights(tmp_path / unpadded) for unpadded in ("true", "false"))
    assert max(float((found[name] - expected[name]).abs().max()) for name in found) < FLOAT64


@pytest.mark.distributed
@pytest.mark.parametrize("engine", ["loop", "trainer"])
@pytest.mark.parametrize("settings", [WINDOWS, PAIRS])
def test_two_processes_train_windows_as_one_does(settings, engine, rows, tmp_path):
    own = (*STEPS, *rows("single_label_classification"), *settings, f"engine={engine}")
    splits = {name: [f"train.per_device_train_batch_size={name[0]}", f"train.gradient_accumulation_steps={name[2]}"]
              for name in ("8x1", "2x2")}  # fmt: skip
    train("reviews", tmp_path / "8x1", *own, *splits["8x1"], double=True)
    fork([Path(pair_runs.__file__), tmp_path / "2x2", *own, *splits["2x2"]], 2)
    found, expected = weights(tmp_path / "2x2"), weights(tmp_path / "8x1")
    assert max(float((found[name] - expected[name]).abs().max()) for name in found) < FLOAT64


def test_a_pair_is_read_in_windows_of_the_text_that_is_chosen(rows, tmp_path, caplog):
    settings = (*SGD, "train.max_steps=1", *rows("single_label_classification"), *WINDOWS)
    pair = ("data.columns.text_pair=label", "train.per_device_train_batch_size=21")
    with pytest.raises(DataError, match="received longest_first, expected only_first or only_second"):
        train("reviews", tmp_path / "run", *settings, *pair)
    train("reviews", tmp_path / "run", *settings, *pair, "task.truncation=only_first")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    whole = [len(tokenizer("fine words " * (1 + i % 7), "abbbc"[i % 5])["input_ids"]) for i in range(21)]
    assert f"{sum(count > 12 for count in whole)} of 21 texts have more than 12 tokens" in caplog.text
    assert f"truncated, {sum(min(count, 12) for count in whole) / sum(whole):.1%} of the tokens" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_label_in_the_last_third_is_learned_in_windows_alone(pooling, tmp_path):
    content = ["text,label"]
    for i in range(96):
        filler = " ".join(random.Random(i).choices("abcdefghijklmnop", k=14))
        content.append(f"{filler} {'good' if i % 2 else 'bad'} {filler[:7]},{'yes' if i % 2 else 'no'}")
    (tmp_path / "rows.csv").write_text("\n".join(content))
    settings = ("train.num_train_epochs=20", "train.learning_rate=3e-3", f"data.train_file={tmp_path / 'rows.csv'}",
                "data.validation_file=null", "data.validation_split=0.25", "task.max_length=14",
                "eval.eval_steps=null")  # fmt: skip
    train("reviews", tmp_path / "cut", *settings)
    train("reviews", tmp_path / "whole", *settings, "task.long_texts=windows", f"task.pooling={pooling}")
    cut, whole = (lines(tmp_path / name, "eval_loss")[-1]["eval_accuracy"] for name in ("cut", "whole"))
    assert cut < 0.8
    assert whole > 0.95
    assert "truncated" in (tmp_path / "whole" / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "pooling"), [
    ("single_label_classification", "max"), ("multi_label_classification", "mean"), ("regression", "mean"),
])  # fmt: skip
def test_exports_read_windows_too(kind, pooling, rows, tmp_path):
    train("reviews", tmp_path / "run", *SGD, "train.max_steps=2", *rows(kind), "task.long_texts=windows",
          "task.max_length=8", f"task.pooling={pooling}")  # fmt: skip
    file = write_rows(tmp_path / "new.csv", [{"text": "fine words " * count} for count in (1, 5, 9)])
    assert_equal_answers(tmp_path / "run", exported(tmp_path / "run", tmp_path), file, float32_tolerance())
    for format in ("onnx", "torch_export"):
        out = tmp_path / format
        assert run_command("export", tmp_path / "run", "--format", format, "--output", out) == 0
        assert_equal_answers(tmp_path / "run", out, file, float32_tolerance())


def test_rows_without_classes_cannot_be_balanced(rows, tmp_path):
    with pytest.raises(ConfigError, match=r"received 'balanced', .*no classes"):
        train("reviews", tmp_path / "run", *rows("regression"), "train.train_sampling_strategy=balanced")


def test_each_pooling_of_the_settings_is_a_function_of_torch_and_numpy():
    names = get_args(get_type_hints(load_task_type(ROOT / "recipes" / "reviews.py").Options)["pooling"])
    assert set(names) == set(POOLINGS)
    assert all(hasattr(library, POOLINGS[name]) for name in names for library in (torch, np))
