"""The order of rows: the same windows for any split, every row once, any start."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from toolkit.api.random import RowRandom
from toolkit.data.batching.order import Order, WindowSampler, evaluation_batches

sizes = st.integers(1, 4)


@pytest.mark.fast(1)
@settings(deadline=None, max_examples=300)
@given(
    rows=st.integers(1, 90),
    batch=sizes,
    accumulation=sizes,
    world=sizes,
    seed=st.integers(0, 9),
    epoch=st.integers(0, 3),
)
@pytest.mark.parametrize("strategy", ["random", "sequential", "group_by_length"])
def test_windows_do_not_depend_on_the_split(strategy, rows, batch, accumulation, world, seed, epoch):
    lengths = np.random.default_rng(seed).integers(1, 50, rows)
    order = Order(rows, batch, accumulation, world, seed, strategy, lengths)
    whole = Order(rows, batch * accumulation * world, 1, 1, seed, strategy, lengths)
    seen = []
    for window in range(order.windows_per_epoch):
        parts = [order.micro_batches(epoch, window, rank) for rank in range(world)]
        assert all(len(part) == accumulation and all(len(micro) <= batch for micro in part) for part in parts)
        rows_of_window = sorted(row for part in parts for micro in part for row in micro)
        assert rows_of_window == sorted(whole.micro_batches(epoch, window, 0)[0])
        seen += rows_of_window
    assert sorted(seen) == list(range(rows))


@settings(deadline=None, max_examples=200)
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5), seed=st.integers(0, 9), epoch=st.integers(0, 3))
def test_balanced_windows_have_every_class_alike_and_do_not_depend_on_the_split(sizes, seed, epoch):
    classes = np.repeat(np.arange(len(sizes)), sizes)
    order = Order(len(classes), 2, 2, 2, seed, "balanced", classes=classes)
    whole = Order(len(classes), 8, 1, 1, seed, "balanced", classes=classes)
    seen = []
    for window in range(order.windows_per_epoch):
        rows = [row for rank in range(2) for micro in order.micro_batches(epoch, window, rank) for row in micro]
        assert sorted(rows) == sorted(whole.window(epoch, window))
        seen += rows
    assert len(seen) == len(classes)
    counts = np.bincount(classes[seen], minlength=len(sizes))
    assert counts.max() - counts.min() <= 1
    for number in range(len(sizes)):  # no row again before all others of its class
        times = np.bincount(seen, minlength=len(classes))[classes == number]
        assert times.max() - times.min() <= 1


@given(rows=st.lists(st.integers(1, 30), min_size=1, max_size=4), weights=st.data(), batch=st.integers(1, 7))
def test_a_mix_deals_each_file_its_share_in_passes_that_epochs_continue(rows, weights, batch):
    mix = [weights.draw(st.floats(0.2, 5)) for _ in rows]
    of_row = np.repeat(np.arange(len(rows)), rows)
    order = Order(len(of_row), batch, 1, 1, 3, files=of_row, mix=mix)
    split = Order(len(of_row), 1, batch, 1, 3, files=of_row, mix=mix)
    epochs = []
    for epoch in range(4):
        windows = range(order.windows_per_epoch)
        seen = np.concatenate([order.window(epoch, index) for index in windows])
        assert [order.window(epoch, k).tolist() for k in windows] == [split.window(epoch, k).tolist() for k in windows]
        assert len(seen) == len(of_row)
        counts = np.bincount(of_row[seen], minlength=len(rows))
        assert np.all(np.abs(counts - len(seen) * np.array(mix) / sum(mix)) < 1)  # to within a row, in every epoch
        epochs.append(seen)
        times = np.bincount(np.concatenate(epochs), minlength=len(of_row))
        for file in range(len(rows)):  # no row again before all others of its file, over all epochs
            assert np.ptp(times[of_row == file]) <= 1
    again = Order(len(of_row), batch, 1, 1, 3, files=of_row, mix=mix)
    assert [again.window(2, k).tolist() for k in windows] == [order.window(2, k).tolist() for k in windows]


def test_a_mix_is_shuffled_and_groups_by_length():
    of_row, lengths = np.repeat([0, 1], [300, 100]), np.random.default_rng(0).integers(1, 100, 400)
    order = Order(400, 8, 1, 1, 0, files=of_row, mix=[1, 1])
    firsts = [int(of_row[order.window(0, index)].sum()) for index in range(25)]
    assert 0 < sum(firsts) < 200  # both files are in the first half of the epoch
    assert order.window(0, 0).tolist() != order.window(1, 0).tolist()
    grouped = Order(400, 8, 1, 1, 0, "group_by_length", lengths, files=of_row, mix=[1, 1])
    windows = [lengths[grouped.window(0, index)] for index in range(50)]
    assert np.mean([np.ptp(window) for window in windows]) < 5
    rows = np.concatenate([grouped.window(0, index) for index in range(50)])
    assert np.bincount(of_row[rows]).tolist() == [200, 200]


def test_a_seek_gives_the_rest_of_the_epoch():
    order = Order(37, 2, 3, 1, seed=1)
    sampler = WindowSampler(order, rank=0)
    sampler.seek(2)
    whole = list(sampler)
    assert len(whole) == len(sampler) == order.windows_per_epoch * 3
    sampler.seek(2, window=4)
    assert list(sampler) == whole[4 * 3 :]
    assert len(sampler) == len(whole)


def test_epochs_and_seeds_differ_and_repeat():
    def rows(seed, epoch):
        return Order(50, 50, 1, 1, seed).window(epoch, 0).tolist()

    assert rows(1, 0) == rows(1, 0)
    assert rows(1, 0) != rows(1, 1)
    assert rows(1, 0) != rows(2, 0)


def test_group_by_length_puts_similar_lengths_into_a_window_but_shuffles_windows():
    lengths = np.random.default_rng(0).integers(1, 100, 400)
    order = Order(400, 8, 1, 1, 0, "group_by_length", lengths)
    windows = [lengths[order.window(0, i)] for i in range(order.windows_per_epoch)]
    assert np.mean([np.ptp(window) for window in windows]) < 5
    longest = [window.max() for window in windows]
    assert longest != sorted(longest, reverse=True)


@given(rows=st.integers(1, 60), batch=st.integers(1, 9), world=sizes)
def test_evaluation_deals_every_row_once(rows, batch, world):
    lengths = np.random.default_rng(rows).integers(1, 9, rows)
    dealt = [evaluation_batches(lengths, batch, rank, world) for rank in range(world)]
    assert sorted(row for part in dealt for rows_ in part for row in rows_) == list(range(rows))
    counts = [sum(map(len, part)) for part in dealt]
    assert max(counts) - min(counts) <= 1


def test_random_numbers_of_a_row_depend_on_seed_epoch_and_row_only():
    sampler = WindowSampler(Order(9, 2, 1, 1, seed=5), rank=0)

    def drawn(row):
        return sampler.random.generator(row).random(3).tolist()

    sampler.seek(3)
    first = drawn(7)
    assert drawn(8) != first == drawn(7)
    sampler.seek(4)
    assert drawn(7) != first
    sampler.seek(3, window=2)
    assert drawn(7) == first
    assert sampler.random.training
    assert not RowRandom(5, epoch=-1).training


def _drawn(rows, *, random):
    return [(row, float(random.generator(row).random())) for row in rows]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_draw_the_numbers_of_the_epoch_they_load(persistent):
    """Also those that were started in an epoch before."""
    sampler = WindowSampler(Order(12, 2, 2, 1, 0), rank=0)
    sampler.random.share()
    loader = DataLoader(range(12), batch_sampler=sampler, collate_fn=partial(_drawn, random=sampler.random),
                        num_workers=2, persistent_workers=persistent, prefetch_factor=3)  # fmt: skip
    for epoch in range(3):
        sampler.seek(epoch)
        loaded = [pair for batch in loader for pair in batch]
        assert loaded == [(row, float(RowRandom(0, epoch).generator(row).random())) for row, _ in loaded]
        assert sorted(row for row, _ in loaded) == list(range(12))
