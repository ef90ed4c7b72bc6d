"""Adapters: trained parameters, both engines, resuming, and results that peft and transformers can load."""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec

import pytest
import torch
import transformers
from adapter_models import ARCHITECTURES, FEW, LLAMA
from commands import run_command
from random_runs import RANDOM
from runs import assert_close, assert_same_weights, lines, predictions, train, weights
from stopping import StoppedError, stopper
from tolerances import float32_tolerance

import toolkit.run
from toolkit.api.batch import to_device
from toolkit.api.mesh import Mesh
from toolkit.base.errors import ConfigError, InputError
from toolkit.config.sections import AdapterConfig
from toolkit.data.batching.batches import evaluation_loader
from toolkit.models.adapters import add_adapters, load_adapters
from toolkit.models.parts import head_modules, repeated_linears, suffixes

SHORT = {"reviews": ("task.max_length=48",), "language_modeling": ("task.block_size=48",)}
"""Leaves room for virtual tokens."""
METHODS = [
    ("reviews", "lora"), ("translation", "lora"), ("reviews/smoke_image", "lora"), ("reviews/smoke_audio", "lora"),
    ("qa", "lora"), ("language_modeling", "lora"),
    ("reviews", "dora"), ("reviews", "ia3"),
    ("reviews", "prompt_tuning"), ("translation", "prompt_tuning"), ("language_modeling", "prompt_tuning"),
    *(pytest.param(task, method, marks=pytest.mark.slow)
      for task, method in [("reviews", "rslora"), ("language_modeling", "ia3")]),
]  # fmt: skip


def settings_of(task: str, method: str) -> tuple[str, ...]:
    tokens = ("model.peft.num_virtual_tokens=4", *SHORT.get(task, ())) if method == "prompt_tuning" else ()
    # Bits are compared with those of a model that peft loads, which is padded.
    return (*FEW, "train.unpadded=false", f"model.peft.method={method}", *tokens)


@pytest.fixture
def job(monkeypatch):
    """Keeps the last run for inspection."""
    kept: dict = {}
    write = toolkit.run.write_results

    def write_and_keep(job, result, model_is_kept):
        kept["job"] = job
        write(job, result, model_is_kept)

    monkeypatch.setattr(toolkit.run, "write_results", write_and_keep)
    return kept


def logits(model, job) -> dict[str, torch.Tensor]:
    features = job.data.evals["validation"].features
    loader = evaluation_loader(features, job.task, job.processor, job.cfg, Mesh())
    batch = to_device(next(iter(loader)), torch.device("cpu"))
    model.eval()
    with torch.no_grad():
        outputs = model(**batch["inputs"])
    return {name: outputs[name] for name in ("logits", "start_logits", "end_logits") if name in outputs}


