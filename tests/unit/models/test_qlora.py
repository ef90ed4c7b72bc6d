"""LoRA on 4-bit weights, on the CPU: trained, resumed to the bit, converted, and merged into dequantized weights."""

from __future__ import annotations

import json

import pytest
import torch
from adapter_models import FEW
from commands import run_command
from runs import assert_same_weights, lines, train, weights
from safetensors.torch import load_file
from stopping import StoppedError, stopper
from transformers import AutoModelForCausalLM

import toolkit
from toolkit.checkpoint.contents import load_model_into
from toolkit.checkpoint.resume import newest

TASK = "language_modeling"
LARGER = ("model.from_config.hidden_size=64", "model.from_config.intermediate_size=64")
"""Sizes that bitsandbytes would pack for its kernels."""
TRAINED = (*FEW, "model.peft.method=qlora", "model.peft.lora_dropout=0.1", "train.max_steps=4", "eval.eval_steps=1",
           "checkpoint.save_steps=1", "checkpoint.load_best_model_at_end=true")  # fmt: skip


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> tuple[str, ...]:
    base = tmp_path_factory.mktemp("base") / "run"
    train(TASK, base, *FEW, *LARGER, "train.max_steps=1")
    return (*TRAINED, f"model.name_or_path={base / 'model'}")


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("qlora") / "run"
    train(TASK, folder, *settings)
    return folder


@pytest.mark.slow
def test_a_run_stopped_in_between_ends_with_the_same_bits(settings, whole, tmp_path, monkeypatch):
    stop_before = stopper(monkeypatch)
    stop_before(3)
    with pytest.raises(StoppedError):
        train(TASK, tmp_path / "run", *settings)
    stop_before(None)
    train(TASK, tmp_path / "run", *settings, "checkpoint.resume=auto", "engine=trainer")
    assert_same_weights(whole, tmp_path / "run")
    assert lines(whole) == lines(tmp_path / "run")


def test_a_checkpoint_restores_every_value_of_the_4_bit_weights(whole):
    model = toolkit.load(whole).bare_model
    found = {name: value.clone() for name, value in model.state_dict().items() if "base_layer" in name}
    assert sum("bitsandbytes__" in name for name in found) == 14
    for module in model.modules():
        if state := getattr(getattr(module, "weight", None), "quant_state", None):
            module.weight.data.zero_()
            state.absmax.zero_()
            state.state2.absmax.fill_(7)
            state.offset.fill_(3)
    assert not any(torch.equal(model.state_dict()[name], value) for name, value in found.items() if "map" not in name)
    load_model_into(newest(whole)[0], model)
    assert [name for name, value in found.items() if not torch.equal(model.state_dict()[name], value)] == []


def test_evaluation_changes_no_weight(whole):
    model = toolkit.load(whole).bare_model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.eval()(input_ids=torch.arange(30)[None])
    assert [name for name, value in model.state_dict().items() if not torch.equal(before[name], value)] == []
    assert model.state_dict().keys() == before.keys()


@pytest.mark.slow
def test_a_checkpoint_converts_and_the_adapters_merge_into_dequantized_weights(whole, tmp_path, capsys):
    assert run_command("checkpoint", "convert", newest(whole)[0].path, "--output", tmp_path / "model") == 0
    converted = load_file(tmp_path / "model" / "adapter_model.safetensors")
    assert converted.keys() == weights(whole).keys()
    assert run_command("merge", whole) == 0
    assert "largest difference of an output on" in capsys.readouterr().out
    parity = json.loads((whole / "merged" / "parity.json").read_text())
    assert 0 < parity["largest_difference"] < 1e-5
    plain = AutoModelForCausalLM.from_pretrained(whole / "merged")
    assert getattr(plain.config, "quantization_config", None) is None
    inputs = {"input_ids": torch.arange(30)[None]}
    with torch.no_grad():
        expected, found = (each.eval()(**inputs).logits for each in (toolkit.load(whole).bare_model, plain))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
