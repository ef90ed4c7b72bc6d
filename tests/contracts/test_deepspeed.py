"""DeepSpeed's ZeRO stages train like one process, in float32, and share its checkpoints; they need `deepspeed`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import deepspeed_runs
import pytest
import torch
from deepspeed_runs import folder_of
from launching import launch
from runs import assert_close, assert_same_weights, lines, predictions, weights
from tolerances import float32_tolerance

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(
        find_spec("deepspeed") is None, reason="the extra deepspeed is not installed; `make test-deepspeed` runs them"
    ),
]

FAST = ("stage1:reviews", "stage2:reviews", "stage3:reviews", "stage1:reviews<-stage3:reviews")
SLOW = (
    *(f"stage3:{run}" for run in ("qa", "translation", "language_modeling", "masked", "image", "lora", "recompute")),
    *(f"stage3:{run}" for run in ("few", "trainer-reviews", "trainer-translation", "freeze", "fused", "momentum")),
    *(f"stage3:{run}" for run in ("decay", "budget", "packed", "preference", "window")),
    *(f"stage2:{run}" for run in ("masked", "few", "budget", "preference")),
    *(f"stage1:{run}" for run in ("qa", "trainer-reviews", "freeze", "momentum", "budget")),
    *(f"stage{n}-offload:reviews" for n in (1, 2, 3)),
)
"""All runs for stage 3, which splits everything; for stages 1 and 2, runs for the code that differs there."""
STAGES = ("stage1:reviews", "stage2:reviews", "stage3:reviews")


def reference(name: str) -> str:
    """Returns the run on one process that a run is compared with."""
    return name.partition("<-")[0].rpartition(":")[2]


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("deepspeed")
    launch([Path(deepspeed_runs.__file__), folder, *FAST], 2)
    deepspeed_runs.main(folder, "reviews", "reviews<-stage2:reviews")
    return folder


def assert_like_one_process(output: Path, name: str) -> None:
    """Asserts that a run has the losses, norms, predictions and parameters of the same run on one process."""
    one, other = folder_of(output, reference(name)), folder_of(output, name)
    expected = {line["step"]: line for line in lines(one, "loss")}
    for line in lines(other, "loss"):
        same = expected[line["step"]]
        tolerance = float32_tolerance(line["step"])
        assert_close(same["loss"], line["loss"], tolerance, name)
        assert_close(same["grad_norm"], line["grad_norm"], tolerance, name)
        assert (same["learning_rate"], same["num_items"]) == (line["learning_rate"], line["num_items"])
    steps = len(expected)
    assert_close(predictions(one), predictions(other), float32_tolerance(steps), name)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys(), name
    far = {key: float((value - second[key]).abs().max()) for key, value in first.items()}
    # The gradient of a key's bias is zero but for rounding, and AdamW divides it by its own size.
    far = {key: value for key, value in far.items() if not key.endswith(("key.bias", "k_proj.bias"))}
    assert max(far.values()) <= float32_tolerance(steps), (name, far)


@pytest.mark.parametrize("name", [*FAST, "reviews<-stage2:reviews"])
def test_a_stage_trains_like_one_process(output, name):
    assert_like_one_process(output, name)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_process_holds_its_share(output, stage):
    one, split = (
        json.loads((folder_of(output, name) / "run.json").read_text()) for name in ("reviews", STAGES[stage - 1])
    )
    assert split["memory"]["optimizer_state"] < 0.55 * one["memory"]["optimizer_state"]
    if stage == 3:
        assert split["memory"]["parameters"] < 0.55 * one["memory"]["parameters"]
    replicas, fsdp = (2, 1) if stage == 1 else (1, 2)
    assert split["mesh"] == {"replicas": replicas, "fsdp": fsdp, "context": 1, "tensor": 1, "pipeline": 1, "expert": 1}


@pytest.mark.slow
def test_runs_of_every_stage_are_those_of_one_process(tmp_path):
    launch([Path(deepspeed_runs.__file__), tmp_path, *SLOW], 2, timeout=900)
    deepspeed_runs.main(tmp_path, *dict.fromkeys(reference(name) for name in SLOW))
    for name in SLOW:
        assert_like_one_process(tmp_path, name)


@pytest.mark.slow
def test_stages_resume_from_each_other_and_from_one_process(tmp_path):
    deepspeed_runs.main(tmp_path, "reviews")
    resumed = [f"{reader}<-{writer}" for reader in STAGES for writer in ("reviews", *STAGES)]
    launch([Path(deepspeed_runs.__file__), tmp_path, *STAGES, *resumed], 2)
    deepspeed_runs.main(tmp_path, *(f"reviews<-{writer}" for writer in STAGES))
    for name in (*resumed, *(f"reviews<-{writer}" for writer in STAGES)):
        assert_like_one_process(tmp_path, name)
    for name in STAGES:
        assert_same_weights(folder_of(tmp_path, name), folder_of(tmp_path, f"{name}<-{name}"))


@pytest.mark.slow
def test_autocast_is_that_of_replicas(tmp_path):
    names = ("ddp:bf16", *(f"stage{n}:bf16" for n in (1, 2, 3)))
    launch([Path(deepspeed_runs.__file__), tmp_path, *names], 2)
    expected, *found = (lines(folder_of(tmp_path, name), "loss") for name in names)
    for name, steps in zip(names[1:], found, strict=True):
        # Before the first update, rounding to bf16 cannot tell weights apart.
        assert_close(expected[0], steps[0], float32_tolerance(), name)
        assert_close(expected, steps, float(torch.finfo(torch.bfloat16).eps), name)