@pytest.mark.fast(1)
@pytest.mark.parametrize(("task", "method"), METHODS)
def test_what_is_trained_is_what_peft_loads(task, method, tmp_path, job, capsys):
    from peft import PeftModel

    train(task, tmp_path / "run", *settings_of(task, method), "engine=trainer")
    trainer = tmp_path / "run"
    trainer.rename(tmp_path / "trainer")
    train(task, tmp_path / "run", *settings_of(task, method))
    assert_same_weights(tmp_path / "trainer", tmp_path / "run")
    assert lines(tmp_path / "trainer") == lines(tmp_path / "run")
    assert predictions(tmp_path / "trainer") == predictions(tmp_path / "run")

    figures = json.loads((tmp_path / "run" / "run.json").read_text())["result"]
    assert 0 < figures["trainable_fraction"] < 0.25
    assert f"training {figures['trainable_parameters']:,} of " in capsys.readouterr().out

    trained, folder = job["job"], tmp_path / "run" / "model"
    expected = logits(trained.model, trained)
    auto_class = getattr(transformers, trained.task.auto_model(trained.model.config))
    config = transformers.AutoConfig.from_pretrained(folder)
    base = auto_class.from_pretrained(folder / "base", config=config)
    untrained = logits(base, trained)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)  # peft's own
        adapted = PeftModel.from_pretrained(base, folder)
    found = logits(adapted, trained)
    if method == "prompt_tuning" and task == "language_modeling":
        found["logits"] = found["logits"][:, 4:]
    assert_equal(found, expected)
    assert any(not torch.allclose(value, untrained[name], rtol=1e-3) for name, value in expected.items())

    assert run_command("merge", tmp_path / "run") == (2 if method == "prompt_tuning" else 0)
    if method == "prompt_tuning":
        return
    assert "largest difference of an output on" in capsys.readouterr().out
    merged = logits(auto_class.from_pretrained(tmp_path / "run" / "merged"), trained)
    assert {name: value.shape for name, value in merged.items()} == {k: v.shape for k, v in expected.items()}
    for name, value in expected.items():
        torch.testing.assert_close(merged[name], value, rtol=1e-4, atol=1e-4 * float(value.abs().max()))
    assert run_command("merge", tmp_path / "run") == 2


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "method"), [("reviews", "lora"), ("reviews", "dora"), ("translation", "prompt_tuning")]
)
def test_a_run_with_adapters_stopped_twice_ends_like_one_that_was_not(task, method, tmp_path, monkeypatch):
    stop_before = stopper(monkeypatch)
    dropout = ("model.peft.lora_dropout=0.1",) if method == "lora" else ()
    settings = (*RANDOM[task], f"model.peft.method={method}", *dropout, "eval.eval_steps=4",
                "checkpoint.load_best_model_at_end=true")  # fmt: skip
    train(task, tmp_path / "whole", *settings)
    for step, engine in ((6, "loop"), (12, "trainer")):
        stop_before(step)
        with pytest.raises(StoppedError):
            train(task, tmp_path / "parts", *settings, f"engine={engine}", "checkpoint.resume=auto")
    stop_before(None)
    train(task, tmp_path / "parts", *settings, "checkpoint.resume=auto")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    train(task, tmp_path / "parts", *settings, "checkpoint.resume=auto")  # and again, when nothing is left
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


