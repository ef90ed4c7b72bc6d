"""Weights that the main process sends to models on the meta device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from toolkit.distributed.placement import Delivery, layout

CPU = torch.device("cpu")


class Tied(nn.Module):
    """A model with tied weights, a frozen one, a buffer, and a tensor that is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.layer.bias.requires_grad_(False)
        self.register_buffer("count", torch.tensor(7))
        self.table = torch.arange(4)


@pytest.fixture(params=[0, 1], ids=["main process", "another process"])
def rank(request: pytest.FixtureRequest) -> Iterator[int]:
    """Returns a rank in a group of two, in which nothing is really sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=2)
    yield request.param
    dist.destroy_process_group()


def build(rank: int) -> Tied:
    with torch.device("cpu" if rank == 0 else "meta"):
        return Tied()


def test_every_tensor_is_delivered_as_it_was(rank: int) -> None:
    model = build(rank)
    before = layout(model)
    deliver = Delivery(CPU)
    deliver(model.layer.modules())
    deliver(model.modules())
    assert layout(model) == before == layout(build(0))
    tensors = [*model.parameters(), *model.buffers(), model.table]
    assert all(tensor.device == CPU for tensor in tensors)
    assert model.head.weight is model.embed.weight
    assert not model.layer.bias.requires_grad
    if rank == 0:
        assert model.count == 7


def test_parameters_that_a_process_does_not_need_stay_where_they_are(rank: int) -> None:
    model = build(rank)
    Delivery(CPU)(model.modules(), keep=lambda module: module is model.head)
    meta = rank == 1
    assert model.layer.weight.is_meta == meta
    assert not model.count.is_meta
    assert not model.embed.weight.is_meta  # tied to a weight that is needed
    assert model.head.weight is model.embed.weight


def test_nothing_is_kept_that_the_model_has_lost(rank: int) -> None:
    model, deliver = build(rank), Delivery(CPU)
    deliver(model.modules())
    weight = weakref.ref(model.layer.weight)
    del model.layer
    gc.collect()
    assert weight() is None


def test_models_that_are_tied_differently_have_another_layout() -> None:
    untied = Tied()
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    assert layout(untied) != layout(Tied())
