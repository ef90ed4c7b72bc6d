"""Layers split by tensor parallelism compute what complete ones do; `test_split_models` trains with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensor_models
import tensor_runs
from launching import launch
from runs import assert_same_weights, lines, predictions

pytestmark = pytest.mark.distributed

EXACT = 1e-10
QUICK = ("gpt2", "t5", "qwen3", "bert", "marian")
"""Architectures with a fused layer, a split table of positions, norms of heads, a tied bias, and a bias of logits."""


def compared(folder: Path, *names: str) -> dict:
    launch([Path(tensor_models.__file__), folder, *names], 2)
    return json.loads((folder / "results.json").read_text())


def assert_exact(results: dict, names: list[str]) -> None:
    for name in names:
        result = results[name]
        assert result["names"], name
        assert result["moved"] > 1e-2, name
        assert result["share"] < 0.99, name
        assert result["evaluated"] < EXACT, name
        assert result["vocabulary"] in (None, 12 / 23), name  # the main process has 12 of 23 tokens
        assert (result["steps"] < EXACT, result["parameters"] < EXACT) == (True, True), (name, result)


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
    assert results["losses"] < EXACT
    assert results["frozen"]
    assert "different gradients of model.layers.0.self_attn.q_norm.weight" in results["wrong"]


@pytest.mark.slow
def test_every_plan_is_exact(tmp_path):
    assert_exact(compared(tmp_path), [*tensor_models.MODELS])


@pytest.mark.slow
def test_a_resumed_run_with_split_layers_and_dropout_ends_like_one_that_was_not(tmp_path):
    launch([Path(tensor_runs.__file__), tmp_path], 2)
    through, resumed = tmp_path / "through", tmp_path / "resumed"
    assert_same_weights(through, resumed)
    for one, other in zip(lines(through), lines(resumed), strict=True):
        one.pop("exchange_bytes", None), other.pop("exchange_bytes", None)  # counted in a process's first steps
        assert one == other
    assert predictions(through) == predictions(resumed)
