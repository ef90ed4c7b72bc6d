"""Token budgets: how windows are cut, and that no result depends on the cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.data.batching.budget import LONG_ROW, Budget, tokens_of
from toolkit.data.batching.order import Order, WindowSampler, evaluation_batches


def cuts(order: Order, epoch: int, index: int) -> list[list[list[int]]]:
    """Returns the micro-batches of a window by rank."""
    return [order.micro_batches(epoch, index, rank) for rank in range(order.data_size)]


@pytest.mark.fast(1)
@pytest.mark.parametrize("equal_counts", [False, True])
@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("sides", [1, 2])
@settings(deadline=None, max_examples=300)
@given(
    rows=st.integers(1, 300),
    window=st.integers(1, 64),
    world=st.integers(1, 8),
    budget=st.integers(1, 900),
    multiple=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_every_row_of_a_window_is_once_in_a_micro_batch_within_the_budget(
    rows, window, world, budget, multiple, seed, sides, unpadded, equal_counts
):
    lengths = np.random.default_rng(seed).integers(1, 400 // sides, (rows, sides))
    cut = Budget(budget, lengths, unpadded, equal_counts=equal_counts, multiple=multiple)
    order = Order(rows, window, 1, world, seed, budget=cut)
    index = seed % order.windows_per_epoch
    parts = cuts(order, 0, index)
    batches = [batch for part in parts for batch in part]
    assert sorted(row for batch in batches for row in batch) == sorted(order.window(0, index).tolist())
    for batch in batches:
        assert len(batch) <= 1 or tokens_of(lengths[batch].tolist(), unpadded) <= budget
    counts = [len(part) for part in parts]
    assert min(counts) >= 1
    assert all(count % multiple == 0 for count in counts)
    assert not equal_counts or len(set(counts)) == 1
    for part in parts:  # a rank has no more empty micro-batches than it needs
        filled = sum(map(bool, part))
        assert part[filled:] == [[]] * (len(part) - filled)
    assert parts == cuts(Order(rows, window, 1, world, seed, budget=cut), 0, index), "a function of the window"


@settings(deadline=None, max_examples=200)
@given(rows=st.integers(1, 256), world=st.integers(1, 8), seed=st.integers(0, 99))
def test_ranks_have_alike_costs(rows, world, seed):
    lengths = np.random.default_rng(seed).integers(1, 2000, (rows, 1))
    shares = Budget(4096, lengths).shares(range(rows), world)
    cost = [sum(n * (LONG_ROW + n) for n in lengths[share, 0].tolist()) for share in shares]
    longest = int(lengths.max())
    # Longest first: no rank is ahead of another by more than its last, smallest row.
    assert max(cost) - min(cost) <= longest * (LONG_ROW + longest)
    if rows >= 16 * world:
        assert max(cost) <= 1.05 * np.mean(cost)


def test_an_equal_row_may_be_in_a_window_twice():
    """As with balanced sampling, which draws rows of small classes again."""
    budget = Budget(10, np.array([[4], [3]]))
    assert sorted(map(sorted, budget.cut([0, 0, 1, 1, 1]))) == [[0, 0], [1, 1, 1]]


def test_padding_counts_unless_the_model_has_none():
    lengths = np.array([[8], [2], [2], [2], [2]])
    assert Budget(16, lengths).cut(range(5)) == [[0, 1], [2, 3, 4]]
    assert Budget(16, lengths, unpadded=True).cut(range(5)) == [[0, 1, 2, 3, 4]]
    few = np.array([[8], *[[1]] * 8])
    assert Budget(16, few, unpadded=True).cut(range(9)) == [[*range(8)], [8]], "8 x 8 is four times the budget"
    pairs = np.array([[6, 1], [1, 6]])  # padded to 6 and 6
    assert Budget(20, pairs).cut(range(2)) == [[0], [1]]
    assert Budget(24, pairs).cut(range(2)) == [[0, 1]]
    assert (tokens_of(pairs.tolist(), False), tokens_of(pairs.tolist(), True)) == (24, 14)


def test_a_row_beyond_the_budget_is_alone():
    lengths = np.array([[50], [3], [3], [40]])
    for unpadded in (False, True):
        assert Budget(10, lengths, unpadded).cut(range(4)) == [[0], [3], [1, 2]]


def test_a_seek_gives_the_rest_of_the_epoch_and_the_length_is_the_epoch_s():
    lengths = np.random.default_rng(0).integers(1, 60, (190, 1))
    order = Order(190, 4, 2, 2, seed=1, budget=Budget(100, lengths))
    sampler = WindowSampler(order, rank=1)
    sampler.seek(2)
    windows = list(sampler.windows())
    assert list(sampler) == [batch for window in windows for batch in window]
    assert len(sampler) == len(list(sampler))
    assert len({len(window) for window in windows}) > 1, "the number of micro-batches differs"
    sampler.seek(2, window=4)
    assert list(sampler.windows()) == windows[4:]
    assert len(sampler) == sum(map(len, windows))


@settings(deadline=None, max_examples=200)
@given(
    rows=st.integers(1, 120),
    batch=st.integers(1, 40),
    world=st.integers(1, 4),
    budget=st.integers(1, 300),
    sides=st.integers(1, 2),
    equally_many=st.booleans(),
)
def test_evaluation_keeps_to_rows_and_tokens(rows, batch, world, budget, sides, equally_many):
    lengths = np.random.default_rng(rows).integers(1, 90, (rows, sides))
    dealt = [evaluation_batches(lengths, batch, rank, world, equally_many, budget) for rank in range(world)]
    batches = [part for rank in dealt for part in rank]
    assert sorted(row for part in batches for row in part) == list(range(rows))
    assert all(len(part) <= batch for part in batches)
    assert all(len(part) <= 1 or tokens_of(lengths[part].tolist(), False) <= budget for part in batches)
    assert not equally_many or len({len(rank) for rank in dealt}) == 1
    unlimited = evaluation_batches(lengths, batch, 0, world, equally_many, 10**9)
    assert unlimited == evaluation_batches(lengths, batch, 0, world, equally_many)
