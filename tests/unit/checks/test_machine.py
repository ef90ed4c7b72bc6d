"""Settings that this machine does not support are refused before anything is loaded, and slow ones warned of."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
import torch
from runs import ROOT, train

import toolkit.models.build
from toolkit.api.mesh import Mesh
from toolkit.base.errors import ConfigError, InputError
from toolkit.checks import machine
from toolkit.lab.jobs.jobs import Launch
from toolkit.recipe import load_settings, load_task_type
from toolkit.system import limits

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


@pytest.mark.parametrize(("load", "threads", "said"), [(9.4, 4, True), (9.4, 1, False), (1.9, 4, False)])
def test_threads_that_wait_for_those_of_other_programs_are_named(load, threads, said, monkeypatch):
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    cfg = load_settings(load_task_type("reviews"), ROOT / "recipes/configs/reviews/smoke.yaml", ()).config
    notes = machine.machine_notes(cfg, torch.device("cpu"))
    assert [note.startswith("the load of this machine is 9.4 on 4 cores") for note in notes] == [True] * said
    assert all("the 4 threads of each process" in note and "OMP_NUM_THREADS=2" in note for note in notes)
    assert machine.machine_notes(cfg, torch.device("cuda")) == []


LAUNCHERS = sorted((ROOT / "accelerate_configs").glob("*.yaml"))


@pytest.mark.parametrize("file", LAUNCHERS, ids=lambda file: file.stem)
def test_a_launcher_file_that_is_not_for_this_machine_is_rejected(file, monkeypatch, tmp_path):
    monkeypatch.setattr(
        psutil.Process, "cmdline", lambda self: ["python", "launch", "--config_file", str(file), "x.py"]
    )
    if file.stem in ("cpu", "cpu_2proc", "fsdp2_cpu"):
        assert machine.launcher_problems(file) == []
        return
    zero = file.stem.startswith("zero")
    said = r"needs DeepSpeed, .*\[deepspeed\]" if zero else r"is for GPUs.* with accelerate_configs/\w*cpu"
    assert machine.launcher_problems() == []  # not started by `accelerate launch`
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    with pytest.raises(ConfigError, match=f"--config_file: .*{file.name} {said}") as refused:
        train("reviews", tmp_path / "run")
    if not zero:
        assert (ROOT / refused.value.problems[0].rpartition(" ")[2]) in LAUNCHERS
    with pytest.raises(InputError, match=f"--launch: .*{file.name} {said}"):
        Launch(file, 2, {}).check(1)
    if not zero:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    else:
        monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: name)  # DeepSpeed also runs on CPUs
    assert machine.launcher_problems(file) == []


@pytest.mark.slow
def test_a_file_for_gpus_does_not_train_on_the_cpu(tmp_path):
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file=accelerate_configs/single_gpu.yaml"]
    config = ["recipes/reviews.py", "--config", "recipes/configs/reviews/smoke.yaml", f"output_dir={tmp_path}/run"]
    found = subprocess.run([*launcher, *config], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert found.returncode != 0
    assert "single_gpu.yaml is for GPUs, and none is visible here" in found.stderr
    assert "returned non-zero exit status 2" in found.stderr  # the run's; accelerate's is 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "size", "said"),
    [
        ({}, 1, "1 process on CPU, 16 rows per step."),
        ({}, 2, "2 processes on CPU (replicas 2), 16 rows per step."),
        ({"fsdp": 2}, 2, "(fsdp 2), 16 rows per step; split over processes: optimizer state, gradients, weights."),
        ({"fsdp": 2}, 4, "(replicas 2, fsdp 2), 16 rows per step; split over processes: optimizer state, gradients, "),
        ({"zero_stage": 1}, 2, "; split over processes: optimizer state."),
        ({"zero_stage": 2}, 2, "; split over processes: optimizer state, gradients."),
        ({"zero_stage": 3}, 2, "; split over processes: optimizer state, gradients, weights."),
        ({"context": 2}, 2, "(context 2), 16 rows per step; split over processes: positions."),
        ({"tensor": 2}, 2, "(tensor 2), 16 rows per step; split over processes: matrices."),
        (
            {"pipeline": 2, "tensor": 2},
            8,
            "(replicas 2, tensor 2, pipeline 2), 16 rows per step; split over processes: ",
        ),
        ({"zero_stage": 3}, 1, "1 process on CPU, 16 rows per step."),
    ],
)
def test_the_start_says_where_a_run_trains(settings, size, said):
    cfg = load_settings(load_task_type("reviews"), ROOT / "recipes/configs/reviews/smoke.yaml", ()).config
    cfg = replace(cfg, parallel=replace(cfg.parallel, **settings))
    assert said in machine.placement(cfg, Mesh.of(cfg.parallel, size), torch.device("cpu"))


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
    assert limits.cpu_flags(file) == {"fpu", "avx2", "avx512_bf16"}
    file.write_text("processor : 0\nFeatures : fp asimd bf16\n")
    assert "bf16" in limits.cpu_flags(file)
    assert limits.cpu_flags(tmp_path / "none") == frozenset()
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
