"""Counting what a process sends, in a group that sends nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from toolkit.distributed.exchange import COUNTED_STEPS, Counted, Traffic, Wire, counted


@pytest.fixture
def group() -> Iterator[None]:
    """A group of four processes, of which only this one exists."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_a_collective_sends_its_share_of_the_complete_tensor(group):
    whole, part = torch.ones(40), torch.ones(10)  # 160 and 40 bytes
    for collective, sent in (
        (lambda: dist.all_reduce(whole), 2 * 120),
        (lambda: dist.all_gather(list(whole.split(10)), part), 120),
        (lambda: dist.reduce_scatter(part, list(whole.split(10))), 120),
        (lambda: dist.broadcast(whole, 0), 120),
        (lambda: dist.isend(part, 1), 40),
        (lambda: dist.irecv(part, 1), None),
    ):
        with Traffic() as traffic:
            collective()
        assert (traffic.collectives, traffic.bytes_sent) == ((0, 0) if sent is None else (1, sent))


def test_collectives_inside_split_tensors_are_counted(group):
    split = distribute_tensor(torch.ones(8, 5), init_device_mesh("cpu", (4,)), [Shard(0)], src_data_rank=None)
    with Traffic() as traffic:
        split.redistribute(placements=[Replicate()])
    assert (traffic.collectives, traffic.bytes_sent) == (1, 3 / 4 * 160)


def test_the_last_counted_step_stands_for_all(group):
    class Strategy:
        traffic, windows = Counted(), 0

        @counted
        def window_gradient(self) -> None:
            self.windows += 1
            for _ in range(self.windows):  # more than in the step before
                dist.all_reduce(torch.ones(4))

    strategy = Strategy()
    assert strategy.traffic.of_steps(0) == {}
    for _ in range(5):
        strategy.window_gradient()
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.ones(8)
    strategy.traffic.count_steps_of(optimizer)
    optimizer.step()
    assert weight.tolist() == [0.0] * 8
    collectives = COUNTED_STEPS * 5
    assert strategy.traffic.of_steps(5) == {
        "exchange_collectives": collectives, "exchange_bytes": collectives * 2 * 3 / 4 * 16,
    }  # fmt: skip


def test_a_wire_counts_the_same(group):
    wire = Wire()
    with Traffic() as traffic:
        wire.mean([torch.ones(10), torch.ones(6)], 0.25)
        wire.copy_main([torch.ones(4)])
    assert (wire.collectives, wire.bytes_sent) == (traffic.collectives, traffic.bytes_sent) == (2, 96 + 12)
