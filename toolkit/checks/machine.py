"""Checks which settings this machine does not support or runs slowly."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import torch

from toolkit.api.mesh import Mesh
from toolkit.base.console import say, warn
from toolkit.config.messages import show
from toolkit.config.sections import Config
from toolkit.config.source import read_file
from toolkit.system.limits import BF16_FLAGS, cpu_flags

TF32_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)
PROBE_SIZE = 256
"""Number of rows and columns of the matrices whose product is timed."""


def launcher_problems(file: Path | None = None) -> list[str]:
    """Returns why a configuration file of `accelerate launch` is not for this machine; None takes the one in use."""
    if file is None and (file := _launcher_file()) is None:
        return []
    values = read_file(file).values
    kind = str(values.get("distributed_type"))
    if kind == "DEEPSPEED" and importlib.util.find_spec("deepspeed") is None:
        extra = "pip install 'finetune-toolkit[deepspeed]', or set parallel.zero_stage, for which torch is enough"
        return [f"{file} needs DeepSpeed, which is not installed; {extra}"]
    if kind == "DEEPSPEED" or values.get("use_cpu") is not False or torch.accelerator.is_available():
        return []
    name = {"NO": "cpu", "FSDP": "fsdp2_cpu"}.get(kind, "cpu_2proc")
    return [f"{file} is for GPUs, and none is visible here; on the CPU, train with accelerate_configs/{name}.yaml"]


def _launcher_file() -> Path | None:
    """Returns the `--config_file` of the `accelerate launch` that has started this process, if it has one."""
    import psutil

    words: list[str] = []
    with suppress(psutil.Error):
        words = [part for word in psutil.Process(os.getppid()).cmdline() for part in word.split("=", 1)]
    if "ACCELERATE_MIXED_PRECISION" not in os.environ or "--config_file" not in words[:-1]:
        return None
    file = Path(words[words.index("--config_file") + 1])
    return file if file.is_file() else None


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


def placement(cfg: Config, mesh: Mesh, device: torch.device) -> str:
    """Returns where a run trains: devices, processes, what they share, and the rows of a step."""
    where = f"{mesh.size} process{'es' if mesh.size > 1 else ''} on {device.type.upper()}"
    sizes = ", ".join(f"{name} {size}" for name, size in mesh.sizes.items() if size > 1)
    stage = cfg.parallel.zero_stage or (3 if mesh.fsdp > 1 else 0)
    parts = ["optimizer state", "gradients", "weights"][:stage]
    sizes_of = ("positions", mesh.context), ("matrices", mesh.tensor), ("layers", mesh.pipeline)
    parts += [name for name, size in (*sizes_of, ("experts", mesh.expert)) if size > 1]
    shared = f"; split over processes: {', '.join(parts)}" if parts and mesh.size > 1 else ""
    where += f" ({sizes})" if sizes else ""
    found = f"Training in {where}, {cfg.train.rows_per_step(mesh.data_size)} rows per step"
    if mesh.data_size > 1 and cfg.train.global_batch_size is None:
        shared += "; train.global_batch_size is null, so another number of processes trains another run"
    return f"{found}{shared}."


def warn_of_machine(cfg: Config, mesh: Mesh, device: torch.device) -> None:
    """Says where the run trains, and warns of what `machine_notes` returns."""
    say(placement(cfg, mesh, device))
    for note in machine_notes(cfg, device):
        warn(f"{note}.")


def machine_notes(cfg: Config, device: torch.device) -> list[str]:
    """Returns what is allowed but slow on this machine: settings on the run's device, and GPUs that are not used."""
    notes = []
    visible, used = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device.type == "cuda" and visible > used:
        each = f"`toolkit train --processes {visible}` uses all"
        notes.append(f"{visible} GPUs are visible, and {used} {'is' if used == 1 else 'are'} used; {each}")
    load, threads = os.getloadavg()[0], torch.get_num_threads()
    if device.type == "cpu" and threads > 1 and load > (os.cpu_count() or 1):
        notes.append(
            f"the load of this machine is {load:.1f} on {os.cpu_count()} cores: other programs compute, too, and the "
            f"{threads} threads of each process may wait for each other; OMP_NUM_THREADS={threads // 2} is faster then"
        )
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
