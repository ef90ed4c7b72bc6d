"""Which parts of a tensor a process holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from toolkit.base.shards import Box, fill_part, hull, local, own_parts


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Returns a mesh of 2 x 2 processes, of which this process is the last; nothing is sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
    yield init_device_mesh("cpu", (2, 2))
    dist.destroy_process_group()


def test_an_ordinary_tensor_is_held_completely() -> None:
    everything = Box((0, 0), (2, 3))
    assert own_parts(torch.zeros(2, 3)) == {everything: everything}
    assert own_parts(torch.zeros(())) == {Box((), ()): Box((), ())}


PLACEMENTS = {
    "rows": ([Shard(0), Replicate()], {Box((4, 0), (3, 12)): Box((0, 0), (3, 12))}),
    "blocks": ([Shard(0), Shard(1)], {Box((4, 6), (3, 6)): Box((0, 0), (3, 6))}),
    "rows, twice": ([Shard(0), Shard(0)], {Box((6, 0), (1, 12)): Box((0, 0), (1, 12))}),
    "columns of three matrices in one": (
        [Replicate(), _StridedShard(1, split_factor=3)],
        {Box((0, 2 + 4 * n), (7, 2)): Box((0, 2 * n), (7, 2)) for n in range(3)},
    ),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_parts_of_a_split_tensor(mesh: DeviceMesh, name: str) -> None:
    placements, expected = PLACEMENTS[name]
    complete = torch.arange(84.0).reshape(7, 12)
    split = distribute_tensor(complete, mesh, placements, src_data_rank=None)
    held = own_parts(split)
    assert held == expected
    for box, place in held.items():
        assert torch.equal(
            complete[box.slices(Box.of(complete.shape))], local(split)[place.slices(Box.of(local(split).shape))]
        )

    local(split).zero_()
    around = hull(held)
    fill_part(split, held, complete[around.slices(Box.of(complete.shape))], around)
    again = distribute_tensor(complete, mesh, placements, src_data_rank=None)
    assert torch.equal(local(split), local(again))


def test_a_process_may_hold_nothing(mesh: DeviceMesh) -> None:
    split = distribute_tensor(torch.zeros(2, 3), mesh, [Shard(0), Shard(0)], src_data_rank=None)
    (box,) = own_parts(split)
    assert box.size == 0
    fill_part(split, own_parts(split), torch.ones(2, 3), Box.of((2, 3)))
