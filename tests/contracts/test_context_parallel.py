"""Models whose positions are split over processes compute what whole ones do; `test_split_models` trains with them."""

from __future__ import annotations

import json
from pathlib import Path

import context_models
import pytest
from launching import fork

from toolkit.distributed.context import MODELS

pytestmark = pytest.mark.distributed

IN_FLOAT32 = ("gemma",)
"""Model types that compute parts of a layer in float32 whatever the type of the model."""


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    """Returns what three processes found out about every model type."""
    folder = tmp_path_factory.mktemp("context")
    fork([Path(context_models.__file__), folder], 3)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_every_model_type_is_exact(results, kind):
    found = {name: each for name, each in results.items() if name.startswith(f"{kind}:")}
    assert len(found) == len(context_models.heads(kind)) * len(context_models.LENGTHS)
    for name, each in found.items():
        assert each["loss"] <= 1e-11, name
        assert each["gradient"] <= (1e-6 if kind in IN_FLOAT32 else 1e-11), name
        assert each["evaluated"] <= 1e-12, name


def test_the_backward_pass_draws_the_dropout_of_the_forward_pass(results):
    for found in results["dropout"]:
        assert abs(found["slope"]) > 0.1
        assert found["slope"] == pytest.approx(found["difference"], rel=1e-5)
