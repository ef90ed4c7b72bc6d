"""Splits are partitions in file order, the same for the same seed, and keep the shares of classes."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.base.errors import DataError
from toolkit.data.splits import head, split


def dataset(labels: list[Any]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"row": list(range(len(labels))), "label": labels})


def parts(labels: list[Any], fraction: float, seed: int = 0, by: str | None = "label") -> tuple[list[int], list[int]]:
    stay, aside = split(dataset(labels), fraction, seed, by)
    return list(stay["row"]), list(aside["row"])


@settings(deadline=None)  # other work on the machine must not fail it
@given(
    labels=st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=2, max_size=60),
    fraction=st.floats(0.001, 0.999),
    seed=st.integers(0, 2**32 - 1),
    stratified=st.booleans(),
)
def test_split_is_a_partition_in_file_order(labels, fraction, seed, stratified):
    by = "label" if stratified and len(set(labels)) < len(labels) else None
    stay, aside = parts(labels, fraction, seed, by)
    assert stay == sorted(stay)
    assert aside == sorted(aside)
    assert sorted(stay + aside) == list(range(len(labels)))
    assert stay
    assert aside
    wanted = min(max(round(len(labels) * fraction), 1), len(labels) - 1)
    if by is None:
        assert len(aside) == wanted
        return
    assert len(aside) == min(wanted, len(labels) - len(set(labels)))
    assert {labels[row] for row in stay} == set(labels)


def test_split_depends_on_the_seed_alone():
    labels = ["a", "b"] * 50
    for by in (None, "label"):
        assert parts(labels, 0.2, 1, by) == parts(labels, 0.2, 1, by)
        assert parts(labels, 0.2, 1, by) != parts(labels, 0.2, 2, by)


def test_stratified_split_keeps_the_shares():
    labels = list(np.random.default_rng(0).permutation(["a"] * 700 + ["b"] * 205 + ["c"] * 94 + ["d"]))
    _, aside = parts(labels, 0.1)
    held = [labels[row] for row in aside]
    assert {label: held.count(label) for label in "abcd"} == {"a": 70, "b": 21, "c": 9, "d": 0}


def test_unstratified_split_mixes_the_file():
    _, aside = parts(["a"] * 1000, 0.1, by=None)
    assert len(aside) == 100
    assert 350 < np.mean(aside) < 650


@pytest.mark.parametrize(
    ("labels", "message"), [(["a"], "1 row cannot be split"), (["a", "b", "c"], "occurs only once")]
)
def test_too_few_rows_to_split(labels, message):
    with pytest.raises(DataError, match=message) as error:
        parts(labels, 0.5)
    assert "data.validation_file" in str(error.value)


def test_head():
    rows = dataset(list("abc"))
    assert [len(head(rows, limit)) for limit in (None, 1, 3, 9)] == [3, 1, 3, 3]
    assert list(head(rows, 2)["label"]) == ["a", "b"]
