"""Splits are partitions in file order, the same for the same seed, and keep the shares of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from toolkit.base.errors import DataError
from toolkit.data.keys import Keys, units
from toolkit.data.splits import set_aside


def parts(labels: list[Any], fraction: float, seed: int = 0, by: bool = True) -> tuple[list[int], list[int]]:
    chosen = set_aside(len(labels), round(len(labels) * fraction), seed, labels if by else None)
    return np.flatnonzero(~chosen).tolist(), np.flatnonzero(chosen).tolist()


@settings(deadline=None)  # other work on the machine must not fail it
@given(
    labels=st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=2, max_size=60),
    fraction=st.floats(0.001, 0.999),
    seed=st.integers(0, 2**32 - 1),
    stratified=st.booleans(),
)
def test_split_is_a_partition_in_file_order(labels, fraction, seed, stratified):
    by = stratified and len(set(labels)) < len(labels)
    stay, aside = parts(labels, fraction, seed, by)
    assert stay == sorted(stay)
    assert aside == sorted(aside)
    assert sorted(stay + aside) == list(range(len(labels)))
    assert stay
    assert aside
    wanted = min(max(round(len(labels) * fraction), 1), len(labels) - 1)
    if not by:
        assert len(aside) == wanted
        return
    assert len(aside) == min(wanted, len(labels) - len(set(labels)))
    assert {labels[row] for row in stay} == set(labels)


def test_split_depends_on_the_seed_alone():
    labels = ["a", "b"] * 50
    for by in (False, True):
        assert parts(labels, 0.2, 1, by) == parts(labels, 0.2, 1, by)
        assert parts(labels, 0.2, 1, by) != parts(labels, 0.2, 2, by)


def test_stratified_split_keeps_the_shares():
    labels = list(np.random.default_rng(0).permutation(["a"] * 700 + ["b"] * 205 + ["c"] * 94 + ["d"]))
    _, aside = parts(labels, 0.1)
    held = [labels[row] for row in aside]
    assert {label: held.count(label) for label in "abcd"} == {"a": 70, "b": 21, "c": 9, "d": 0}


def test_unstratified_split_mixes_the_file():
    _, aside = parts(["a"] * 1000, 0.1, by=False)
    assert len(aside) == 100
    assert 350 < np.mean(aside) < 650


@pytest.mark.parametrize(
    ("labels", "message"), [(["a"], "1 row cannot be split"), (["a", "b", "c"], "occurs only once")]
)
def test_too_few_rows_to_split(labels, message):
    with pytest.raises(DataError, match=message) as error:
        parts(labels, 0.5)
    assert "data.validation_file" in str(error.value)


def test_rows_without_repetitions_are_split_as_they_always_were():
    """Results of older versions can be compared, and the order of a file decides nothing new."""
    generator = np.random.default_rng(7)
    assert parts(["a"] * 50, 0.3, 7, by=False)[1] == sorted(generator.permutation(50)[:15])
    generator = np.random.default_rng(7)
    expected = [*generator.permutation(np.arange(0, 40, 2))[:4], *generator.permutation(np.arange(1, 40, 2))[:4]]
    assert parts(["a", "b"] * 20, 0.2, 7)[1] == sorted(expected)


def keys(inputs: list[int], groups: list[int]) -> Keys:
    return Keys(np.array(inputs), np.zeros(len(inputs), dtype=np.int64), np.array(groups))


def test_equal_inputs_equal_groups_and_chains_of_both_are_one_unit():
    assert units(keys([5, 6, 7], [0, 0, 0])) is None
    assert units(keys([5, 6, 7], [1, 2, 3])) is None
    assert units(keys([5, 6, 5, 7], [0, 0, 0, 0])).tolist() == [0, 1, 0, 2]
    assert units(keys([5, 6, 7, 8], [0, 9, 0, 9])).tolist() == [0, 1, 2, 1]
    # 0 and 2 have equal inputs, 2 and 3 a group, 3 and 5 equal inputs; rows without a group are not a group.
    assert units(keys([5, 6, 5, 7, 8, 7], [0, 0, 1, 1, 0, 2])).tolist() == [0, 1, 0, 0, 2, 0]


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from("ab")), min_size=2, max_size=60),
    fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 2**32 - 1),
)
def test_units_stay_together_and_no_class_leaves_the_training_rows(rows, fraction, seed):
    inputs, groups, labels = (list(column) for column in zip(*rows, strict=True))
    together = units(keys(inputs, groups))
    held = round(len(rows) * fraction)
    try:
        chosen = set_aside(len(rows), held, seed, labels, together)
    except DataError:
        assume(False)
    assert chosen.any()
    for values in (inputs, [group or f"alone {row}" for row, group in enumerate(groups)]):
        sides: dict[Any, set[bool]] = {}
        for value, side in zip(values, chosen, strict=True):
            sides.setdefault(value, set()).add(bool(side))
        assert all(len(both) == 1 for both in sides.values())
    assert {label for label, side in zip(labels, chosen, strict=True) if not side} == set(labels)
    assert (set_aside(len(rows), held, seed, labels, together) == chosen).all()


def test_groups_come_close_to_the_number_of_rows_and_the_shares_of_classes():
    generator = np.random.default_rng(0)
    groups = generator.integers(0, 60, 1500)
    labels = generator.choice(["a", "b", "c"], 1500, p=[0.7, 0.2, 0.1])
    inputs = np.arange(1500)
    for seed in range(5):
        aside = labels[set_aside(1500, 300, seed, labels.tolist(), units(keys(inputs, groups + 1)))]
        assert 260 <= len(aside) <= 330
        assert [round(float(np.mean(aside == name)), 1) for name in "abc"] == [0.7, 0.2, 0.1]


def test_groups_that_are_too_few_are_an_error_with_numbers():
    one = units(keys(list(range(10)), [3] * 10))
    with pytest.raises(DataError, match=r"the 10 rows form 1 set of rows .*data\.group_column.*a data\.test_file"):
        set_aside(10, 2, 0, None, one, "data.test_split")
    # Two large groups are far from two rows, but one of them can be set aside.
    two = units(keys(list(range(10)), [3] * 5 + [4] * 5))
    assert set_aside(10, 2, 0, None, two).sum() == 5
