"""Checks which settings this machine does not support or runs slowly."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from pathlib import Path

import torch

from toolkit.base.console import warn
from toolkit.config.messages import show
from toolkit.config.sections import Config

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags in /proc/cpuinfo of CPUs (x86 or ARM) with native bf16 multiplication."""
TF32_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)
PROBE_SIZE = 256
"""Number of rows and columns of the matrices whose product is timed."""


def precision_problems(cfg: Config) -> list[str]:
    """Returns why this machine cannot compute in `train.mixed_precision`."""
    precision = cfg.train.mixed_precision
    if precision == "fp16" and not torch.cuda.is_available():
        return ["train.mixed_precision: fp16 needs a GPU, and none is visible here; use bf16 or no"]
    if precision == "fp8" and _capability() < FP8_CAPABILITY:
        return [
            "train.mixed_precision: fp8 needs a GPU of compute capability 8.9 or newer (Ada, Hopper), and none is "
            "visible here; use bf16"
        ]
    if precision == "fp8" and importlib.util.find_spec("torchao") is None:
        return ["train.mixed_precision: fp8 needs torchao; install it, or use bf16"]
    return []


def tf32_problems(cfg: Config) -> list[str]:
    """Returns why this machine has no TensorFloat32."""
    if not cfg.train.tf32 or _capability() >= TF32_CAPABILITY:
        return []
    needed = "a GPU of compute capability 8.0 or newer"
    return [f"train.tf32: TensorFloat32 needs {needed}, and none is visible here; remove it"]


def offload_problems(cfg: Config) -> list[str]:
    """Returns why activations cannot be offloaded on this machine."""
    if not cfg.train.activation_offload or torch.accelerator.is_available():
        return []
    return [
        "train.activation_offload: no GPU is visible here, so activations are already in CPU memory; use "
        "train.activation_checkpointing, or smaller micro-batches with more accumulation"
    ]


def attention_problems(cfg: Config) -> list[str]:
    """Returns why this machine cannot train with `model.attn_implementation`."""
    name = cfg.model.attn_implementation
    if name is None or name in ("eager", "sdpa"):
        return []
    if not torch.cuda.is_available():
        return [f"model.attn_implementation: {name} can be trained only on a GPU, and none is visible here; use sdpa"]
    if name.startswith("flash_attention"):
        from transformers import utils

        # Without its package, transformers would download a kernel from the Hub and run it.
        if not getattr(utils, f"is_flash_attn_{name[-1]}_available", lambda: False)():
            return [f"model.attn_implementation: {name} needs its package (flash-attn), built for this GPU; use sdpa"]
    return []


def compile_problems(cfg: Config) -> list[str]:
    """Returns why this machine cannot compile the model, or why the launcher's settings prevent it."""
    problems = []
    if cfg.train.torch_compile:
        known, backend = torch.compiler.list_backends(exclude_tags=()), cfg.train.torch_compile_backend or "inductor"
        compilers = os.environ.get("CXX", "c++"), "g++"
        if backend not in known:
            problems.append(
                f"train.torch_compile_backend: received {show(backend)}, this PyTorch has {', '.join(known)}"
            )
        elif backend == "inductor" and not torch.cuda.is_available() and not any(map(shutil.which, compilers)):
            problems.append(
                "train.torch_compile: inductor needs a C++ compiler on the CPU, and none was found (tried $CXX, c++, "
                "g++); install one, or remove it"
            )
    launched = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if launched not in ("", "no"):
        problems.append(
            f"train.torch_compile: the launcher says {launched} (ACCELERATE_DYNAMO_BACKEND); set it in the YAML"
        )
    return problems


def _capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


def warn_of_machine(cfg: Config, device: torch.device) -> None:
    """Warns of what `machine_notes` returns."""
    for note in machine_notes(cfg, device):
        warn(f"{note}.")


def machine_notes(cfg: Config, device: torch.device) -> list[str]:
    """Returns what is allowed but slow on this machine: settings on the run's device, and GPUs that are not used."""
    notes = []
    visible, used = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device.type == "cuda" and visible > used:
        each = f"`toolkit train --processes {visible}` uses all"
        notes.append(f"{visible} GPUs are visible, and {used} {'is' if used == 1 else 'are'} used; {each}")
    if device.type == "cpu" and cfg.train.torch_compile:
        notes.append("train.torch_compile: compilation takes minutes and rarely pays off for small models on a CPU")
    if device.type == "cpu" and cfg.train.mixed_precision == "bf16" and BF16_FLAGS.isdisjoint(cpu_flags()):
        factor = bf16_slowdown()
        if factor > 1:
            notes.append(
                f"train.mixed_precision: this CPU has neither avx512_bf16 nor amx_bf16, and a product in bf16 takes "
                f"{factor:.1f} times as long as in float32 (measured just now); `no` is faster"
            )
    return notes


def cpu_flags(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Returns the feature flags of the first CPU; empty if the system does not report them."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    found = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return frozenset(found[0] if found else ())


def bf16_slowdown() -> float:
    """Measures the time of a matrix product in bf16 divided by that in float32, on the CPU."""

    def seconds(dtype: torch.dtype) -> float:
        matrix, times = torch.ones(PROBE_SIZE, PROBE_SIZE, dtype=dtype), []
        for _ in range(4):  # the first one chooses its code
            start = time.perf_counter()
            matrix @ matrix
            times.append(time.perf_counter() - start)
        return min(times)

    return seconds(torch.bfloat16) / seconds(torch.float32)
