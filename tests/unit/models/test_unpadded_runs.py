"""Runs without padding (`train.unpadded`) are those with it, in every task."""

from __future__ import annotations

import json

import pytest
import torch
from runs import SGD, SMALL, assert_close, assert_same_weights, lines, predictions, train, weights
from split_runs import GPT2, SPEECH
from tolerances import FLOAT64

import toolkit
from toolkit.base.errors import CheckpointError, ConfigError

FEW = ("train.max_steps=3", "eval.eval_steps=3", "checkpoint.save_steps=null")
RUNS = {
    "reviews": ("reviews",),
    "qa": ("qa",),
    "translation": ("translation",),
    "language_modeling": ("language_modeling",),
    "masked": ("language_modeling/smoke_masked",),
    "speech": ("reviews/smoke_audio", *SPEECH),
    "gpt2": ("language_modeling", *GPT2),
    "recomputed": ("translation", "train.activation_checkpointing=full"),
    "lora": ("qa", "model.peft.method=lora"),
    "prompt": (
        "language_modeling",
        "model.peft.method=prompt_tuning",
        "model.peft.num_virtual_tokens=3",
        "task.block_size=32",
    ),
    "tags": ("token_classification",),
    "chat": ("language_modeling/smoke_chat",),
    "summaries": ("summarization",),
}
"""Recipe and settings of each run."""
SLOW = ("tags", "chat", "summaries", "gpt2", "prompt", "recomputed", "masked", "speech", "lora")
EACH = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in RUNS]


def run(name, folder, *settings):
    recipe, *own = RUNS[name]
    sizes = SMALL if {*GPT2, *SPEECH} & {*own} else None
    train(recipe, folder, *SGD, *FEW, *own, *settings, double=True, sizes=sizes)
    return json.loads((folder / "run.json").read_text())["resolved"]["train.unpadded"]


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_a_run_without_padding_is_the_run_with_it(name, tmp_path):
    assert run(name, tmp_path / "auto") is True
    assert run(name, tmp_path / "padded", "train.unpadded=false") is False
    assert run(name, tmp_path / "trainer", "engine=trainer", "train.unpadded=true") is True
    assert_same_weights(tmp_path / "auto", tmp_path / "trainer")
    assert_close(lines(tmp_path / "auto"), lines(tmp_path / "padded"), FLOAT64)
    assert_close(predictions(tmp_path / "auto"), predictions(tmp_path / "padded"), FLOAT64)
    expected, found = weights(tmp_path / "padded"), weights(tmp_path / "auto")
    assert max(float((found[key] - value).abs().max()) for key, value in expected.items()) <= FLOAT64


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["qa", "translation"])
def test_an_update_does_not_depend_on_how_its_window_is_cut(name, tmp_path):
    cuts = {"whole": (64, 1), "rows": (1, 64), "even": (2, 32), "uneven": (5, 13)}
    for cut, (batch, accumulation) in cuts.items():
        run(name, tmp_path / cut, f"train.per_device_train_batch_size={batch}",
            f"train.gradient_accumulation_steps={accumulation}", "train.max_steps=1", "data.max_train_samples=6",
            "eval.eval_steps=1")  # fmt: skip
    expected = weights(tmp_path / "whole")
    for cut in cuts:
        found = weights(tmp_path / cut)
        assert max(float((found[key] - value).abs().max()) for key, value in expected.items()) <= FLOAT64


def test_a_run_is_not_resumed_with_padding(tmp_path):
    settings = (*SGD, "checkpoint.save_steps=1", "checkpoint.resume=auto")
    train("reviews", tmp_path / "run", *settings, "train.max_steps=1")
    with pytest.raises(CheckpointError, match=r"train\.unpadded: the run was started with"):
        train("reviews", tmp_path / "run", *settings, "train.max_steps=2", "train.unpadded=false")


