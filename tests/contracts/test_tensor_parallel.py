"""Tensor parallelism, alone and with replicas or shards, gives the numbers of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensor_models
import tensor_runs
from launching import launch
from runs import assert_close, assert_same_weights, lines, predictions, weights

EXACT = 1e-10
QUICK = ("gpt2", "t5", "qwen3")
"""Architectures with a fused layer, a split table of positions, and norms of heads."""


def compared(folder: Path, *names: str) -> dict:
    launch([Path(tensor_models.__file__), folder, *names], 2)
    return json.loads((folder / "results.json").read_text())


def assert_exact(results: dict, names: list[str]) -> None:
    for name in names:
        result = results[name]
        assert result["names"], name
        assert result["moved"] > 1e-2, name
        assert result["share"] < 0.99, name
        assert (result["steps"] < EXACT, result["parameters"] < EXACT) == (True, True), (name, result)


@pytest.mark.distributed
def test_a_split_model_is_exact_and_drops_independently(tmp_path):
    results = compared(tmp_path, *QUICK)
    assert_exact(results, [*QUICK])
    outside, inside = results["masks"]["3"], results["masks"]["4"]
    assert outside["agreeing"] == 1.0
    for masks, agreeing in ((outside, 1.0), (inside, 0.7**2 + 0.3**2)):
        error = (0.25 / masks["elements"]) ** 0.5
        assert abs(masks["kept"] - 0.7) < 5 * error
        assert abs(masks["agreeing"] - agreeing) < 5 * error
    assert results["recomputed"]
    assert results["frozen"]
    assert "different gradients of model.layers.0.self_attn.q_norm.weight" in results["wrong"]


@pytest.mark.slow
@pytest.mark.distributed
def test_every_plan_is_exact(tmp_path):
    assert_exact(compared(tmp_path), [*tensor_models.MODELS])


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Returns the output folders of `tensor_runs` on 1, 2 and 4 processes."""
    folder = tmp_path_factory.mktemp("tensor")
    tensor_runs.main(folder, 1)
    for processes in (2, 4):
        launch([Path(tensor_runs.__file__), folder], processes, timeout=1200)
    return folder


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("mesh", ["tensor", "replicas-tensor", "fsdp-tensor"])
@pytest.mark.parametrize("name", tensor_runs.RUNS)
def test_every_mesh_trains_and_predicts_like_one_process(runs, mesh, name):
    one, other = runs / f"one-{name}", runs / f"{mesh}-{name}"
    steps = lines(one, "loss")
    assert steps[-1]["num_items"] < steps[0]["num_items"]
    assert any(step["grad_norm"] > 0.5 for step in steps)  # clipped
    assert_close(lines(one), lines(other), EXACT)
    assert_close(predictions(one), predictions(other), EXACT)
    left, right = weights(one), weights(other)
    assert_close({k: v.tolist() for k, v in left.items()}, {k: v.tolist() for k, v in right.items()}, EXACT)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("name", ["reviews", "translation"])
def test_both_engines_do_the_same_with_split_layers(runs, name):
    assert_same_weights(runs / f"tensor-{name}", runs / f"trainer-{name}")
    assert lines(runs / f"tensor-{name}") == lines(runs / f"trainer-{name}")


@pytest.mark.slow
@pytest.mark.distributed
def test_a_resumed_run_with_split_layers_and_dropout_ends_like_one_that_was_not(runs):
    assert_same_weights(runs / "through", runs / "resumed")
    assert lines(runs / "through") == lines(runs / "resumed")
    assert predictions(runs / "through") == predictions(runs / "resumed")