def test_adapters_of_a_pretrained_model_predict_and_merge_into_it(tmp_path, capsys):
    train("reviews", tmp_path / "first", *FEW, "train.max_steps=2")
    base = (f"model.name_or_path={tmp_path / 'first' / 'model'}", "model.config_overrides.hidden_dropout_prob=0.1")
    train("reviews", tmp_path / "run", *FEW, *base, "model.peft.method=lora", "model.peft.r=2")
    folder = tmp_path / "run" / "model"
    saved = json.loads((folder / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == str(tmp_path / "first" / "model")
    assert saved["task_type"] == "SEQ_CLS"
    assert not (folder / "base").exists()
    assert "PeftModel.from_pretrained(base, folder)" in (folder / "README.md").read_text()
    assert set(weights(tmp_path / "run")) == {
        "base_model.model.bert.pooler.dense.bias", "base_model.model.bert.pooler.dense.weight",
        "base_model.model.classifier.bias", "base_model.model.classifier.weight",
        *(f"base_model.model.bert.encoder.layer.{layer}.{linear}.lora_{part}.weight"
          for layer in (0, 1)
          for linear in ("attention.self.query", "attention.self.key", "attention.self.value",
                         "attention.output.dense", "intermediate.dense", "output.dense")
          for part in "AB"),
    }  # fmt: skip
    rows = tmp_path / "rows.csv"
    rows.write_text("text\n" + "".join(json.dumps(row["text"]) + "\n" for row in predictions(tmp_path / "run")[:3]))
    assert run_command("predict", tmp_path / "run", "--input", rows, "--output", tmp_path / "new.jsonl") == 0
    new = [json.loads(line)["scores"] for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert_close(new, [row["scores"] for row in predictions(tmp_path / "run")[:3]], float32_tolerance())
    assert run_command("merge", tmp_path / "run", "--output", tmp_path / "merged") == 0
    assert transformers.pipeline("text-classification", str(tmp_path / "merged"))("good")[0]["label"]
    assert run_command("merge", tmp_path / "first") == 2
    assert "nothing to merge: it trained the full model" in capsys.readouterr().err


def test_a_merge_that_changes_answers_is_found(tmp_path, monkeypatch, capsys):
    from peft.tuners.lora.model import LoraModel

    train("reviews", tmp_path / "run", *FEW, "model.peft.method=lora")
    monkeypatch.setattr(LoraModel, "merge_and_unload", lambda self: self.unload())
    assert run_command("merge", tmp_path / "run") == 1
    assert "the merged export differs from the run: an output by" in capsys.readouterr().err
    assert not (tmp_path / "run/merged").exists()


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("qa", ("method=prompt_tuning",), "answers are positions in the text"),
        ("language_modeling/smoke_masked", ("method=prompt_tuning",), "masked tokens are predicted at their positions"),
        ("reviews/smoke_image", ("method=prompt_tuning",), "virtual tokens are a prefix of a text"),
        ("reviews", ("method=prompt_tuning", "num_virtual_tokens=20"), "task.max_length allows inputs of 64 tokens"),
        ("reviews", ("method=lora", "target_modules=[qery]"), r"ends in 'qery' \(did you mean 'query'\?\)"),
        ("reviews", ("method=qlora",), "only pretrained weights can be quantized to 4 bits"),
    ],
)
def test_what_cannot_be_adapted_is_rejected(task, settings, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train(task, tmp_path / "run", *FEW, *(f"model.peft.{setting}" for setting in settings))


def test_adapters_that_name_code_are_rejected(tmp_path):
    named = {"peft_type": "LORA", "megatron_config": {"a": 1}, "megatron_core": "evil"}  # which peft would import
    (tmp_path / "adapter_config.json").write_text(json.dumps(named))
    with pytest.raises(InputError, match=r"adapter_config\.json: megatron_config names code to import"):
        load_adapters(None, tmp_path)


def test_missing_libraries_are_named_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.models.adapters.find_spec", lambda name: None if name == "peft" else find_spec(name))
    with pytest.raises(ConfigError, match=r"lora needs peft, which is not installed; pip install .*\[peft\]"):
        train("reviews", tmp_path / "run", "model.peft.method=lora")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_linear_layers_and_heads_are_found_in_every_architecture(kind):
    auto, sizes, head, count = ARCHITECTURES[kind]
    auto_model = f"AutoModelFor{auto}"
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = getattr(transformers, auto_model).from_config(config)
    assert head_modules(model) == head
    linears = repeated_linears(model)
    assert len(linears) == count
    adapted = add_adapters(model, AdapterConfig(method="lora"), auto_model, seed=1)
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    inner = {name.removeprefix("base_model.model.") for name in trained}
    assert {name.partition(".lora_")[0] for name in inner if ".lora_" in name} == set(linears)
    assert {name.partition(".modules_to_save")[0] for name in inner if ".lora_" not in name} == set(head)


def test_statistics_of_frozen_batch_norms_stay_as_they_are(tmp_path):
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic")
    config.architectures = ["ResNetForImageClassification"]
    base = transformers.ResNetForImageClassification(config)
    base.save_pretrained(tmp_path / "base")
    adapted = add_adapters(base, AdapterConfig(method="lora", target_modules=["convolution"]), "Auto", 0)
    images = torch.rand(4, 3, 32, 32)
    adapted.train()(pixel_values=images)
    adapted.eval().save_pretrained(tmp_path / "adapters")
    again = transformers.ResNetForImageClassification.from_pretrained(tmp_path / "base")
    loaded = load_adapters(again, tmp_path / "adapters").eval()
    with torch.no_grad():
        assert torch.equal(adapted(pixel_values=images).logits, loaded(pixel_values=images).logits)


def test_models_that_answer_at_the_last_token_take_no_prompts():
    model = transformers.AutoModelForSequenceClassification.from_config(transformers.LlamaConfig(**LLAMA))
    with pytest.raises(ConfigError, match="classifies by the last token"):
        add_adapters(model, AdapterConfig(method="prompt_tuning"), "AutoModelForSequenceClassification", seed=1)


def test_ends_of_names_are_as_short_as_they_can_be():
    names = ["a.0.out.dense", "a.1.out.dense", "a.0.in.dense", "head.out.dense", "a.0.q"]
    assert suffixes(["a.0.out.dense", "a.1.out.dense", "a.0.q"], names) == ["0.out.dense", "1.out.dense", "q"]
