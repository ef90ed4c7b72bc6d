"""Each process of a split model holds the share that docs/parallel.md says, and drops activations on its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import rank_runs
from launching import fork
from rank_runs import DROPPED, STRATEGIES

from toolkit.system.phases import OTHER

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

HALF, ALL = pytest.approx(0.5, abs=0.01), pytest.approx(1.0)
ABOUT_HALF = pytest.approx(0.5, abs=0.05)
"""Embeddings, norms and heads are not split into equal parts."""
PARTS = ("parameters", "gradients", "optimizer_state")
SHARES = {
    "zero1": {"parameters": ALL, "gradients": ALL, "optimizer_state": HALF, "in_window": ALL},
    "zero2": {"parameters": HALF, "gradients": HALF, "optimizer_state": HALF, "in_window": ALL},
    "fsdp": dict.fromkeys((*PARTS, "in_window"), HALF),
    "tensor": dict.fromkeys((*PARTS, "in_window"), ABOUT_HALF),
    "context": dict.fromkeys((*PARTS, "in_window"), ALL),
    "pipeline": dict.fromkeys((*PARTS, "in_window"), ABOUT_HALF),
}
"""The share of one process's bytes that each of two processes holds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Returns the folder in which two processes have written what each holds."""
    made = tmp_path_factory.mktemp("ranks")
    fork([Path(rank_runs.__file__), made], 2)
    return made


@pytest.fixture(scope="module")
def found(folder) -> dict[str, list[dict[str, Any]]]:
    """Returns what each process holds and drops, by strategy, and what one process holds."""
    files = {name: [folder / f"{name}-{rank}.json" for rank in range(2)] for name in STRATEGIES}
    one = {"held": vars(rank_runs.count(folder, "one"))}
    return {"one": [one], **{name: [json.loads(file.read_text()) for file in two] for name, two in files.items()}}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_process_holds_its_share(found, strategy):
    complete = found["one"][0]["held"]
    assert complete["parameters"] >= 10_000_000 * 4
    for process in found[strategy]:
        assert {part: process["held"][part] / complete[part] for part in SHARES[strategy]} == SHARES[strategy]


def test_the_stages_of_a_pipeline_hold_each_parameter_once(found):
    for part in PARTS:
        assert sum(process["held"][part] for process in found["pipeline"]) == found["one"][0]["held"][part]


@pytest.mark.parametrize("strategy", ["one", *STRATEGIES])
def test_every_strategy_shows_where_its_time_goes(found, strategy):
    for process in found[strategy]:
        spent = {name for name, seconds in process["held"]["phases"].items() if seconds > 0}
        exchanged = set() if strategy == "one" else {"exchange"}
        assert spent >= {"fetch", "forward", "backward", "clip", "update", "log", "evaluate", OTHER} | exchanged
        assert strategy != "one" or "exchange" not in spent


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dropout_is_that_of_one_process_in_distribution(found, strategy):
    """Checks that each activation is kept with the configured probability, independently of other processes."""
    kept = 1 - DROPPED
    # The residual streams of a tensor group are the same, so their masks must be.
    agreeing = 1.0 if strategy == "tensor" else kept**2 + DROPPED**2
    for process in found[strategy]:
        dropped = process["dropped"]
        error = (0.25 / dropped["elements"]) ** 0.5
        assert dropped["elements"] > 10_000
        assert abs(dropped["kept"] - kept) < 5 * error
        assert abs(dropped["agreeing"] - agreeing) < 5 * error


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_every_process_evaluates_with_the_same_batch_statistics(folder, strategy):
    one, other = (json.loads((folder / f"{strategy}-statistics-{rank}.json").read_text()) for rank in range(2))
    assert len(one) == 3
    assert one == other


def test_a_snapshot_of_local_sgd_is_the_mean_of_all_processes(folder):
    one, other = (json.loads((folder / f"snapshots-{rank}.json").read_text()) for rank in range(2))
    assert len(one) == 2
    assert one == other
