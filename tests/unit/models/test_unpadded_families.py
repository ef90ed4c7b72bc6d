"""Every family that `train.unpadded` covers is compared with its padded model; docs/unpadded.json lists them."""

from __future__ import annotations

import json
import os

import pytest
from runs import ROOT
from unpadded_families import CAUSAL, HEADS, IN_FLOAT32, batch, copies, difference, recompute

from toolkit.models.unpadded import attention
from toolkit.models.unpadded.families import EXACT, ISLANDS, POSITIONED

pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")  # WavLM's own
EVERY = [(kind, head) for kind, heads in HEADS.items() for head in heads]


FIGURES = ROOT / "docs" / "unpadded.json"


def bound(kind):
    return 1e-6 if kind in IN_FLOAT32 else 1e-12


def test_every_covered_family_is_compared():
    assert set(HEADS) == EXACT | ISLANDS
    assert len(EXACT) >= 52


def test_the_table_in_the_docs_has_the_families_that_are_tested():
    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    assert list(found) == sorted(HEADS)
    for kind, each in found.items():
        assert tuple(each["heads"]) == HEADS[kind]
        assert each["coverage"] == ("exact" if kind in EXACT else "islands")
        assert each["in_float32"] == (kind in IN_FLOAT32)
        assert each["output"] <= 1e-12
        assert each["gradient"] <= bound(kind)


@pytest.mark.slow
@pytest.mark.skipif("WRITE_FIGURES" not in os.environ, reason="writes docs/unpadded.json")
def test_write_the_figures(monkeypatch):
    figures = {}
    for kind, heads in sorted(HEADS.items()):
        found = []
        for longest in (0, attention.LONGEST_TOGETHER):
            with monkeypatch.context() as patch:
                patch.setattr(attention, "LONGEST_TOGETHER", longest)
                found += [difference(*copies(kind, head), batch(head)) for head in heads]
        figures[kind] = {
            "heads": heads,
            "coverage": "exact" if kind in EXACT else "islands",
            "in_float32": kind in IN_FLOAT32,
            "output": max(each.output for each in found),
            "gradient": max(each.gradient for each in found),
        }
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


@pytest.mark.fast(0)
@pytest.mark.parametrize("kernel", ["split", "together"])
@pytest.mark.parametrize(("kind", "head"), EVERY)
def test_outputs_and_gradients_are_those_of_the_padded_model(kind, head, kernel, monkeypatch):
    monkeypatch.setattr(attention, "LONGEST_TOGETHER", 0 if kernel == "split" else 64)
    found = difference(*copies(kind, head), batch(head))
    assert found.flat
    assert found.output <= 1e-12
    assert found.gradient <= bound(kind)


@pytest.mark.fast(0)
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
    assert found.gradient <= bound(kind)


@pytest.mark.fast(3)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "gemma2", *sorted(POSITIONED - {"llama", "gemma2"})])
def test_rows_that_share_one_compute_the_same(kind, attention):
    only = {"gemma2": "eager", "vaultgemma": "eager", "gpt-sw3": "sdpa"}
    if only.get(kind, attention) != attention:
        pytest.skip(f"transformers has no {attention} attention for {kind}")
    # In float64, transformers' eager attention has no finite result for padding outside of a window.
    padded, packed = copies(kind, CAUSAL, packed=True, attn_implementation=attention, sliding_window=64)
    found = difference(padded, packed, batch(CAUSAL) | {"use_cache": False})
    assert found.shared
    assert found.output <= 1e-12
    partly = (*IN_FLOAT32, "gemma2", "vaultgemma", "ernie4_5_moe")  # the last one's router
    assert found.gradient <= (1e-6 if kind in partly else 1e-12)


def test_batches_that_have_no_rows_to_share_stay_as_they_are():
    padded, packed = copies("llama", CAUSAL, packed=True)
    found = difference(padded, packed, batch(CAUSAL, (20, 20, 20, 20, 20, 19)))
    assert (found.shared, found.output) == (False, 0)
    prompts = {name: value[:, :12] for name, value in batch(CAUSAL, (12, 12)).items()}
    same = [model.eval().generate(**prompts, max_new_tokens=4, do_sample=False) for model in (padded, packed)]
    assert same[0].equal(same[1])
