"""A model that is split over processes trains like one that is not: every strategy, in float64, through the recipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import split_runs
import torch
from launching import launch
from runs import assert_close, lines, predictions, weights
from split_runs import RUNS

pytestmark = pytest.mark.distributed

FAST = ("fsdp:reviews", "fsdp:translation", "fsdp:adafactor", "tensor:reviews", "tensor:uneven", "zero1:reviews")
TENSOR = (
    "reviews",
    "qa",
    "translation",
    "language_modeling",
    "uneven",
    "masked",
    "vit",
    "gpt2",
    "trainer-reviews",
    "trainer-translation",
    "adafactor",
    "recompute",
    "ema",
    "fused",
    "few",
)
"""Runs whose architecture has a plan for tensor parallelism."""
ALL = {
    2: [
        *(f"fsdp:{run}" for run in RUNS),
        *(f"zero2:{run}" for run in ("reviews", "translation")),
        *(f"zero1:{run}" for run in RUNS if run != "schedule_free"),
        *(f"tensor:{run}" for run in TENSOR),
    ],
    4: [f"{strategy}:{run}" for strategy in ("hsdp", "fsdp-tensor", "replicas-tensor") for run in TENSOR],
}  # fmt: skip


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    launch([Path(split_runs.__file__), folder, *FAST], 2)
    split_runs.main(folder, *{name.split(":")[1] for name in FAST})
    return folder


@pytest.mark.parametrize("name", FAST)
def test_a_split_model_trains_like_one_process(output, name):
    assert_like_one_process(output, name)


@pytest.mark.parametrize("name", FAST)
def test_each_process_holds_its_share(output, name):
    one, split = (json.loads((output / run / "run.json").read_text())["memory"] for run in folders(name))
    strategy = name.split(":")[0]
    if strategy == "fsdp" or name == "tensor:uneven":
        assert split["parameters"] < 0.55 * one["parameters"]
    if strategy in ("fsdp", "zero1") and not name.endswith("adafactor"):
        assert split["optimizer_state"] <= 0.55 * one["optimizer_state"]


def test_only_the_main_process_builds_a_complete_model_that_is_split(output):
    main, other = (json.loads((output / f"on_meta-{rank}.json").read_text()) for rank in (0, 1))
    assert main == dict.fromkeys(FAST, False)
    assert other == {name: not name.startswith("zero1") for name in FAST}


@pytest.mark.slow
@pytest.mark.parametrize("processes", ALL)
def test_every_run_of_every_strategy_is_that_of_one_process(tmp_path, processes):
    launch([Path(split_runs.__file__), tmp_path, *ALL[processes]], processes, timeout=1500)
    split_runs.main(tmp_path, *dict.fromkeys(name.split(":")[1] for name in ALL[processes]))
    for name in ALL[processes]:
        assert_like_one_process(tmp_path, name)


def folders(name: str) -> tuple[str, str]:
    """Returns the folders of a run on one process, and of the same run with a strategy."""
    return name.split(":")[1], name.replace(":", "-of-")


def assert_like_one_process(folder: Path, name: str) -> None:
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
