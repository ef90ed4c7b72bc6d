"""A run with adapters is used and continued with the pretrained model that it was trained with, and with no other."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from commands import run_command
from newcomer_models import save_text_model
from runs import ROOT, train
from safetensors.torch import load_file, save_file

ROWS = ROOT / "recipes/data/reviews/validation.csv"
SETTINGS = ("model.from_config=null", "model.peft.method=lora", "train.max_steps=2", "checkpoint.save_steps=1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    save_text_model(folder / "base")
    train("reviews", folder / "run", *SETTINGS, f"model.name_or_path={folder / 'base'}", sizes=())
    return folder


def change(file: Path) -> None:
    """Writes other weights of the same size and times into a file."""
    status = file.stat()
    tensors = {name: value + 0.01 for name, value in load_file(file).items() if value.dtype == torch.float32}
    content = load_file(file) | tensors
    save_file({name: value.clone() for name, value in content.items()}, file, metadata={"format": "pt"})
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


COMMANDS = {
    "evaluate": ("evaluate", "run", "--data", ROWS),
    "predict": ("predict", "run", "--input-text", "good"),
    "verify": ("verify", "run"),
    "merge": ("merge", "run", "--output", "merged"),
    "export": ("export", "run", "--format", "zip", "--output", "run.zip"),
    "convert": ("checkpoint", "convert", "run", "--output", "converted"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_another_base_model_is_named(command, trained, tmp_path, monkeypatch, capsys) -> None:
    base = trained / "base" / "model.safetensors"
    before = base.read_bytes()
    monkeypatch.chdir(trained)
    (trained / "base" / "model.safetensors").touch()  # changes nothing
    if command in ("evaluate", "verify"):
        assert run_command(*COMMANDS[command]) == 0
    try:
        change(base)
        assert run_command(*COMMANDS[command]) == 1
        assert f"{base}: its content has changed" in capsys.readouterr().err
    finally:
        base.write_bytes(before)
        for left in ("merged", "converted"):
            shutil.rmtree(trained / left, ignore_errors=True)


def test_a_run_is_not_continued_on_another_base_model(trained, tmp_path, capsys) -> None:
    shutil.copytree(trained / "base", tmp_path / "base")
    settings = (*SETTINGS, f"model.name_or_path={tmp_path / 'base'}")
    train("reviews", tmp_path / "run", *settings, sizes=())
    noted = json.loads((tmp_path / "run/checkpoints/step-1/state.json").read_text())["identity"]
    assert {name for name in noted if name.startswith("model.files.")} >= {"model.files.model.safetensors"}
    change(tmp_path / "base" / "model.safetensors")
    with pytest.raises(Exception, match=r"model\.files\.model\.safetensors: the run was started with"):
        train("reviews", tmp_path / "run", *settings, "checkpoint.resume=auto", sizes=())
