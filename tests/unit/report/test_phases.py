"""The section of a report about time says what its numbers do not tell apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.base.package import import_object
from toolkit.distributed.strategies import STRATEGIES
from toolkit.distributed.strategies.ddp import DataParallel
from toolkit.distributed.strategies.local_sgd import LocalSGD
from toolkit.report.sections import ON_GPUS, time_section, time_table

SECONDS = {"fetch": 1.0, "forward": 3.0, "exchange": 0.0, "other": 4.0}


def notes(strategy: Any = DataParallel, size: int = 1, device: str = "cpu") -> list[str]:
    accelerator = SimpleNamespace(device=SimpleNamespace(type=device))
    run: Any = SimpleNamespace(mesh=SimpleNamespace(size=size), strategy=strategy, accelerator=accelerator)
    (_, _, *further) = time_section(run, SECONDS)
    return [block.text for block in further]


def test_shares_add_up_and_phases_without_time_are_left_out():
    table = time_table(SECONDS)
    assert [row[0] for row in table.rows] == ["fetch", "forward", "other"]
    assert [row[2].text for row in table.rows] == ["12.5%", "37.5%", "50.0%"]
    assert time_table({"fetch": 0.0}) is None


def test_the_exchange_inside_a_backward_pass_is_named_where_there_is_one():
    whose = "Times are those of the main process."
    assert notes() == []
    assert notes(size=2) == [whose, DataParallel.hidden_exchange]
    assert notes(LocalSGD, size=2) == [whose]
    assert "backward pass" in DataParallel.hidden_exchange


def test_a_gpu_is_not_waited_for():
    assert notes(device="cuda") == [ON_GPUS]


@pytest.mark.parametrize("name", ["sync", "zero_one", "sharded", "pipeline", "deepspeed"])
def test_strategies_that_exchange_inside_a_pass_say_so(name):
    assert import_object(STRATEGIES[name]).hidden_exchange.endswith("where that time counts.")
