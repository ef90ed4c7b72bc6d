"""Copies of what a checkpoint holds: when they are made, and the memory that they are made in."""

from __future__ import annotations

import threading

import pytest
import torch

from toolkit.base.errors import RunError
from toolkit.checkpoint import planning
from toolkit.checkpoint.planning import Copy, Group, Plan, Snapshot, planned
from toolkit.distributed.collectives import Peers


def plan(steady: torch.Tensor, other: torch.Tensor) -> Plan:
    return planned(Peers(), Group("model", {"weight": steady, "mean": other}, steady=["weight"]), spread=False)


def values(plans: list[Plan]) -> dict[str, torch.Tensor]:
    return {name: value for each in plans for (name, _), value in each.values.items()}


def test_what_may_change_before_the_update_is_copied_at_once():
    """The running means of normalisation layers change in a forward pass, weights in an update only."""
    weight, mean = torch.zeros(3, 2).T, torch.zeros(2)
    (copied,), copy = Snapshot().begin([plan(weight, mean)])
    mean += 1
    thread = threading.Thread(target=copy.run)
    thread.start()
    copy.wait()
    weight += 1
    thread.join()
    assert {name: float(value.sum()) for name, value in values([copied]).items()} == {"weight": 0.0, "mean": 0.0}
    assert values([copied])["weight"].shape == (2, 3)


def test_memory_is_used_again():
    keeper, places = Snapshot(), []
    for number in range(3):
        shape = (4,) if number < 2 else (5,)
        (copied,), copy = keeper.begin([plan(torch.full(shape, float(number)), torch.zeros(()))])
        copy.run()
        assert torch.equal(values([copied])["weight"], torch.full(shape, float(number)))
        places.append(values([copied])["weight"].data_ptr())
    assert places[0] == places[1]
    assert keeper.size == 5 * 4 + 4


def test_an_error_of_the_copy_does_not_keep_training_waiting():
    copy = Copy([(torch.zeros(2), torch.zeros(3))], None)
    with pytest.raises(RuntimeError):
        copy.run()
    copy.wait()


def test_without_memory_the_setting_is_named(monkeypatch):
    def full(*arguments, **settings):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory\nmore")

    monkeypatch.setattr(planning.torch, "empty", full)
    with pytest.raises(RunError, match=r"allocate memory.*checkpoint\.async"):
        Snapshot().begin([plan(torch.zeros(2), torch.zeros(()))])
