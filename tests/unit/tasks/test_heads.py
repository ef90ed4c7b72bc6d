"""Heads: losses that can be summed, and scores equal to scikit-learn's."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image
from runs import ROOT
from sklearn import metrics as sklearn_metrics
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from toolkit.api.batch import IGNORE_INDEX, BadRow, ExcludedRow
from toolkit.base.errors import DataError
from toolkit.document import render
from toolkit.recipe import load_task_type
from toolkit.tasks.heads import HEADS
from toolkit.tasks.heads.losses import sigmoid_losses, softmax_losses
from toolkit.tasks.labels import label_text

OPTIONS = {
    "labels": None,
    "class_weights": "none",
    "label_smoothing_factor": 0.0,
    "focal_gamma": 0.0,
    "label_separator": ",",
    "decimal": None,
    "label_map": {},
    "scale_targets": False,
}


def head(kind: str, **options):
    return HEADS[kind](SimpleNamespace(**OPTIONS | options))


def learned(kind: str, values: list, **options):
    made = head(kind, **options)
    made.learn([made.check(value) for value in values])
    return made


def test_the_setting_names_all_heads():
    options = load_task_type(ROOT / "recipes/reviews.py").Options
    assert set(get_args(get_type_hints(options)["problem_type"])) == HEADS.keys()


def test_without_focus_the_losses_are_those_of_torch():
    logits = torch.randn(5, 3, dtype=torch.float64)
    labels, targets = torch.tensor([0, 2, 1, 1, 0]), torch.randint(0, 2, (5, 3)).double()
    torch.testing.assert_close(
        softmax_losses(logits, labels, 0.1), cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)
    )
    torch.testing.assert_close(
        sigmoid_losses(logits, targets), binary_cross_entropy_with_logits(logits, targets, reduction="none")
    )
    smooth = binary_cross_entropy_with_logits(logits, targets * 0.8 + 0.1, reduction="none")
    torch.testing.assert_close(sigmoid_losses(logits, targets, 0.2), smooth)


def test_focal_loss_is_the_papers_and_goes_over_into_cross_entropy():
    logits = torch.tensor([[2.0, 0.0], [-1.0, 3.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0])
    p = logits.softmax(-1)[:, 0]
    torch.testing.assert_close(softmax_losses(logits, labels, 0.0, 2.0), -((1 - p) ** 2) * p.log())
    torch.testing.assert_close(softmax_losses(logits, labels, 0.3, 1e-12), softmax_losses(logits, labels, 0.3))
    q = logits.sigmoid()
    expected = -((1 - q) ** 2) * q.log()
    torch.testing.assert_close(sigmoid_losses(logits, torch.ones_like(logits), 0.0, 2.0), expected)
    torch.testing.assert_close(sigmoid_losses(-logits, torch.zeros_like(logits), 0.0, 2.0), expected)


@pytest.mark.parametrize("losses", [softmax_losses, sigmoid_losses])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_loss_has_a_slope_where_the_model_is_sure(losses, gamma):
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    answers = torch.tensor([0]) if losses is softmax_losses else torch.tensor([[1.0, 0.0]])
    losses(logits, answers, 0.0, gamma).sum().backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize(
    ("kind", "labels", "targets"),
    [
        ("single_label_classification", ["a", "b"], torch.tensor([0, 1, IGNORE_INDEX, 1])),
        ("multi_label_classification", [["a"], ["b"]],
         torch.tensor([[0.0, 1.0], [1.0, math.nan], [math.nan, math.nan], [1.0, 0.0]])),
        ("regression", [[-100, 1], [2, 3]],
         torch.tensor([[-100.0, 1.0], [3.0, math.nan], [math.nan, math.nan], [0.5, -2.0]])),
    ],
)  # fmt: skip
@pytest.mark.parametrize("extra", [{}, {"label_smoothing_factor": 0.1, "focal_gamma": 2.0}])
def test_losses_and_items_add_up_and_ignored_ones_have_no_gradient(kind, labels, targets, extra):
    made = learned(kind, labels, **extra)
    logits = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    whole = made.loss_sum(logits, targets)
    parts = sum(made.loss_sum(logits[i : i + 1], targets[i : i + 1]) for i in range(4))
    torch.testing.assert_close(whole, parts)
    assert made.count_items(targets) == sum(made.count_items(targets[i : i + 1]) for i in range(4))
    assert made.count_items(targets) == {"single_label_classification": 3}.get(kind, 5)
    whole.backward()
    assert torch.equal(logits.grad[2], torch.zeros(2, dtype=torch.float64))
    assert (logits.grad[[0, 3]] != 0).all()


def test_minus_100_is_a_number_like_any_other():
    made = learned("regression", [-100, 4.5])
    assert made.target(made.check(-100)) == [-100.0]
    loss = made.loss_sum(torch.tensor([[-99.0]]), torch.tensor([[-100.0]]))
    assert float(loss) == 1.0


def test_targets_are_scaled_like_scikit_learns_and_predictions_come_back():
    rows = [[1000.0, 5.0, 1e-9], [3000.0, math.nan, 1e-9], [2500.0, -5.0, 1e-9], [math.nan, 2.0, 1e-9]]
    made = learned("regression", rows, scale_targets=True)
    scaler = StandardScaler().fit(rows)
    found = torch.tensor([made.state["scales"][name] for name in made.state["labels"]], dtype=torch.float64).T
    assert found[0].numpy() == pytest.approx(scaler.mean_)
    assert found[1, :2].numpy() == pytest.approx(scaler.scale_[:2])
    assert found[1, 2] == 1.0  # a constant is not divided by rounding
    targets, logits = torch.tensor(rows, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    scaled = torch.tensor(np.stack([scaler.transform(rows)[:, k] for k in (0, 1)], axis=1))
    expected = (logits[:, :2] - scaled).square().nan_to_num().sum() + logits[:, 2].square().sum()
    assert float(made.loss_sum(logits, targets)) == pytest.approx(float(expected), rel=1e-9)
    back = made.predict((targets - found[0]) / found[1])
    assert torch.allclose(back.double(), targets, rtol=1e-6, equal_nan=True)
    with pytest.raises(DataError, match=r"task\.scale_targets: no training row has a number for 1"):
        learned("regression", [[1.0, None], [2.0, None]], scale_targets=True)


@pytest.mark.parametrize(
    ("kind", "value", "target"),
    [
        ("single_label_classification", " b ", 1),
        ("single_label_classification", 2, 0),
        ("multi_label_classification", "b, 2", [1.0, 0.0, 1.0]),
        ("multi_label_classification", ",", [0.0, 0.0, 0.0]),
        ("multi_label_classification", [], [0.0, 0.0, 0.0]),
        ("multi_label_classification", ["a"], [0.0, 1.0, 0.0]),
        ("multi_label_classification", {"a": True, "b": None}, [0.0, 1.0, math.nan]),
        ("multi_label_classification", {"a": 0, "b": 1}, [0.0, 0.0, 1.0]),
        ("regression", "1.5, ,3", [1.5, math.nan, 3.0]),
        ("regression", [1, None, -100], [1.0, math.nan, -100.0]),
    ],
)
def test_labels_are_read_in_every_form(kind, value, target):
    known = {"single_label_classification": ["2", "b"], "regression": ["x", "y", "z"]}.get(kind, ["2", "a", "b"])
    made = head(kind, labels=known)
    np.testing.assert_equal(made.target(made.check(value)), target)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("single_label_classification", ["a"], "neither text nor a number"),
        ("single_label_classification", "c", "'c' is not one of a, b"),
        ("multi_label_classification", ["a", "c"], "'c' is not one of a, b"),
        ("multi_label_classification", {"a": 2}, "expected true, false or null"),
        ("multi_label_classification", 7, "not a list of names"),
        ("multi_label_classification", ["a", None], "has null among its names"),
        ("regression", "high", "not a number"),
        ("regression", True, "not a number"),
        ("regression", "inf", "not finite"),
        ("regression", 1.0, "has 1 numbers, expected 2"),
        ("regression", [None, None], "no number"),
    ],
)
def test_labels_that_cannot_be_used_say_why(kind, value, reason):
    with pytest.raises(BadRow, match=reason):
        head(kind, labels=["a", "b"]).check(value)


def test_equal_numbers_are_one_label_and_a_map_renames_labels():
    texts = {"5.0": "5", " 5": "5", "+5.50": "5.5", "-0.0": "0", "-2.0": "-2", "007": "007", "1e5": "1e5", 7.0: "7",
             12345678901234567890: "12345678901234567890", "1234567890123456789.0": "1234567890123456789"}  # fmt: skip
    assert {value: label_text(value) for value in texts} == texts
    # The names in task.labels are kept as they are written.
    assert head("single_label_classification", labels=["5.0", "x"]).check("5") == "5.0"
    mapped = {"1": "low", "2.0": "low", "x": "high"}
    made = learned("single_label_classification", ["1.0", "2", "x", "high", 3], label_map=mapped)
    assert made.state["labels"] == ["3", "high", "low"]
    assert made.counts(["low", "low", "high"]) == {"3": 0, "high": 1, "low": 2}
    made = learned("multi_label_classification", ["1,x", ["2", "7.0"]], label_map=mapped)
    assert made.state["labels"] == ["7", "high", "low"]
    assert made.target(made.check({"1": False, "2": None, "x": True})) == pytest.approx(
        [0.0, 1.0, math.nan], nan_ok=True
    )
    assert made.target(made.check({"1": True, "2": False})) == [0.0, 0.0, 1.0]
    assert made.counts([made.check("1,2"), made.check({"x": None})]) == {"7": 0, "high": 0, "low": 1}


def test_a_label_that_is_mapped_to_null_excludes_its_rows():
    for kind in ("single_label_classification", "multi_label_classification"):
        with pytest.raises(ExcludedRow, match=r"task.label_map maps '3' to null"):
            head(kind, label_map={"3.0": None}).check("3")
    several = head("multi_label_classification", label_map={"3.0": None})
    assert [part["name"] for part in several.check({"a": True, "3": False})] == ["a"]
    with pytest.raises(ExcludedRow):
        several.check({"a": True, "3": True})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"label_map": {"1": "low", "1.0": "high"}}, "'1.0' is listed twice, as 'low' and 'high'"),
        ({"label_map": {"1": "low", "1.0": None}}, "'1.0' is listed twice, as 'low' and null"),
        ({"label_map": {"1": "low"}, "labels": ["a", "b"]}, "'low' not in task.labels"),
        ({"label_map": {"1": "low"}, "problem_type": "regression"}, "task.label_map: has no effect with"),
    ],
)
def test_a_label_map_that_cannot_work_is_rejected(options, problem):
    (found,) = load_task_type(ROOT / "recipes/reviews.py").Options(**options).problems()
    assert problem in found


def test_what_cannot_be_learned_is_said():
    with pytest.raises(DataError, match="needs at least two"):
        learned("single_label_classification", ["a", "a"])
    with pytest.raises(DataError, match="no training row has any label"):
        learned("multi_label_classification", [",", []])
    with pytest.raises(DataError, match="1 or 2 numbers"):
        learned("regression", ["1", [1, 2]])
    assert learned("regression", [1, 2]).state["labels"] == ["value"]
    assert learned("single_label_classification", ["10", "9", "x"]).state["labels"] == ["9", "10", "x"]


def test_multi_label_scores_are_those_of_scikit_learn():
    made = learned("multi_label_classification", [["a", "b", "c"]])
    generator = np.random.default_rng(0)
    scores, targets = generator.random((40, 3)).astype(np.float32), generator.integers(0, 2, (40, 3)).astype(float)
    guessed = scores > 0.5
    found = made.metrics(scores, targets)
    for average in ("micro", "macro"):
        assert found[f"f1_{average}"] == pytest.approx(sklearn_metrics.f1_score(targets, guessed, average=average))
    assert found["subset_accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(targets, guessed))
    assert found["recall/b"] == pytest.approx(sklearn_metrics.recall_score(targets[:, 1], guessed[:, 1]))


def test_what_is_not_known_is_not_scored():
    made = learned("multi_label_classification", [["a", "b"]])
    found = made.metrics(np.array([[0.9, 0.9], [0.1, 0.9]], np.float32), np.array([[1.0, math.nan], [0.0, 1.0]]))
    assert (found["f1_micro"], found["subset_accuracy"], found["precision/b"]) == (1.0, 1.0, 1.0)
    numbers = learned("regression", [[1, 2], [3, 4]])
    found = numbers.metrics(np.array([[1.0, 9.0], [2.0, 5.0], [3.0, 6.0]], np.float32),
                            np.array([[1.0, math.nan], [2.0, 4.0], [3.0, 6.0]]))  # fmt: skip
    assert found["mse"] == pytest.approx(1 / 5)
    assert found["r2/0"] == 1.0


def test_regression_scores_are_those_of_scikit_learn():
    made = learned("regression", [1, 2])
    generator = np.random.default_rng(0)
    scores, targets = generator.random((30, 1)).astype(np.float32), generator.random((30, 1))
    found = made.metrics(scores, targets)
    assert found["mse"] == pytest.approx(sklearn_metrics.mean_squared_error(targets, scores))
    assert found["mae"] == pytest.approx(sklearn_metrics.mean_absolute_error(targets, scores))
    assert found["r2"] == pytest.approx(sklearn_metrics.r2_score(targets, scores))
    assert found["pearson"] == pytest.approx(np.corrcoef(targets[:, 0], scores[:, 0])[0, 1])
    assert made.metrics(np.ones((3, 1), np.float32), np.array([[1.0], [2.0], [3.0]]))["pearson"] == 0.0


def test_odd_names_do_not_break_the_tables(tmp_path):
    names = ["a|b", r"$\frac$", ("犬 " * 30).strip()]
    made = learned("single_label_classification", names, labels=names)
    scores, targets = np.eye(3, dtype=np.float32)[[0, 1, 1, 2]], np.array([0, 1, 2, 2])
    (section,) = made.report_sections("validation", scores, targets, tmp_path)
    assert section.title == "Classes (validation)"
    table, matrix = section.blocks
    assert r"| a\|b | 1.000 | 1.000 | 1.000 | 1 |" in render.table(table.header, table.rows)
    assert [[cell.text for cell in row[1:]] for row in matrix.rows] == [
        ["1", "0", "0"],
        ["0", "1", "0"],
        ["0", "1", "1"],
    ]
    assert [cell.shade for cell in matrix.rows[2][1:]] == [0.0, 0.5, 0.5]
    assert list(tmp_path.iterdir()) == []
    (numbers,) = learned("regression", [[1, 2], [3, 4]]).report_sections(
        "test", np.ones((2, 2), np.float32), np.array([[1.0, 2.0], [3.0, math.nan]]), tmp_path
    )
    assert numbers.blocks[0].header == ["label", "r2", "pearson", "rows"]


def test_the_confusion_of_many_classes_is_a_picture_whatever_they_are_called(tmp_path):
    names = ["a|b", r"$\frac$", ("犬 " * 30).strip(), *map(str, range(20))]
    made = learned("single_label_classification", names, labels=names)
    scores, targets = np.eye(23, dtype=np.float32)[[0, 1, 1, 2]], np.array([0, 1, 2, 2])
    (section,) = made.report_sections("validation", scores, targets, tmp_path)
    picture = section.blocks[1]
    assert picture.file == "confusion_validation.png"
    assert (tmp_path / picture.file).read_bytes() == picture.png
    with Image.open(tmp_path / picture.file) as opened:
        assert min(opened.size) > 200


@pytest.mark.parametrize(
    ("problem", "labels", "scores", "label", "error"),
    [
        ("single_label_classification", ["a", "b"], [0.25, 0.75], "a", (0.75,)),
        ("single_label_classification", ["a", "b"], [0.25, 0.75], "b", None),
        ("single_label_classification", ["a", "b"], [0.25, 0.75], None, None),
        ("multi_label_classification", [["a"], ["b"]], [0.75, 0.0], [{"name": "b", "value": 1.0}], (0.875,)),
        ("multi_label_classification", [["a"], ["b"]], [0.75, 0.0], [{"name": "a", "value": 1.0}], None),
        ("multi_label_classification", [["a"], ["b"]], [0.75, 0.0], None, None),
        ("regression", [1, 2], [3.0], [1.0], (4.0,)),
        ("regression", [1, 2], [3.0], None, None),
        ("regression", [[1, 2], [3, 4]], [3.0, 7.0], [1.0, math.nan], (4.0,)),
        ("regression", [[1, 2], [3, 4]], [3.0, 7.0], [3.0, 7.0], None),
    ],
)
def test_how_wrong_a_prediction_is(problem, labels, scores, label, error):
    made = learned(problem, labels)
    assert made.error(made.record(np.array(scores, np.float32), label)) == error
