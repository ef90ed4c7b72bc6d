"""Every family that `train.unpadded` covers is compared with its padded model; docs/unpadded.json lists them."""

from __future__ import annotations

import pytest
from unpadded_families import CAUSAL, HEADS, IN_FLOAT32, batch, copies, difference, recompute

from toolkit.models.unpadded import attend
from toolkit.models.unpadded.families import EXACT, ISLANDS

pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")  # WavLM's own
EVERY = [(kind, head) for kind, heads in HEADS.items() for head in heads]


def test_every_covered_family_is_compared():
    assert set(HEADS) == EXACT | ISLANDS
    assert len(EXACT) >= 52


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["split", "together"])
@pytest.mark.parametrize(("kind", "head"), EVERY)
def test_outputs_and_gradients_are_those_of_the_padded_model(kind, head, kernel, monkeypatch):
    monkeypatch.setattr(attend, "LONGEST_TOGETHER", 0 if kernel == "split" else 64)
    found = difference(*copies(kind, head), batch(head))
    assert found.flat
    assert found.output <= 1e-12
    assert found.gradient <= (1e-6 if kind in IN_FLOAT32 else 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "head"), EVERY)
def test_and_with_recomputed_layers(kind, head):
    padded, unpadded = copies(kind, head)
    if not unpadded.supports_gradient_checkpointing:
        pytest.skip(f"{kind} cannot recompute activations")
    recompute(unpadded)
    if head == CAUSAL:
        unpadded.config.use_cache = False
    found = difference(padded, unpadded, batch(head))
    assert found.flat
    assert found.output <= 1e-12
    assert found.gradient <= (1e-6 if kind in IN_FLOAT32 else 1e-12)
