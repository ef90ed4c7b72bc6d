"""A model that is split over processes trains like one that is not: every strategy, in float64, through the recipes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import split_runs
import torch
from launching import fork
from runs import ROOT, assert_close, lines, predictions, weights
from split_runs import ALSO, CELLS, COVER, ENGINES, FURTHER, ONLY, STRATEGIES, TASKS, names_of, run_name

pytestmark = pytest.mark.distributed

SHARED = ("fsdp:reviews", "fsdp:translation", "fsdp:adafactor", "tensor:reviews", "tensor:uneven", "zero1:reviews")
"""Runs of which each process should hold its share."""
FIGURES = ROOT / "docs" / "strategies.json"
WRITES_FIGURES = bool(os.environ.get("WRITE_FIGURES"))
"""Whether to train every cell of the table in the docs, and every further run. Otherwise, those of `COVER`."""
KINDS = {"data": (), "tensor": ("parallel.tensor=2",), "pipeline": ("parallel.pipeline=2",),
         "context": ("parallel.context=2",), "expert": ("parallel.expert=2",)}  # fmt: skip
"""Settings of strategies of each kind: those that split layers, positions or experts, or have stages; all others."""


def train_all(folder: Path, processes: int) -> None:
    """Trains every run of the strategies for this number of processes, and on one process those that are not there."""
    names = [name for strategy in strategies_for(processes) for name in names_of(strategy, WRITES_FIGURES)]
    fork([Path(split_runs.__file__), folder, *names], processes, timeout=3000)
    alone = dict.fromkeys(name.split(":")[1] for name in names)
    split_runs.main(folder, *(run for run in alone if not (folder / run).exists()))


def strategies_for(processes: int) -> list[str]:
    return [strategy for strategy in STRATEGIES if STRATEGIES[strategy][0] == processes]


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    """Returns the output folders of all runs on two processes, and on one; those on more processes go there too."""
    folder = tmp_path_factory.mktemp("split")
    train_all(folder, 2)
    return folder


def test_every_strategy_task_and_engine_is_trained():
    """Checks what is left of the whole table where the figures of the docs are not written."""
    trained = {strategy: [run.partition(":")[::2] for run in COVER[strategy]] for strategy in STRATEGIES}
    for strategy, runs in trained.items():
        assert {run for run, _ in runs} <= {*CELLS[strategy], *ALSO.get(strategy, ())}
        assert {engine or "loop" for _, engine in runs} == {*ENGINES}, strategy
    for task in TASKS:
        for kind, split in KINDS.items():
            if all(task in ONLY[setting] for setting in split):
                assert any(task == run for name, runs in trained.items() for run, _ in runs if kind in kinds_of(name))
    assert {run for runs in trained.values() for run, _ in runs} == {*TASKS, *FURTHER}
    assert {name for strategy in STRATEGIES for name in names_of(strategy, whole=False)} >= {*SHARED}


def kinds_of(strategy: str) -> set[str]:
    """Returns the keys of `KINDS` that a strategy is of."""
    settings = STRATEGIES[strategy][2]
    return {kind for kind, split in KINDS.items() if split and {*split} <= {*settings}} or {"data"}


def test_every_run_on_two_processes_is_that_of_one(output):
    assert_like_one_process(output, 2)


@pytest.mark.parametrize("processes", [4, 8])
def test_every_run_on_more_processes_is_that_of_one(output, processes):
    train_all(output, processes)
    assert_like_one_process(output, processes)


@pytest.mark.parametrize("name", SHARED)
def test_each_process_holds_its_share(output, name):
    one, split = (json.loads((output / run / "run.json").read_text())["memory"] for run in folders(name))
    strategy = name.split(":")[0]
    if strategy == "fsdp" or name == "tensor:uneven":
        assert split["parameters"] < 0.55 * one["parameters"]
    if strategy in ("fsdp", "zero1") and not name.endswith("adafactor"):
        assert split["optimizer_state"] <= 0.55 * one["optimizer_state"]


def test_the_table_in_the_docs_has_the_cells_that_are_tested():
    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    assert found["tasks"] == {name: {"recipe": recipe, "settings": rest} for name, (recipe, *rest) in TASKS.items()}
    assert {name: each["settings"] for name, each in found["strategies"].items()} == {
        name: list(settings) for name, (_, _, settings) in STRATEGIES.items()
    }
    measured = {
        (strategy, task, engine): figure
        for strategy, each in found["strategies"].items()
        for task, engines in each["differences"].items()
        for engine, figure in engines.items()
    }
    assert measured.keys() == {(name, task, engine) for name in CELLS for task in CELLS[name] for engine in ENGINES}
    assert max(measured.values()) <= 1e-9


def test_only_the_main_process_builds_a_complete_model_that_is_split(output):
    main, other = (json.loads((output / f"on_meta-{rank}-of-2.json").read_text()) for rank in (0, 1))
    assert main == dict.fromkeys(main, False)
    assert {name: other[name] for name in SHARED} == {name: not name.startswith("zero1") for name in SHARED}


def assert_like_one_process(folder: Path, processes: int) -> None:
    strategies = strategies_for(processes)
    for strategy in strategies:
        for name in names_of(strategy, WRITES_FIGURES):
            assert_equal_run(folder, name)
    if WRITES_FIGURES:
        write_figures(folder, strategies)


def write_figures(folder: Path, strategies: list[str]) -> None:
    """Writes the greatest difference of each strategy, task and engine, for docs/render_strategies.py."""
    found = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {"strategies": {}}
    found["tasks"] = {task: {"recipe": recipe, "settings": settings} for task, (recipe, *settings) in TASKS.items()}
    for strategy in strategies:
        differences = {
            task: {engine: difference(folder, run_name(strategy, task, engine)) for engine in ENGINES}
            for task in CELLS[strategy]
        }
        _, _, settings = STRATEGIES[strategy]
        found["strategies"][strategy] = {"settings": settings, "differences": differences}
    found["strategies"] = {name: found["strategies"][name] for name in STRATEGIES if name in found["strategies"]}
    FIGURES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def difference(folder: Path, name: str) -> float:
    """Returns the greatest difference of a run's losses, norms (relative, if they exceed 1) and parameters."""
    one, split = (folder / run for run in folders(name))
    pairs = [
        (before[key], after[key])
        for before, after in zip(lines(one, "loss"), lines(split, "loss"), strict=True)
        for key in ("loss", "grad_norm")
    ]
    expected, found = weights(one), weights(split)
    return max(
        *(abs(before - after) / max(1.0, abs(before)) for before, after in pairs),
        *(float((value - found[key]).abs().max()) for key, value in expected.items()),
    )


def folders(name: str) -> tuple[str, str]:
    """Returns the folders of a run on one process, and of the same run with a strategy."""
    return name.split(":")[1], name.replace(":", "-of-")


def assert_equal_run(folder: Path, name: str) -> None:
    """Asserts that a run has the losses, norms, metrics, predictions and parameters of the same run on one process."""
    one, split = (folder / run for run in folders(name))
    assert_close(lines(one, "loss"), lines(split, "loss"), 1e-10, name)
    assert_close(lines(one, "eval_loss"), lines(split, "eval_loss"), 1e-10, name)
    assert_close(predictions(one), predictions(split), 1e-9, name)
    expected, found = weights(one), weights(split)
    assert expected.keys() == found.keys(), name
    far = {key: float((value - found[key]).abs().max()) for key, value in expected.items()}
    # The gradient of a key's bias is zero but for rounding, and Adafactor divides it by its own size.
    far = {key: value for key, value in far.items() if not (key.endswith("key.bias") and "adafactor" in name)}
    assert max(far.values()) <= 1e-9, (name, far)
    assert {key: value.dtype for key, value in found.items()} == dict.fromkeys(expected, torch.float64)
