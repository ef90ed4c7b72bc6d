"""Settings that this machine does not support are refused before anything is loaded, and slow ones warned of."""

from __future__ import annotations

import pytest
import torch
from runs import train

import toolkit.models.build
from toolkit.base.errors import ConfigError
from toolkit.checks import machine

ONE_STEP = ("train.max_steps=1", "checkpoint.save_steps=null", "data.max_train_samples=16", "data.max_eval_samples=8")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.mixed_precision=fp16", "fp16 needs a GPU, and none is visible here; use bf16 or no"),
        ("train.mixed_precision=fp8", r"fp8 needs a GPU of compute capability 8\.9 or newer .* use bf16"),
        ("train.tf32=true", r"train\.tf32: TensorFloat32 needs a GPU of compute capability 8\.0 or newer"),
        ("train.activation_offload=true", "activations are already in CPU memory; use"),
        ("model.attn_implementation=flex_attention", "flex_attention can be trained only on a GPU.* use sdpa"),
        (
            "train.torch_compile=true train.torch_compile_backend=indctor",
            "received 'indctor', this PyTorch has .*induct",
        ),
    ],
)
def test_what_is_not_here_is_rejected(setting, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train("reviews", tmp_path / "run", *setting.split(" "))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 5), ["train.mixed_precision", "train.tf32"]), ((8, 6), ["train.mixed_precision"]), ((9, 0), ["torchao"])],
)
def test_a_gpu_is_asked_what_it_can(capability, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    with pytest.raises(ConfigError) as refused:
        train("reviews", tmp_path / "run", "train.mixed_precision=fp8", "train.tf32=true")
    assert len(refused.value.problems) == len(expected)
    for problem, words in zip(refused.value.problems, expected, strict=True):
        assert words in problem


def test_flash_attention_is_not_fetched_from_the_hub(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: False)
    settings = ("model.attn_implementation=flash_attention_2", "train.mixed_precision=bf16")
    with pytest.raises(ConfigError, match=r"flash_attention_2 needs its package \(flash-attn\)"):
        train("reviews", tmp_path / "run", *settings)


def test_a_compiler_is_needed_and_the_launcher_has_no_say(monkeypatch, tmp_path):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"inductor needs a C\+\+ compiler on the CPU"):
        train("reviews", tmp_path / "run", "train.torch_compile=true")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    with pytest.raises(ConfigError, match=r"train\.torch_compile: the launcher says inductor"):
        train("reviews", tmp_path / "run")


def test_slow_bf16_is_measured_and_said(fresh_precision, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset({"avx2", "sse"}))
    monkeypatch.setattr(machine, "bf16_slowdown", lambda: 4.8)
    train("reviews", tmp_path / "slow", *ONE_STEP, "train.mixed_precision=bf16")
    assert "a product in bf16 takes 4.8 times as long as in float32" in capsys.readouterr().out
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset({"avx2", "amx_bf16"}))
    train("reviews", tmp_path / "fast", *ONE_STEP, "train.mixed_precision=bf16")
    assert "times as long" not in capsys.readouterr().out


def test_flags_and_slowdown_are_read(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\nbugs\t: x\n\nprocessor\t: 1\nflags\t: fpu\n")
    assert machine.cpu_flags(file) == {"fpu", "avx2", "avx512_bf16"}
    file.write_text("processor : 0\nFeatures : fp asimd bf16\n")
    assert "bf16" in machine.cpu_flags(file)
    assert machine.cpu_flags(tmp_path / "none") == frozenset()
    assert machine.bf16_slowdown() > 0


def test_float32_products_are_as_asked_during_the_run_only(tmp_path, monkeypatch):
    build, seen = toolkit.models.build.build_model, []

    def noting(*arguments):
        seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        return build(*arguments)

    monkeypatch.setattr(toolkit.models.build, "build_model", noting)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        train("reviews", tmp_path / "run", *ONE_STEP, "train.tf32=false")
        assert seen == [("highest", False)]
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
