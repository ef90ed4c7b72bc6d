"""Tokens that a pretrained model has not learned: their rows are trained, or a warning names them."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from commands import run_command
from runs import SGD, assert_same_weights, lines, train, weights
from stopping import StoppedError, stopper
from tolerances import FLOAT64

import toolkit
from toolkit.base.errors import ConfigError
from toolkit.config.sections import AdapterConfig
from toolkit.models.adapters import add_adapters, load_adapters, merged, save_adapters

CHAT = "language_modeling/smoke_chat"
NEW = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FEW = ("train.max_steps=4", "data.max_train_samples=12", "data.max_eval_samples=5", "task.prompts=null")


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def settings(request, tmp_path_factory) -> tuple[str, ...]:
    """Settings of a chat on a model to which tokens were just added."""
    made = tmp_path_factory.mktemp("base")
    train(CHAT, made / "run", *FEW, f"model.from_config.tie_word_embeddings={str(request.param).lower()}")
    model = transformers.AutoModelForCausalLM.from_pretrained(made / "run/model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(made / "run/model")
    tokenizer.add_tokens(NEW, special_tokens=True)
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer))
    for each in (model, tokenizer):
        each.save_pretrained(made / "grown")
    assert tokenizer.convert_tokens_to_ids(NEW) == [400, 401]
    template = f"task.chat_template={json.dumps(TEMPLATE)}"
    adapters = ("model.peft.method=lora", "train.unpadded=false")
    return (*FEW, *SGD, f"model.name_or_path={made / 'grown'}", template, *adapters)


TRAINED = "model.peft.trainable_token_indices=[400, 401]"


@pytest.mark.fast(1)
def test_a_run_that_does_not_train_them_says_so(settings, tmp_path, caplog, capsys):
    train(CHAT, tmp_path / "run", *settings, "train.max_steps=1")
    said = f"has not learned {NEW[0]}, {NEW[1]} of the chat template, and embeddings are frozen; set {TRAINED} to"
    assert said in caplog.text + capsys.readouterr().err
    caplog.clear()
    train(CHAT, tmp_path / "other", *settings, TRAINED, "train.max_steps=1")
    assert "has not learned" not in caplog.text + capsys.readouterr().err


@pytest.mark.fast(1)
def test_their_rows_are_trained_saved_and_merged(settings, tmp_path):
    runs = {"run": "train.chunked_loss=false", "chunked": "train.chunked_loss=true", "trainer": "engine=trainer"}
    for name, own in runs.items():
        train(CHAT, tmp_path / name, *settings, TRAINED, own, double=True)
    expected = weights(tmp_path / "run")
    assert sum("trainable_tokens_delta" in name for name in expected) == 2 - is_tied(tmp_path)
    for name in ("chunked", "trainer"):
        for key, value in weights(tmp_path / name).items():
            torch.testing.assert_close(value, expected[key], rtol=0, atol=FLOAT64)
    assert run_command("merge", tmp_path / "run") == 0
    base = base_of(settings)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run/merged")
    layers = [base.get_input_embeddings(), base.get_output_embeddings()]
    for before, after in zip(layers, [found.get_input_embeddings(), found.get_output_embeddings()], strict=True):
        moved = (after.weight - before.weight).abs().amax(-1)
        assert moved.nonzero().flatten().tolist() == [400, 401]
        assert moved[400:].min() > 1e-4
    adapted = toolkit.load(tmp_path / "run").bare_model
    inputs = {"input_ids": torch.tensor([[400, 7, 8, 401, 9]])}
    with torch.no_grad():
        torch.testing.assert_close(found.eval()(**inputs).logits, adapted(**inputs).logits, rtol=1e-5, atol=1e-5)


def base_of(settings):
    (folder,) = (text.partition("=")[2] for text in settings if text.startswith("model.name_or_path="))
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def is_tied(folder) -> bool:
    config = json.loads((folder / "run/model/config.json").read_text())
    return bool(config["tie_word_embeddings"])


@pytest.mark.fast(1)
def test_a_run_stopped_in_between_ends_with_the_same_bits(settings, tmp_path, monkeypatch):
    every = (*settings, TRAINED, "checkpoint.save_steps=1", "model.peft.lora_dropout=0.1")
    train(CHAT, tmp_path / "whole", *every)
    stop_before = stopper(monkeypatch)
    stop_before(3)
    with pytest.raises(StoppedError):
        train(CHAT, tmp_path / "parts", *every)
    stop_before(None)
    train(CHAT, tmp_path / "parts", *every, "checkpoint.resume=auto")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")


def small(tied: bool) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, vocab_size=40, tie_word_embeddings=tied)
    return transformers.LlamaForCausalLM(config).double().eval()


def test_low_rank_updates_of_embeddings_are_saved_and_merged_unless_they_are_tied(tmp_path):
    own = AdapterConfig(method="lora", target_modules=["q_proj", "embed_tokens"])
    with pytest.raises(ConfigError, match=r"peft rejects this for Llama.*a tied layer is part of the adapter"):
        add_adapters(small(tied=True), own, "AutoModelForCausalLM", 0)
    adapted = add_adapters(small(tied=False), own, "AutoModelForCausalLM", 0)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += 0.3 * torch.randn_like(parameter)
    save_adapters(adapted, tmp_path / "model", tmp_path, "base", tmp_path)
    loaded = load_adapters(small(tied=False), tmp_path / "model").double()
    inputs = {"input_ids": torch.arange(40)[None]}
    with torch.no_grad():
        expected, before = adapted.eval()(**inputs).logits, small(tied=False)(**inputs).logits
        torch.testing.assert_close(loaded.eval()(**inputs).logits, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(merged(loaded)(**inputs).logits, expected, rtol=0, atol=1e-12)
    assert (expected - before).abs().max() > 0.1


def test_ids_that_no_token_has_are_rejected():
    own = AdapterConfig(method="lora", trainable_token_indices=[3, 40])
    with pytest.raises(ConfigError, match="received 40, but there are 40 tokens"):
        add_adapters(small(tied=True), own, "AutoModelForCausalLM", 0)
