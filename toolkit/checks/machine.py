"""What the machine can do and cannot, looked at before anything is loaded."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from toolkit.base.errors import ConfigError
from toolkit.config.messages import show
from toolkit.config.sections import Config

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Any of these in /proc/cpuinfo means that a CPU (x86, or ARM) multiplies bf16 itself."""
TF32_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)
PROBE_SIZE = 256
"""Rows and columns of the matrices whose product is timed."""


def check_machine(cfg: Config) -> None:
    """Checks the settings that need a device, a library or a compiler of their own.

    Raises:
        ConfigError: with all that is not here.
    """
    if problems := list(_problems(cfg)):
        raise ConfigError(problems)


def _problems(cfg: Config) -> Iterator[str]:
    train, gpu = cfg.train, torch.cuda.is_available()
    capability = torch.cuda.get_device_capability() if gpu else (0, 0)
    if train.mixed_precision == "fp16" and not gpu:
        yield "train.mixed_precision: fp16 needs a GPU, and none is visible here; use bf16 or no"
    if train.mixed_precision == "fp8":
        if capability < FP8_CAPABILITY:
            yield (
                "train.mixed_precision: fp8 needs a GPU of compute capability 8.9 or newer (Ada, Hopper), and none is "
                "visible here; use bf16"
            )
        elif importlib.util.find_spec("torchao") is None:
            yield "train.mixed_precision: fp8 needs torchao; install it, or use bf16"
    if train.tf32 and capability < TF32_CAPABILITY:
        yield "train.tf32: TensorFloat32 needs a GPU of compute capability 8.0 or newer, and none is visible here; " \
            "remove it"  # fmt: skip
    if train.activation_offload and not torch.accelerator.is_available():
        yield (
            "train.activation_offload: no GPU is visible here, so activations are in the CPU's memory already; use "
            "train.activation_checkpointing, or smaller micro-batches with more accumulation"
        )
    yield from _attention_problems(cfg.model.attn_implementation, gpu)
    if train.torch_compile:
        yield from _compile_problems(train.torch_compile_backend or "inductor", gpu)
    backend = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if backend not in ("", "no"):
        yield f"train.torch_compile: the launcher says {backend} (ACCELERATE_DYNAMO_BACKEND); set it in the YAML"


def _attention_problems(name: str | None, gpu: bool) -> Iterator[str]:
    if name is None or name in ("eager", "sdpa"):
        return
    if not gpu:
        yield f"model.attn_implementation: {name} can be trained on a GPU only, and none is visible here; use sdpa"
    elif name.startswith("flash_attention"):
        from transformers import utils

        # Without its package, transformers would fetch a kernel from the hub and run it.
        if not getattr(utils, f"is_flash_attn_{name[-1]}_available", lambda: False)():
            yield f"model.attn_implementation: {name} needs its package (flash-attn), built for this GPU; use sdpa"


def _compile_problems(backend: str, gpu: bool) -> Iterator[str]:
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        yield f"train.torch_compile_backend: received {show(backend)}, this PyTorch has {', '.join(known)}"
    elif backend == "inductor" and not gpu and not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++"))):
        yield (
            "train.torch_compile: inductor needs a C++ compiler on the CPU, and there is none (tried $CXX, c++, g++); "
            "install one, or remove it"
        )


def machine_notes(cfg: Config, device: torch.device) -> list[str]:
    """Returns what is possible on the run's device but costs more than it saves."""
    notes = []
    if device.type == "cpu" and cfg.train.torch_compile:
        notes.append("train.torch_compile: compiling takes minutes, and on a CPU small models seldom win them back")
    if device.type == "cpu" and cfg.train.mixed_precision == "bf16" and BF16_FLAGS.isdisjoint(cpu_flags()):
        factor = bf16_slowdown()
        if factor > 1:
            notes.append(
                f"train.mixed_precision: this CPU has neither avx512_bf16 nor amx_bf16, and a product in bf16 takes "
                f"{factor:.1f} times as long as in float32 (measured just now); `no` is faster"
            )
    return notes


def cpu_flags(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Returns what the first CPU says it can do; nothing where the system does not tell."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    found = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return frozenset(found[0] if found else ())


def bf16_slowdown() -> float:
    """Measures how many times as long a matrix product takes in bf16 as in float32, on the CPU."""

    def seconds(dtype: torch.dtype) -> float:
        matrix, times = torch.ones(PROBE_SIZE, PROBE_SIZE, dtype=dtype), []
        for _ in range(4):  # the first one chooses its code
            start = time.perf_counter()
            matrix @ matrix
            times.append(time.perf_counter() - start)
        return min(times)

    return seconds(torch.bfloat16) / seconds(torch.float32)