@pytest.mark.slow
def test_a_finished_run_predicts_without_padding(tmp_path):
    recipe, folder = "qa", tmp_path / "run"
    train(recipe, folder, *SGD, *FEW)
    config = json.loads((folder / "model" / "config.json").read_text())
    assert not [value for value in config.values() if "unpadded" in str(value)]
    opened = toolkit.load(folder)
    assert opened.model.config._attn_implementation == "unpadded_sdpa_where_it_pays"
    rows = [
        {"question": "What is it?", "context": text}
        for text in ("A short one.", "A much longer context than the first one, with many more words in it.")
    ]
    together = opened.predict(rows)
    alone = [opened.predict([row])[0] for row in rows]
    assert_close(together, [{**row, "id": found["id"]} for row, found in zip(alone, together, strict=True)], 1e-4)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "settings",
    [
        ("language_modeling/smoke_chat", "model.attn_implementation=eager", "task.prompts=[]"),
        ("language_modeling/smoke_chat", "engine=trainer", "train.activation_checkpointing=full"),
        pytest.param(("language_modeling", "task.packing=false", "model.peft.method=lora"), marks=pytest.mark.slow),
        pytest.param(("preference/smoke", "train.max_tokens_per_batch=128"), marks=pytest.mark.slow),
    ],
)
def test_a_run_whose_rows_share_one_is_the_run_with_padding(settings, tmp_path):
    recipe, *own = settings
    for name in ("packed", "false"):
        train(recipe, tmp_path / name, *SGD, *FEW, *own, f"train.unpadded={name}", double=True)
    resolved = json.loads((tmp_path / "packed" / "run.json").read_text())["resolved"]
    assert resolved["train.unpadded"] == "packed"
    assert_close(lines(tmp_path / "packed"), lines(tmp_path / "false"), FLOAT64)
    expected, found = weights(tmp_path / "false"), weights(tmp_path / "packed")
    assert max(float((found[key] - value).abs().max()) for key, value in expected.items()) <= FLOAT64


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("reviews", "model.attn_implementation=eager", "models of type bert have not been compared with and without"),
        ("language_modeling", "model.attn_implementation=flex_attention", "with flex_attention, attention would cross"),
        ("language_modeling", "model.peft.method=prompt_tuning", "virtual tokens"),
    ],
)
def test_rows_that_cannot_share_one_are_rejected(recipe, settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train(recipe, tmp_path, *FEW, settings, "train.unpadded=packed")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("model.from_config={model_type: bloom, hidden_size: 16, n_layer: 1, n_head: 2}",
         "train.unpadded: received true, but this model runs padded: its position biases are part of its mask; "
         "set it to auto"),
        ("model.attn_implementation=eager", "its attention is eager, and only sdpa is computed sequence by sequence"),
        ("train.torch_compile=true model.from_config={model_type: mpnet, hidden_size: 16, num_hidden_layers: 1, "
         "num_attention_heads: 2}", "compiled layers of a mpnet cannot pad their attention; set it to auto, or remove"),
        ("train.pad_to_multiple_of=8 model.from_config={model_type: mixtral, hidden_size: 16, num_hidden_layers: 1, "
         "num_attention_heads: 2}", "without padding, the experts of a mixture"),
    ],
)  # fmt: skip
def test_what_cannot_leave_out_padding_is_rejected(settings, message, tmp_path):
    sizes, words = SMALL if "from_config" in settings else None, settings.split(" model.from")
    given = [words[0], *(f"model.from{word}" for word in words[1:])]
    with pytest.raises(ConfigError, match=message):
        train("reviews", tmp_path, *FEW, *given, "train.unpadded=true", sizes=sizes)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # read by torch, of the states
@pytest.mark.fast(1)
@pytest.mark.parametrize("settings", [(), ("train.torch_compile=true", "train.torch_compile_backend=aot_eager")])
def test_runs_whose_tokens_are_filled_up_are_those_with_padding(settings, tmp_path):
    for name, own in (("filled", ("train.unpadded=true", *settings)), ("padded", ("train.unpadded=false",))):
        train("reviews", tmp_path / name, *SGD, *FEW, *own, "train.pad_to_multiple_of=32", double=True)
    assert_close(lines(tmp_path / "filled"), lines(tmp_path / "padded"), FLOAT64)
    expected, found = weights(tmp_path / "padded"), weights(tmp_path / "filled")
    assert max(float((found[key] - value).abs().max()) for key, value in expected.items()) <= FLOAT64


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_in_mixed_precision_losses_differ_by_rounding(dtype, tmp_path):
    for name in ("auto", "false"):
        train("qa", tmp_path / name, *SGD, *FEW, "train.mixed_precision=bf16", f"train.unpadded={name}")
    assert_close(lines(tmp_path / "auto", "loss"), lines(tmp_path / "false", "loss"), 0.05)
