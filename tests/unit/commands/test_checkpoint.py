"""`toolkit checkpoint` shows, verifies and converts checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from commands import run_command
from runs import predictions, train
from safetensors.torch import load_file
from stopping import DROPOUT

import toolkit.commands.checkpoint
from toolkit.checkpoint.manifest import read_manifest, verify
from toolkit.models.adapters import load_adapters

FEW = (*DROPOUT, "train.max_steps=4", "checkpoint.format=sharded")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a finished run with averaged weights and two sharded checkpoints."""
    folder = tmp_path_factory.mktemp("checkpoint") / "run"
    train("reviews", folder, *FEW, "train.ema_decay=0.5")
    return folder


def same_weights(one: Path, other: Path) -> bool:
    left, right = load_file(one), load_file(other)
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def test_show(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("checkpoint", "show", run, "--tensors") == 0
    output = capsys.readouterr().out
    for part in ("step-4", "sharded", "1 process with 2 x 3 rows", "41 tensors, 31,106 values", "in 1 file",
                 "bert.embeddings.LayerNorm.bias  float32 [32]", "classifier.weight::exp_avg"):  # fmt: skip
        assert part in output, part
    assert run_command("checkpoint", "show", run / "checkpoints" / "step-2") == 0
    assert "classifier.weight" not in capsys.readouterr().out


def test_verify_reads_every_byte(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("checkpoint", "verify", run) == 0
    assert capsys.readouterr().out.count("every byte is intact") == 2
    shutil.copytree(run, tmp_path / "run")
    shard = tmp_path / "run" / "checkpoints" / "step-2" / "ema" / "shard-00001-of-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    assert run_command("checkpoint", "verify", tmp_path / "run") == 1
    said = capsys.readouterr()
    assert f"ema/{shard.name}: sha256 differs" in said.out
    assert "damaged: step-2. " in said.err


@pytest.mark.parametrize("command", ["show", "convert --output", "convert --format=sharded --output"])
def test_a_checkpoint_that_its_run_removes_meanwhile_is_said_to_be_removed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    shutil.copytree(run, tmp_path / "run")
    opened = toolkit.commands.checkpoint._newest

    def removed(path: Path) -> object:
        found = opened(path)
        shutil.rmtree(found.path)
        return found

    monkeypatch.setattr(toolkit.commands.checkpoint, "_newest", removed)
    operation, *options = command.split()
    output = [tmp_path / "new"] if options else []
    assert run_command("checkpoint", operation, tmp_path / "run", *options, *output) == 2
    assert "was removed while it was read" in capsys.readouterr().err
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())


@pytest.mark.parametrize("emptied", [True, False])
def test_a_run_without_checkpoints_is_not_called_damaged(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], emptied: bool
) -> None:
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("step-*" if emptied else "checkpoints"))
    assert run_command("checkpoint", "verify", tmp_path / "run") == 2
    said = capsys.readouterr()
    assert f"{tmp_path / 'run'}: this run has no checkpoints; `toolkit verify" in said.err
    assert "damaged" not in said.err + said.out


def test_a_checkpoint_becomes_the_model_that_its_run_saved(run: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    assert run_command("checkpoint", "convert", run, "--output", tmp_path / "model") == 0
    assert same_weights(run / "model" / "model.safetensors", tmp_path / "model" / "model.safetensors")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    (record, *_) = predictions(run)
    assert model.config.id2label[int(model(**tokenizer(record["text"], return_tensors="pt")).logits.argmax())]


@pytest.mark.parametrize("form", ["full", "sharded"])
def test_a_checkpoint_of_another_format_resumes_with_the_same_bits(run: Path, tmp_path: Path, form: str) -> None:
    source = run / "checkpoints" / "step-2"
    assert run_command("checkpoint", "convert", source, "--output", tmp_path / "new", "--format", form) == 0
    made = tmp_path / "new" / "step-2"
    assert verify(made) == []
    assert read_manifest(made).format == form
    train("reviews", tmp_path / "run", *FEW, "train.ema_decay=0.5", f"checkpoint.resume={made}")
    assert same_weights(run / "model" / "model.safetensors", tmp_path / "run" / "model" / "model.safetensors")


def test_adapters_become_a_folder_for_peft(tmp_path: Path) -> None:
    train("reviews", tmp_path / "run", *FEW, "model.peft.method=lora")
    shutil.rmtree(tmp_path / "run" / "model")  # as in a run that has not finished
    assert run_command("checkpoint", "convert", tmp_path / "run", "--output", tmp_path / "model") == 0
    from transformers import AutoModelForSequenceClassification

    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model" / "base")
    adapted = load_adapters(base, tmp_path / "model").state_dict()
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-4" / "model" / "shard-00001-of-00001.safetensors")
    trained = [name for name in saved if "lora_" in name or "modules_to_save" in name]
    assert trained
    assert all(torch.equal(saved[name], adapted[name]) for name in trained)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "nowhere"), "there is no such folder"),
        (("verify", "nowhere"), "there is no such folder"),
        (("convert", "nowhere"), "--output: `toolkit checkpoint convert` needs a folder"),
        (("show", "nowhere", "--output", "x"), "--output: only `toolkit checkpoint convert` has this option"),
        (("convert", "nowhere", "--tensors"), "--tensors: only `toolkit checkpoint show` has this option"),
    ],
)
def test_wrong_use_is_rejected(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command("checkpoint", *arguments) == 2
    assert message in capsys.readouterr().err
