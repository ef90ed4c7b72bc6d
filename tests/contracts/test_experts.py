"""Experts that are split over processes train like those of one process, the routers' loss included."""

from __future__ import annotations

import json
from pathlib import Path

import expert_models
import expert_runs
import pytest
from launching import fork
from runs import assert_close, lines, predictions, weights

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

ON_TWO = (
    "ddp:mixtral", "expert:mixtral", "expert:qwen2", "expert:qwen3", "expert:classifier", "expert:few",
    "expert:budget", "expert:lora", "expert:recompute", "expert:adafactor", "expert:ema", "expert:one_sided",
    "expert:frozen", "expert:frozen_experts", "expert:mixtral:trainer", "expert-fsdp:qwen2", "expert-fsdp:mixtral",
    "expert-fsdp:qwen3:trainer", "expert-fsdp:one_sided", "ddp:qwen2:expert-of-qwen2", "expert:qwen2:qwen2",
    "expert-fsdp:qwen2:expert-of-qwen2",
)  # fmt: skip
ON_FOUR = ("expert-replicas:qwen2", "expert-replicas:few", "expert-hsdp:mixtral", "expert-hsdp:qwen2:trainer")


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    expert_runs.main(folder, *expert_runs.RUNS)
    fork([Path(expert_runs.__file__), folder, *ON_TWO, "expert:bf16"], 2, timeout=1500)
    fork([Path(expert_runs.__file__), folder, *ON_FOUR], 4, timeout=900)
    return folder


@pytest.mark.parametrize("name", [*ON_TWO, *ON_FOUR])
def test_split_experts_train_like_one_process(output, name):
    one, split = output / name.split(":")[1], output / name.replace(":", "-of-")
    number = len(lines(split, "loss"))  # of a resumed run, those after its checkpoint
    assert_close(lines(one, "loss")[-number:], lines(split, "loss"), 1e-10, name)
    assert_close(lines(one, "eval_loss")[-1:], lines(split, "eval_loss")[-1:], 1e-10, name)
    assert_close(predictions(one), predictions(split), 1e-9, name)
    expected, found = weights(one), weights(split)
    assert {key: value.shape for key, value in expected.items()} == {key: value.shape for key, value in found.items()}
    assert max(float((value - found[key]).abs().max()) for key, value in expected.items()) <= 1e-9


def test_every_architecture_computes_with_split_experts_what_it_does_with_complete_ones(tmp_path):
    fork([Path(expert_models.__file__), tmp_path], 2)
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == [*expert_models.KINDS]
    assert max(difference for each in results.values() for difference in each.values()) <= 1e-12, results


def test_the_loss_of_balance_is_trained_and_the_load_is_logged(output):
    first, line = (lines(output / run, "loss")[0] for run in ("mixtral", "one_sided"))
    assert first["loss"] == pytest.approx(line["loss"] + 0.5 * 2, abs=0.1)  # two experts per token: 2 if even
    names = ("router/max_load", "router/min_load", "router/layer_0", "router/layer_1")
    assert 1 < first["router/max_load"] == max(first[name] for name in names) < 2
    assert 2 < line["router/max_load"] <= 4
    assert line["router/min_load"] == 0


def test_each_process_holds_its_experts(output):
    one, split = (json.loads((output / run / "run.json").read_text()) for run in ("qwen2", "expert-of-qwen2"))
    assert (one["mesh"]["expert"], split["mesh"]["expert"], split["mesh"]["replicas"]) == (1, 2, 2)
    of_experts = sum(value.nbytes for name, value in weights(output / "qwen2").items() if "experts" in name)
    for kind, times in (("parameters", 1), ("optimizer_state", 2)):
        spared = one["memory"][kind] - split["memory"][kind]
        assert spared == pytest.approx(times * of_experts / 2, rel=0.01)


def test_16_bits_are_as_near_to_float32_as_autocast_of_one_process(output):
    exact, alone, split = (weights(output / run) for run in ("float32", "bf16", "expert-of-bf16"))
    near, found = (
        sum(float((value - each[name]).square().sum()) for name, value in exact.items()) ** 0.5
        for each in (alone, split)
    )
    assert 0 < found <= 1.3 * near
