"""Models that are loaded, initialised or refused, and models whose rows depend on each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from launching import ROOT
from transformers import (
    AutoConfig,
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
)

from toolkit.base.errors import ConfigError, InputError
from toolkit.config.sections import ModelConfig
from toolkit.models.load import batch_dependence, build_model, load_model_config

SIZES = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
         "max_position_embeddings": 16}  # fmt: skip
HEAD = "AutoModelForSequenceClassification"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(**SIZES, num_labels=3)).save_pretrained(folder)
    return folder


def test_weights_are_loaded_and_a_head_of_another_size_is_new_but_repeatable(pretrained):
    settings = ModelConfig(name_or_path=str(pretrained))
    config = load_model_config(settings)
    config.num_labels = 5
    one, other = (build_model(settings, config, HEAD, seed=4) for _ in range(2))
    original = BertForSequenceClassification.from_pretrained(pretrained)
    assert one.classifier.weight.shape == (5, 8)
    assert torch.equal(one.classifier.weight, other.classifier.weight)
    assert torch.equal(one.bert.embeddings.word_embeddings.weight, original.bert.embeddings.word_embeddings.weight)


def test_weights_are_trained_in_float32_whatever_they_were_saved_in(pretrained, tmp_path):
    BertForSequenceClassification.from_pretrained(pretrained).to(torch.bfloat16).save_pretrained(tmp_path)
    settings = ModelConfig(name_or_path=str(tmp_path))
    assert build_model(settings, load_model_config(settings), HEAD, seed=1).dtype == torch.float32


def test_weights_are_no_map_of_the_file(pretrained, tmp_path):
    shutil.copytree(pretrained, tmp_path / "model")
    file, settings = tmp_path / "model" / "model.safetensors", ModelConfig(name_or_path=str(tmp_path / "model"))
    config = load_model_config(settings)
    loaded = build_model(settings, config, HEAD, seed=1)
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    content = file.read_bytes()
    with file.open("r+b") as opened:  # as `cp` over a file does; a rename makes another one
        opened.write(b"\0" * len(content))
    assert all(torch.equal(value, before[name]) for name, value in loaded.state_dict().items())
    with file.open("r+b") as opened:
        opened.write(content)
        opened.truncate(len(content) // 2)
    with pytest.raises(InputError, match=r"model\.safetensors is damaged"):
        build_model(settings, config, HEAD, seed=1)


@pytest.mark.parametrize(
    ("pooling", "said"),
    [({"pooling_mode_mean_tokens": True}, True), ({"pooling_mode": "mean"}, True), ({"pooling_mode": "cls"}, False)],
)
def test_a_sentence_encoder_whose_mean_is_not_used_is_named(pretrained, tmp_path, capsys, pooling, said):
    folder = tmp_path / "encoder"
    shutil.copytree(pretrained, folder)
    settings = ModelConfig(name_or_path=str(folder))
    config = load_model_config(settings)
    build_model(settings, config, HEAD, seed=1)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{")
    build_model(settings, config, HEAD, seed=1)
    assert "average its tokens" not in capsys.readouterr().out
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    build_model(settings, config, "AutoModelForTokenClassification", seed=1)
    assert "average its tokens" not in capsys.readouterr().out
    build_model(settings, config, HEAD, seed=1)
    assert (f"{folder} was trained to average its tokens" in capsys.readouterr().out) is said


def test_sizes_that_do_not_fit_the_weights_are_rejected(pretrained):
    settings = ModelConfig(name_or_path=str(pretrained), config_overrides={"hidden_size": 16})
    with pytest.raises(InputError, match="do not fit BertForSequenceClassification"):
        build_model(settings, load_model_config(settings), HEAD, seed=1)


def test_pickled_weights_are_not_loaded(pretrained, tmp_path):
    model = BertForSequenceClassification.from_pretrained(pretrained)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    settings = ModelConfig(name_or_path=str(tmp_path))
    with pytest.raises(InputError, match=r"model\.name_or_path: cannot load"):
        build_model(settings, load_model_config(settings), HEAD, seed=1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_folder_with_a_pipe_is_rejected(pretrained, tmp_path, name):
    """Whoever opens it would wait for ever."""
    folder = shutil.copytree(pretrained, tmp_path / "model")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=rf"model\.name_or_path: .* holds {name}, not a regular file; remove it"):
        load_model_config(ModelConfig(name_or_path=str(folder)))


def test_code_beside_a_model_does_not_run(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}))
    (tmp_path / "mine.py").write_text("raise SystemExit('this code was run')")
    with pytest.raises(InputError, match=r"model\.name_or_path: cannot load"):
        load_model_config(ModelConfig(name_or_path=str(tmp_path)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"from_config": {"model_type": "birt"}},
            r"model\.from_config\.model_type: received 'birt'.*did you mean.*bert",
        ),
        (
            {"from_config": {"model_type": "bert", "hiden_size": 8}},
            r"model\.from_config\.hiden_size.*mean 'hidden_size'",
        ),
        ({"from_config": {"model_type": "bert", "hidden_size": "8"}}, r"model\.from_config: bert .*hidden_size"),
        (
            {"from_config": {"model_type": "bert"}, "config_overrides": {"dropout": 0.1}},
            r"overrides\.dropout.*BertConfig has no",
        ),
        (
            {"from_config": {"model_type": "bert", "num_hidden_layers": 10**9}},
            r"model\.from_config\.num_hidden_layers: received 1000000000, expected at most 16384",
        ),
        (
            {"from_config": {"model_type": "swin", "depths": [2, 10**9]}},
            r"model\.from_config\.depths: received 1000000000, expected at most 16384",
        ),
        (
            {"from_config": {"model_type": "mixtral", "num_local_experts": 10**9}},
            r"model\.from_config\.num_local_experts: received 1000000000, expected at most 16384",
        ),
        (
            {"from_config": {"model_type": "clip", "text_config": {"num_hidden_layers": 10**9}}},
            r"model\.from_config\.text_config\.num_hidden_layers: received 1000000000, expected at most 16384",
        ),
        (
            {"from_config": {"model_type": "t5"}, "config_overrides": {"num_layers": 10**9}},
            r"model\.config_overrides\.num_layers: received 1000000000, expected at most 16384",
        ),
        ({"name_or_path": "no/such-model"}, r"model\.name_or_path: cannot load 'no/such-model'"),
    ],
)
def test_wrong_models_are_said_plainly(settings, message):
    with pytest.raises((ConfigError, InputError), match=message):
        load_model_config(ModelConfig(**settings))


def test_a_folder_that_asks_for_endless_layers_is_rejected_before_its_configuration_is_made(tmp_path):
    """Its class makes a list with one entry per layer."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "num_hidden_layers": 10**12}))
    with pytest.raises(ConfigError, match=r"name_or_path\.num_hidden_layers: received 1000000000000, expected at most"):
        load_model_config(ModelConfig(name_or_path=str(tmp_path)))


