"""Layers split by tensor parallelism compute what complete ones do; `test_split_models` trains with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensor_models
import tensor_runs
from launching import fork
from runs import assert_same_weights, lines, predictions

pytestmark = pytest.mark.distributed

EXACT = 1e-10


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    """Returns what two processes found out about every architecture."""
    folder = tmp_path_factory.mktemp("tensor")
    fork([Path(tensor_models.__file__), folder], 2)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("name", [*tensor_models.MODELS, *(f"{name}, tokens" for name in tensor_models.OF_TOKENS)])
def test_every_plan_is_exact(results, name):
    result = results[name]
    assert result["names"]
    assert result["moved"] > 1e-2
    assert result["share"] < 0.99
    assert result["evaluated"] < EXACT
    assert result["vocabulary"] in (None, 12 / 23)  # the main process has 12 of 23 tokens
    assert (result["steps"] < EXACT, result["parameters"] < EXACT) == (True, True), result


def test_dropout_is_independent_inside_of_split_layers(results):
    outside, inside, tokens = results["masks"]["3"], results["masks"]["4"], results["masks of tokens"]["3"]
    assert outside["agreeing"] == 1.0
    for masks, agreeing in ((outside, 1.0), (inside, 0.7**2 + 0.3**2), (tokens, 0.7**2 + 0.3**2)):
        error = (0.25 / masks["elements"]) ** 0.5
        assert abs(masks["kept"] - 0.7) < 5 * error
        assert abs(masks["agreeing"] - agreeing) < 5 * error
    assert results["recomputed"]
    assert results["recomputed tokens"]
    assert results["losses"] < EXACT
    assert results["frozen"]
    assert "different gradients of model.layers.0.self_attn.q_norm.weight" in results["wrong"]


def test_a_resumed_run_with_split_layers_and_dropout_ends_like_one_that_was_not(tmp_path):
    fork([Path(tensor_runs.__file__), tmp_path], 2)
    through, resumed = tmp_path / "through", tmp_path / "resumed"
    assert_same_weights(through, resumed)
    for one, other in zip(lines(through), lines(resumed), strict=True):
        one.pop("exchange_bytes", None), other.pop("exchange_bytes", None)  # counted in a process's first steps
        assert one == other
    assert predictions(through) == predictions(resumed)
