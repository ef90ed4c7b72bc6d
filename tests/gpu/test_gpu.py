"""Training on one GPU: `make test-gpu`, on a machine that has one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from random_runs import RANDOM
from runs import ROOT, assert_close, assert_same_weights, lines, predictions, train
from stopping import DROPOUT, StoppedError, stopper

pytestmark = pytest.mark.gpu
STILL = ("data.max_train_samples=24", "train.num_train_epochs=2", "train.per_device_train_batch_size=4",
         "checkpoint.save_steps=null")  # fmt: skip
"""Short runs without random numbers but the order of the rows."""
NEAR = {"no": 1e-3, "bf16": 5e-2, "fp16": 1e-2}
"""Relative difference of losses between devices or kernels, by precision; convolutions round to TF32."""
SHORT = ("--config", "smoke", "--output")


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """Begins each test without the accelerator of the one before.

    Raises:
        AssertionError: without a GPU.
    """
    assert torch.cuda.is_available(), "these tests need a GPU: run them by `make test-gpu` on a machine that has one"
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def facts(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())


@pytest.mark.parametrize("task", RANDOM)
def test_losses_are_those_of_the_cpu(task, tmp_path, monkeypatch):
    train(task, tmp_path / "gpu", *STILL)
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    train(task, tmp_path / "cpu", *STILL, "train.unpadded=false", "train.fast_dropout=false")
    assert_close(lines(tmp_path / "cpu", "loss"), lines(tmp_path / "gpu", "loss"), NEAR["no"])


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
@pytest.mark.parametrize("task", ["reviews", "qa", "language_modeling", "translation"])
def test_losses_without_padding_are_those_with_it(task, precision, tmp_path):
    for unpadded in ("true", "false"):
        train(task, tmp_path / unpadded, *STILL, f"train.unpadded={unpadded}", f"train.mixed_precision={precision}")
    assert_close(lines(tmp_path / "false", "loss"), lines(tmp_path / "true", "loss"), NEAR[precision])


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
@pytest.mark.parametrize("task", RANDOM)
def test_both_engines_and_a_resumed_run_end_with_the_same_bits(task, precision, tmp_path, monkeypatch):
    settings = (*RANDOM[task], "eval.eval_steps=4", f"train.mixed_precision={precision}")
    arm = stopper(monkeypatch)
    for engine in ("loop", "trainer"):
        train(task, tmp_path / engine, *settings, f"engine={engine}")
        AcceleratorState._reset_state()
    arm(5)
    with pytest.raises(StoppedError):
        train(task, tmp_path / "parts", *settings)
    arm(None)
    AcceleratorState._reset_state()
    train(task, tmp_path / "parts", *settings, "checkpoint.resume=auto")
    for other in ("trainer", "parts"):
        assert_same_weights(tmp_path / "loop", tmp_path / other)
        assert lines(tmp_path / "loop", "loss") == lines(tmp_path / other, "loss")
        assert predictions(tmp_path / "loop") == predictions(tmp_path / other)


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_a_run_without_padding_and_with_dropout_of_attention_resumes_to_the_bit(precision, tmp_path, monkeypatch):
    settings = (*DROPOUT, "eval.eval_steps=4", f"train.mixed_precision={precision}", "train.unpadded=true")
    arm = stopper(monkeypatch)
    train("reviews", tmp_path / "whole", *settings)
    arm(5)
    AcceleratorState._reset_state()
    with pytest.raises(StoppedError):
        train("reviews", tmp_path / "parts", *settings)
    arm(None)
    AcceleratorState._reset_state()
    train("reviews", tmp_path / "parts", *settings, "checkpoint.resume=auto")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "whole", "loss") == lines(tmp_path / "parts", "loss")


def test_checkpoints_beside_the_training_are_those_that_block(tmp_path):
    for name in ("true", "false"):
        train("reviews", tmp_path / name, *DROPOUT, f"checkpoint.async_save={name}", "checkpoint.save_total_limit=null")
    saved = [sorted((tmp_path / name / "checkpoints").rglob("*.safetensors")) for name in ("true", "false")]
    assert [file.name for file in saved[0]] == [file.name for file in saved[1]] != []
    assert [file.read_bytes() for file in saved[0]] == [file.read_bytes() for file in saved[1]]


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("compiled", [(), ("train.torch_compile_mode=reduce-overhead",)])
def test_compiled_code_has_the_same_losses(compiled, tmp_path):
    shapes = ("train.pad_to_multiple_of=64", "train.unpadded=false")
    train("reviews", tmp_path / "eager", *STILL, *shapes)
    train("reviews", tmp_path / "compiled", *STILL, *shapes, "train.torch_compile=true", *compiled)
    assert_close(lines(tmp_path / "eager", "loss"), lines(tmp_path / "compiled", "loss"), NEAR["no"])


def test_the_gpu_is_sampled_and_named(tmp_path):
    train("reviews", tmp_path / "run", *STILL, "tracking.system_interval=0.5", "train.num_train_epochs=20")
    samples = [json.loads(line) for line in (tmp_path / "run" / "system.jsonl").read_text().splitlines()]
    assert all(sample["gpu_memory_bytes"] > 0 and sample["gpu_watts"] > 0 for sample in samples)
    assert torch.cuda.get_device_name() in json.dumps(facts(tmp_path / "run")["hardware"])
    assert "GPU" in (tmp_path / "run" / "report.md").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "reviews", *SHORT, "{}"),
        ("lr-find", "reviews", *SHORT, "{}"),
        ("batch-find", "reviews", *SHORT, "{}"),
        ("preflight", "reviews", "--config", "smoke"),
        ("plan", "reviews", "--config", "smoke", "--calibrate", "--output", "{}/plan.json"),
        ("certify", "reviews", *SHORT, "{}"),
        ("compare", "reviews", *SHORT, "{}", "--switch", "train.mixed_precision=no,bf16,fp16"),
    ],
    ids=lambda words: words[0],
)
def test_commands_run_on_the_gpu(words, tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    command = [sys.executable, "-m", "toolkit", *(word.format(output) for word in words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_run_is_used_again_on_the_gpu(tmp_path):
    train("reviews", tmp_path / "run", *STILL)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "Simple, strong and reliable."}\n{"text": "Broke at once."}\n')
    command = [sys.executable, "-m", "toolkit", "predict", str(tmp_path / "run"), "--input", str(rows)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
