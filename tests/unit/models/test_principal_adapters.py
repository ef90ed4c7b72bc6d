"""Adapters that start as the principal part of their weights (PiSSA, OLoRA): saved, resumed, merged, compared."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from adapter_models import FEW
from commands import run_command
from runs import SGD, assert_same_weights, lines, numbers, predictions, train, weights
from stopping import StoppedError, stopper

import toolkit
from toolkit.base.errors import ConfigError
from toolkit.config.sections import AdapterConfig
from toolkit.models.adapters import add_adapters, load_adapters, merged, save_adapters

STARTS = [("lora", "pissa"), ("rslora", "pissa"), ("lora", "olora"), ("rslora", "pissa_niter_4")]
SIZES = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2}


def base_model(kind: str = "llama") -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(kind, **(SIZES if kind == "gpt2" else {**sizes, "vocab_size": 40}))
    config.use_cache = False
    return transformers.AutoModelForCausalLM.from_config(config).double().eval()


def settings(method: str, start: str, **further) -> AdapterConfig:
    return AdapterConfig(method=method, r=3, lora_alpha=5, init_lora_weights=start, **further)


def outputs(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(40)[None] % 37).logits


def disturbed(adapted) -> None:
    """Trains, in a way."""
    torch.manual_seed(3)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += 0.3 * torch.randn_like(parameter)


@pytest.mark.fast(3)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize(("method", "start"), STARTS)
def test_saved_adapters_fit_the_unchanged_base_in_float64(kind, method, start, tmp_path):
    if (kind, start) == ("gpt2", "olora"):
        with pytest.raises(ConfigError, match=r"and .*c_attn is none"):
            add_adapters(base_model(kind), settings(method, start), "AutoModelForCausalLM", 0)
        return
    before = outputs(base_model(kind))
    adapted = add_adapters(base_model(kind), settings(method, start), "AutoModelForCausalLM", 0)
    assert (outputs(adapted) - before).abs().max() < 1e-13
    with adapted.disable_adapter():
        assert (outputs(adapted) - before).abs().max() > 1e-3  # the frozen weights lack their principal part
    disturbed(adapted)
    expected = outputs(adapted)
    assert (expected - before).abs().max() > 1e-3
    for folder in (tmp_path / "one", tmp_path / "two"):  # saving changes nothing
        save_adapters(adapted, folder, tmp_path / "base", "somewhere", folder)
    for folder in (tmp_path / "one", tmp_path / "two"):
        saved = json.loads((folder / "adapter_config.json").read_text())
        assert (saved["r"], saved["init_lora_weights"], saved["base_model_name_or_path"]) == (6, True, "somewhere")
        again = load_adapters(base_model(kind), folder).double()
        assert (outputs(again) - expected).abs().max() < 1e-12
        with again.disable_adapter():  # the model before training, with which preferences compare
            assert torch.equal(outputs(again), before)
        assert (outputs(merged(again)) - expected).abs().max() < 1e-12
    assert (outputs(merged(adapted)) - expected).abs().max() < 1e-12


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own
@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_they_start_as_those_of_peft(start):
    from peft import LoraConfig, get_peft_model

    adapted = add_adapters(base_model().float(), settings("lora", start, target_modules=["q_proj"]), "Auto", 0)
    theirs = LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj"], init_lora_weights=start)
    expected = get_peft_model(base_model().float(), theirs).state_dict()
    found = {name: value for name, value in adapted.state_dict().items() if "initial" not in name}
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("targets", [["embed_tokens"], ["q_proj"]])
def test_layers_that_have_no_principal_part_are_rejected(targets):
    rank = AdapterConfig(method="lora", r=17, init_lora_weights="pissa", target_modules=targets)
    with pytest.raises(
        ConfigError, match=r"pissa. needs linear layers of at least 17 rows and columns, and .* is none"
    ):
        add_adapters(base_model(), rank, "AutoModelForCausalLM", 0)


def run_settings(start: str) -> tuple[str, ...]:
    return (*FEW, "model.peft.method=lora", "model.peft.r=4", f"model.peft.init_lora_weights={start}")


@pytest.mark.fast(1)
@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_a_run_is_the_same_with_both_engines_saved_and_merged(start, tmp_path, capsys):
    run, other = tmp_path / "run", tmp_path / "trainer"
    train("reviews", run, *run_settings(start), *SGD, double=True)
    train("reviews", other, *run_settings(start), *SGD, "engine=trainer", double=True)
    assert_same_weights(run, other)
    model = toolkit.load(run)
    assert model.bare_model.peft_config["default"].r == 8
    rows = [{"text": row["text"]} for row in predictions(run)]
    for new, old in zip(model.predict(rows), predictions(run), strict=True):
        assert new["scores"] == pytest.approx(old["scores"], abs=1e-5)  # they are opened in float32
    assert run_command("merge", run) == 0
    assert "largest difference of an output on" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_stopped_in_between_ends_with_the_same_bits(tmp_path, monkeypatch):
    every = (*run_settings("pissa_niter_4"), "checkpoint.save_steps=1", "train.max_steps=4", "eval.eval_steps=1",
             "model.peft.lora_dropout=0.1", "checkpoint.load_best_model_at_end=true")  # fmt: skip
    stop_before = stopper(monkeypatch)
    train("reviews", tmp_path / "whole", *every)
    stop_before(3)
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *every)
    stop_before(None)
    train("reviews", tmp_path / "parts", *every, "checkpoint.resume=auto")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    best = tmp_path / "parts" / "checkpoints" / "step-4"
    assert run_command("checkpoint", "convert", best, "--output", tmp_path / "model") == 0
    (file,) = (tmp_path / "model").glob("*.safetensors")
    from safetensors.torch import load_file

    assert load_file(file).keys() == weights(tmp_path / "parts").keys()
    assert numbers(tmp_path / "parts").keys() == weights(tmp_path / "whole").keys()
