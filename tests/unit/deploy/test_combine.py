"""`toolkit merge --with`: the adapters of several runs become one model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from adapter_models import FEW
from commands import run_command
from runs import train
from safetensors.torch import load_file

from toolkit.config.sections import AdapterConfig
from toolkit.models.adapters import add_adapters, combine, load_adapters, merged, save_adapters

AUTO = "AutoModelForSequenceClassification"
WEIGHTS = (0.5, 0.7, -0.4)


def base_model() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, vocab_size=40, num_labels=3, pad_token_id=0)
    return transformers.LlamaForSequenceClassification(config).double().eval()


@pytest.fixture
def folders(tmp_path) -> list[Path]:
    """Adapters of several kinds, ranks, layers and initial values."""
    kinds = (("lora", 2, "default", "auto"), ("rslora", 3, "pissa", "auto"), ("lora", 4, "default", ["q_proj"]))
    for place, (method, rank, start, targets) in enumerate(kinds):
        own = AdapterConfig(method=method, r=rank, lora_alpha=5, init_lora_weights=start, target_modules=targets)
        adapted = add_adapters(base_model(), own, AUTO, place)
        torch.manual_seed(place)
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data += 0.3 * torch.randn_like(parameter)
        save_adapters(adapted, tmp_path / str(place), tmp_path, "base", tmp_path)
    return sorted(tmp_path.iterdir())


def double_weights(folder: Path) -> dict[str, torch.Tensor]:
    return merged(load_adapters(base_model(), folder).double()).state_dict()


def test_cat_is_the_sum_of_the_weighted_updates_in_float64(folders):
    base, own = base_model().state_dict(), [double_weights(folder) for folder in folders]
    combined = load_adapters(base_model(), folders[0]).double()
    combine(combined, folders[1:], WEIGHTS, combination_type="cat", density=0.5)
    inputs = {"input_ids": torch.arange(20)[None] % 37}
    with torch.no_grad():
        before = combined.eval()(**inputs).logits
    model = merged(combined)
    found, count = model.state_dict(), 0
    for name, value in found.items():
        moved = sum(w * (each[name] - base[name]) for w, each in zip(WEIGHTS, own, strict=True))
        expected = sum(w * each[name] for w, each in zip(WEIGHTS, own, strict=True)) / sum(WEIGHTS)
        expected = expected if name == "score.weight" else base[name] + moved
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)
        count += bool(moved.abs().max() > 0.01)
    assert count == 15  # seven layers in each of two, and the head
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, before, rtol=0, atol=1e-12)


def of_equal_ranks(folders: list[Path], kind: str) -> dict[str, torch.Tensor]:
    shutil.copytree(folders[0], folders[1], dirs_exist_ok=True)
    combined = load_adapters(base_model(), folders[0]).double()
    combine(combined, folders[1:2], (0.5, 0.5), combination_type=kind, density=0.5)
    return merged(combined).state_dict()


def test_linear_is_no_sum_and_svd_is_one_if_the_rank_is_enough(folders):
    base, own = base_model().state_dict(), double_weights(folders[0])
    for kind, factor in (("linear", 2), ("svd", 1)):  # of an adapter and itself; linear adds both factors' halves
        for name, value in of_equal_ranks(folders, kind).items():
            times = 1 if name == "score.weight" else factor
            torch.testing.assert_close(value, base[name] + times * (own[name] - base[name]), rtol=0, atol=1e-5)


@pytest.mark.fast(2)
@pytest.mark.parametrize("kind", ["ties", "dare_linear", "dare_ties", "magnitude_prune"])
def test_kinds_that_prune_are_finite_and_change_the_weights(kind, folders):
    base, found = base_model().state_dict(), of_equal_ranks(folders, kind)
    assert all(value.isfinite().all() for value in found.values())
    assert sum(not torch.equal(value, base[name]) for name, value in found.items()) == 15


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in (("first", 42), ("second", 42), ("other_base", 43), ("full", 42)):
        method = "none" if name == "full" else "lora"
        rate = f"train.learning_rate=1.0e-{2 if name == 'first' else 3}"
        train("reviews", folder / name, *FEW, f"seed={seed}", f"model.peft.method={method}", rate, "train.max_steps=3")
    return folder


@pytest.mark.slow
def test_runs_are_merged_and_compared(runs, tmp_path, capsys):
    command = ("merge", runs / "first", "--with", runs / "second", "--output", tmp_path / "out")
    assert run_command(*command, "--weights", "0.25", "0.75") == 0
    assert "largest difference of an output on" in capsys.readouterr().out
    facts = json.loads((tmp_path / "out" / "parity.json").read_text())
    assert (facts["weights"], facts["combination_type"], facts["density"]) == ([0.25, 0.75], "cat", 0.5)
    assert "Not evaluated." in (tmp_path / "out" / "README.md").read_text()
    assert "Export: merged" not in (runs / "first/model/README.md").read_text()
    for name in ("first", "second"):
        assert run_command("merge", runs / name, "--output", tmp_path / name) == 0
    one, two, both = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second", "out"))
    assert any(not torch.equal(one[name], two[name]) for name in one)
    for name, value in both.items():
        torch.testing.assert_close(value, 0.25 * one[name] + 0.75 * two[name], rtol=1e-5, atol=1e-6)


@pytest.mark.fast(3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("first", "--with", "other_base"), "other_base has not the base model of"),
        (("first", "--with", "full"), "(model.peft.method=none) has not only updates of lora"),
        (("first", "--with", "second", "--weights", "1"), "received [1.0], expected one for each run"),
        (("first", "--with", "second", "--weights", "1", "-1"), "expected one for each run, with a sum other than 0"),
        (("first", "--with", "second", "--combination-type", "mean"), "received mean, expected cat or linear"),
        (("first", "--with", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_combined_is_rejected(runs, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(runs)
    assert run_command("merge", *words, "--output", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_runs_with_other_labels_are_rejected(runs, tmp_path, capsys):
    settings = ("model.peft.method=lora", "task.label_map={positive: good}", "train.max_steps=1")
    train("reviews", tmp_path / "run", *FEW, *settings)
    assert run_command("merge", runs / "first", "--with", tmp_path / "run", "--output", tmp_path / "out") == 2
    assert "labels of" in capsys.readouterr().err
