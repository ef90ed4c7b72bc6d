"""What a comparison says of time, energy, price and targets."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit.document.blocks import shown
from toolkit.lab.compare import page
from toolkit.lab.compare.report import costs_of, sums_of


def run(seconds: float, wh: float, step: int | None = None) -> dict[str, Any]:
    reached = {} if step is None else {"target_step": step, "target_seconds": seconds / 2, "target_energy_wh": wh / 2}
    return {"run_seconds": seconds, "energy_wh": wh, "cost": seconds / 10, **reached}


ONE, OTHER = [run(10, 1.0, 4), run(12, 1.2, 5)], [run(30, 3.0), run(36, 3.6, 20)]


@pytest.fixture
def found() -> dict[str, Any]:
    first = costs_of(ONE, None)
    return {
        "energy_source": "measured",
        "costs": sums_of([*ONE, *OTHER]),
        "variants": [
            {"name": "a", "runs": 2, "target": {"eval_accuracy": 0.9}, "costs": first},
            {"name": "b", "runs": 2, "target": {"eval_accuracy": 0.9}, "costs": costs_of(OTHER, first)},
            {"name": "failed", "runs": 0, "target": {"eval_accuracy": 0.9}},
        ],
    }


def test_figures_are_medians_with_the_smallest_and_largest_run_against_the_baseline():
    first = costs_of(ONE, None)
    energy = costs_of(OTHER, first)["energy_wh"]
    assert {name: energy[name] for name in ("value", "low", "high", "runs", "same")} == {
        "value": pytest.approx(3.3), "low": 3.0, "high": 3.6, "runs": 2, "same": False,
    }  # fmt: skip
    assert energy["ratio"] == pytest.approx(3)
    assert costs_of([run(1, 1.0)], None)["energy_wh"]["low"] is None
    assert costs_of([], None) == {}


def test_sums_are_those_of_all_runs_or_not_given():
    assert sums_of([*ONE, *OTHER]) == pytest.approx({"run_seconds": 88, "energy_wh": 8.8, "cost": 8.8})
    assert sums_of([run(1, 1.0), {"run_seconds": 2.0}]) == {"run_seconds": 3.0}
    assert sums_of([]) == {}


def test_costs_and_targets_are_a_table_with_the_sums(found):
    table = page.costs(found)
    assert table.header == ["#", "variant", "time", "energy", "price", "to target", "steps to it", "energy to it"]
    rows = [[*map(shown, row)] for row in table.rows]
    assert rows[0] == ["1", "a", "11 s", "1.1 Wh", "1.1", "5.5 s", "4.5", "0.55 Wh"]
    assert rows[1][5:7] == ["18 s\n(1 of 2 runs)\nx3.27", "20\n(1 of 2 runs)\nx4.44"]
    assert rows[-1] == ["all", "all runs", "88 s", "8.8 Wh", "8.8", "-", "-", "-"]
    assert page.costs({"variants": [{"name": "a", "runs": 1, "costs": {}}]}) is None


def test_the_page_names_the_target_and_the_source_of_the_energy(found):
    text = str(page.cost_blocks(found))
    assert "The target is eval_accuracy 0.9" in text
    assert "Energy: measured." in text
    for variant in found["variants"][:2]:
        for name in page.TO_TARGET:
            variant["costs"].pop(name, None)
    assert "not reached" in str(page.cost_blocks(found))
    assert page.cost_blocks({"variants": [{"name": "failed", "runs": 0}]}) == []
