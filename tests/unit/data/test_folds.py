"""Folds are a partition, the same for the same seed; they keep classes even and units whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import ROOT

from toolkit.base.errors import ConfigError, DataError
from toolkit.checkpoint.state import changed_settings
from toolkit.config import flatten
from toolkit.config.keys import written
from toolkit.data.loading import check_rows
from toolkit.data.splits import fold_numbers
from toolkit.lab.jobs.training import FEW_STEPS
from toolkit.recipe import load_settings, load_task_type

LABELS = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=8, max_size=80)
SEEDS = st.integers(0, 2**32 - 1)


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


@settings(deadline=None)  # other work on the machine must not fail it
@given(labels=LABELS, folds=st.integers(2, 8), seed=SEEDS, stratified=st.booleans())
def test_folds_differ_by_at_most_one_row_and_one_row_of_each_class(labels, folds, seed, stratified):
    found = fold_numbers(len(labels), folds, seed, labels if stratified else None)
    assert spread([int((found == fold).sum()) for fold in range(folds)]) <= 1
    assert set(found) <= set(range(folds))
    for label in set(labels) if stratified else ():
        of_label = np.array([each == label for each in labels])
        assert spread([int((of_label & (found == fold)).sum()) for fold in range(folds)]) <= 1


@settings(deadline=None)
@given(units=st.lists(st.integers(0, 12), min_size=20, max_size=120), seed=SEEDS, data=st.data())
def test_units_stay_whole(units, seed, data):
    _, numbers = np.unique(units, return_inverse=True)
    labels = data.draw(st.lists(st.sampled_from("ab"), min_size=len(units), max_size=len(units)))
    folds = 3
    if numbers.max() + 1 < folds:
        return
    found = fold_numbers(len(units), folds, seed, labels, numbers)
    assert all(len(set(found[numbers == unit])) == 1 for unit in range(numbers.max() + 1))
    assert set(found) == set(range(folds))


def test_groups_of_different_sizes_and_classes_become_even_folds():
    random = np.random.default_rng(0)
    sizes = random.integers(1, 30, 200)
    units = np.repeat(np.arange(200), sizes)
    labels = np.repeat(random.choice(["rare", "often"], 200, p=[0.1, 0.9]), sizes)
    found = fold_numbers(len(units), 5, 3, labels.tolist(), units)
    for label in ("rare", "often"):
        counts = [int(((labels == label) & (found == fold)).sum()) for fold in range(5)]
        assert spread(counts) <= 0.05 * sum(counts), (label, counts)


def test_folds_depend_on_the_seed_alone():
    first = fold_numbers(50, 5, 1)
    assert np.array_equal(first, fold_numbers(50, 5, 1))
    assert not np.array_equal(first, fold_numbers(50, 5, 2))


def test_too_few_sets_of_rows_are_named():
    with pytest.raises(DataError, match=r"10 rows, in 2 sets that stay together, cannot fill 3 folds\. Lower data"):
        fold_numbers(10, 3, 0, None, np.repeat([0, 1], 5))


def rows_of(*overrides: str) -> dict[str, list[int]]:
    """Returns the numbers of the rows of each split of the reviews' smoke configuration."""
    task = load_task_type(ROOT / "recipes/reviews.py")
    cfg = load_settings(task, ROOT / "recipes/configs/reviews/smoke.yaml", overrides).config
    return {name: part["_number"][:] for name, part in check_rows(cfg, task(cfg)).splits.items()}


def test_the_folds_of_a_run_are_a_partition_and_its_test_rows_stay_apart():
    found = [rows_of("data.validation_file=null", "data.test_split=0.2", "data.folds=4", f"data.fold={fold}")
             for fold in range(1, 5)]  # fmt: skip
    tests = found[0]["test"]
    assert tests
    assert all(each["test"] == tests for each in found)
    validation = sorted(row for each in found for row in each["validation"])
    assert len(set(validation)) == len(validation)
    for each in found:
        assert sorted([*each["train"], *each["validation"]]) == validation
        assert each["train"] == sorted(each["train"])
    assert not set(validation) & set(tests)
    every = rows_of("data.validation_split=0", "data.validation_file=null", "eval.eval_steps=null")["train"]
    assert sorted([*validation, *tests]) == every


def test_a_group_is_in_one_fold(tmp_path):
    rows = [f"text {number},{'ab'[number % 2]},{number % 7}" for number in range(70)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label,who", *rows]))
    for fold in (1, 2, 3):
        found = rows_of(f"data.train_file={tmp_path / 'rows.csv'}", "data.validation_file=null", "data.folds=3",
                        f"data.fold={fold}", "data.group_column=who")  # fmt: skip
        held = {(number - 1) % 7 for number in found["validation"]}
        assert held
        assert not held & {(number - 1) % 7 for number in found["train"]}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.folds=5"], "data.folds (5), data.validation_file"),
        (["data.folds=5", "data.validation_file=null", "data.validation_split=0.1"], "remove one of them"),
        (["data.fold=2"], "data.fold (2), data.folds (null): there are no folds; set data.folds, or remove data.fold"),
        (["data.folds=3", "data.fold=4", "data.validation_file=null"], "set data.fold to at most data.folds"),
        (["data.folds=1", "data.validation_file=null"], "data.folds: received 1"),
    ],
)
def test_settings_that_do_not_fit_folds_are_rejected(overrides, message):
    with pytest.raises(ConfigError) as refused:
        rows_of(*overrides)
    assert message in str(refused.value)


def test_a_run_with_folds_can_be_measured_for_a_few_steps():
    overrides = ["data.validation_file=null", "data.folds=3", *written({**FEW_STEPS, "train.max_steps": 2})]
    task = load_task_type(ROOT / "recipes/reviews.py")
    load_settings(task, ROOT / "recipes/configs/reviews/smoke.yaml", overrides)


def test_a_run_of_a_version_without_folds_can_be_resumed_without_them_only():
    task = load_task_type(ROOT / "recipes/reviews.py")
    cfg = load_settings(task, ROOT / "recipes/configs/reviews/smoke.yaml").config
    now: dict[str, Any] = flatten(cfg) | {"num_processes": 1, **{f"mesh.{name}": 1 for name in (
        "replicas", "fsdp", "tensor", "pipeline")}}  # fmt: skip
    before = {key: value for key, value in now.items() if key not in ("data.folds", "data.fold")}
    assert changed_settings(before, now) == []
    assert len(changed_settings(before, now | {"data.folds": 5})) == 1