def test_sizes_with_the_name_of_a_layer_are_no_counts():
    sizes = {"shared_expert_intermediate_size": 20480, "num_hidden_layers": 1}
    config = load_model_config(ModelConfig(from_config={"model_type": "qwen2_moe", **sizes}))
    assert config.shared_expert_intermediate_size == 20480


def test_models_whose_rows_depend_on_each_other_are_known():
    resnet = AutoConfig.for_model("resnet", embedding_size=4, hidden_sizes=[4], depths=[1])
    (reason,) = batch_dependence(AutoModelForImageClassification.from_config(resnet))
    assert "batch normalisation" in reason
    convolution = {"conv_dim": (8,), "conv_stride": (5,), "conv_kernel": (10,), "num_feat_extract_layers": 1}
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    group = AutoConfig.for_model("wav2vec2", **sizes, **convolution, num_conv_pos_embedding_groups=2)
    assert "group normalisation" in batch_dependence(AutoModelForAudioClassification.from_config(group))[0]
    xlnet = AutoConfig.for_model("xlnet", vocab_size=30, d_model=8, n_layer=1, n_head=2, d_inner=8)
    assert "last position" in batch_dependence(AutoModelForSequenceClassification.from_config(xlnet))[0]


WIDTH = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


@pytest.mark.parametrize(
    ("kind", "auto_class", "sizes"),
    [
        ("bert", AutoModelForSequenceClassification, SIZES),
        ("vit", AutoModelForImageClassification, {"image_size": 8, "patch_size": 4, **WIDTH}),
        ("convnext", AutoModelForImageClassification, {"hidden_sizes": [4, 4], "depths": [1, 1], "num_stages": 2}),
        ("wav2vec2", AutoModelForAudioClassification,
         {"feat_extract_norm": "layer", "conv_dim": [8], "conv_stride": [5], "conv_kernel": [10],
          "num_feat_extract_layers": 1, "num_conv_pos_embedding_groups": 2, **WIDTH}),
        ("audio-spectrogram-transformer", AutoModelForAudioClassification, {"max_length": 32, **WIDTH}),
        ("whisper", AutoModelForAudioClassification,
         {"d_model": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_layers": 1}),
    ],
)  # fmt: skip
def test_models_whose_rows_stand_alone_are_not_warned_of(kind, auto_class, sizes):
    assert batch_dependence(auto_class.from_config(AutoConfig.for_model(kind, **sizes))) == []


def test_a_damaged_folder_is_not_said_to_be_missing(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot load the model in the folder .*\n  Reason: ") as refused:
        load_model_config(ModelConfig(name_or_path=str(tmp_path)))
    assert "Hub" not in str(refused.value)


def test_what_to_do_is_not_cut_from_a_message_of_transformers(tmp_path):
    (tmp_path / "own.py").write_text("from transformers import PretrainedConfig\nclass Own(PretrainedConfig): pass\n")
    for settings, remedy in (
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}},
            "Please pass the argument model.trust_remote_code=true (for a finished run: --trust-remote-code)",
        ),
        ({"model_type": "from_the_future"}, "pip install --upgrade transformers"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(settings))
        with pytest.raises(InputError) as refused:
            load_model_config(ModelConfig(name_or_path=str(tmp_path)))
        assert remedy in str(refused.value)
        assert str(refused.value).count("\n") == 1  # the reason is one line


@pytest.mark.slow
def test_code_is_not_imported_while_tensors_have_no_memory():
    """What a library computes while it is imported would have no values either."""
    code = """
        import sys
        from importlib.abc import MetaPathFinder
        import torch, transformers
        from toolkit.models.load import build_empty
        class Seen(MetaPathFinder):
            names = []
            def find_spec(self, name, path, target=None):
                if torch.empty(0).is_meta:
                    self.names.append(name)
        sys.meta_path.insert(0, Seen())
        config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        model = build_empty(transformers.AutoModelForSequenceClassification, config)
        assert all(parameter.is_meta for parameter in model.parameters())
        print([name for name in Seen.names if name.startswith("transformers")])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]"]


SMALL = {"vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 48}
LARGEST = {"xavier_uniform": (6 / (48 + 192)) ** 0.5, "kaiming_uniform": (6 / 48) ** 0.5}
"""Limits of the uniform distributions for 48 inputs and 192 outputs."""


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
@pytest.mark.parametrize("name", ["xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "orthogonal"])
def test_new_matrices_have_the_distribution_of_the_initializer(kind, name):
    wide = {"gpt2": {"n_inner": 192}, "llama": {"intermediate_size": 192, "tie_word_embeddings": True},
            "mixtral": {"intermediate_size": 96, "num_local_experts": 4, "num_key_value_heads": 2}}[kind]  # fmt: skip
    models = [ModelConfig(from_config={"model_type": kind, **SMALL, **wide}, initializer=each) for each in
              ("default", name, name)]  # fmt: skip
    plain, one, other = (build_model(each, load_model_config(each), "AutoModelForCausalLM", 3) for each in models)
    own, new, again = (model.state_dict() for model in (plain, one, other))
    path = {"gpt2": "transformer.h.0.mlp.c_fc.weight", "llama": "model.layers.0.mlp.up_proj.weight",
            "mixtral": "model.layers.0.mlp.experts.gate_up_proj"}[kind]  # fmt: skip
    for matrix in new[path].unbind() if kind == "mixtral" else [new[path].T if kind == "gpt2" else new[path]]:
        assert matrix.shape == (192, 48)
        if name == "orthogonal":
            assert torch.allclose(matrix.T @ matrix, torch.eye(48), atol=1e-5)
        elif name in LARGEST:
            assert 0.95 * LARGEST[name] < float(matrix.abs().max()) <= LARGEST[name]
        else:
            scale = 2 / 48 if name == "kaiming_normal" else 2 / (48 + 192)
            assert float(matrix.std()) == pytest.approx(scale**0.5, rel=0.05)
    kept = {key for key, value in own.items() if torch.equal(value, new[key])}
    assert {key for key in own if "norm" in key or "ln_" in key or "embed" in key or "wte" in key} <= kept
    assert all(torch.equal(value, again[key]) for key, value in new.items())
