"""What parts of a training step on a CPU gain, each as interleaved pairs in one process (or of two, for allocators).

    python benchmarks/bench_cpu_step.py [--pairs 5]

Each pair measures the same work without and with a part, one after the other, in changing order. What is measured is
the CPU time of one thread, so that other processes of the machine disturb little. The ratio is time without over time
with: above 1 the part gains. Writes `benchmarks/results/cpu_step.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from ctypes.util import find_library
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit.api.batch import IGNORE_INDEX, Batch, logits_at_labels
from toolkit.distributed.launch import flushed_denormals
from toolkit.models.fast_dropout import use_fast_dropout
from toolkit.models.parts import head_at_labels
from toolkit.system.limits import freed_memory_kept
from toolkit.system.memory import peak_memory_bytes
from toolkit.tasks.tokens import labelled_positions, token_losses

RESULTS = Path(__file__).resolve().parent / "results" / "cpu_step.json"
VOCABULARY, ROWS, LENGTH = 30522, 4, 170
SIZES = {"hidden_size": 384, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 1536}
JEMALLOC = find_library("jemalloc")
KEPT = "kept"
ALLOCATORS = {KEPT: {}, **({"jemalloc": {"LD_PRELOAD": JEMALLOC}} if JEMALLOC else {})}
"""Ways to use the memory of large tensors again instead of returning it to the system, and the environment of each;
jemalloc only where it is installed."""

Work = Callable[[bool], None]


def model_of(vocabulary: int) -> nn.Module:
    """Returns a small masked language model with dropout 0.1."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    torch.manual_seed(0)
    config = AutoConfig.for_model("bert", vocab_size=vocabulary, **SIZES)
    model: nn.Module = AutoModelForMaskedLM.from_config(config)
    return model.train()


def batch_of(vocabulary: int, seed: int = 0, rows: int = ROWS) -> Batch:
    """Returns rows without padding, with 15 % of the labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocabulary, (rows, LENGTH), generator=generator)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=generator) > 0.15, IGNORE_INDEX)
    return {"inputs": {"input_ids": ids}, "labels": labels, "labelled": labelled_positions(labels)}


def passes(model: nn.Module, batch: Batch, bf16: bool, labelled: bool = True) -> None:
    """Runs one forward and backward pass."""
    precision = torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext()
    with logits_at_labels(batch) if labelled else nullcontext(), precision:
        logits = model(**batch["inputs"]).logits
    token_losses(logits.float(), batch["labels"], labelled=batch["labelled"]).backward()


def dropout(bf16: bool) -> Work:
    """PyTorch's dropout against `train.fast_dropout`."""
    plain, fast = model_of(2000), model_of(2000)
    use_fast_dropout(fast)
    batch = batch_of(2000)
    return lambda on: passes(fast if on else plain, batch, bf16)


def logits(bf16: bool) -> Work:
    """All logits against those with a label."""
    model, batch = model_of(VOCABULARY), batch_of(VOCABULARY)
    use_fast_dropout(model)
    head_at_labels(model)
    return lambda on: passes(model, batch, bf16, labelled=on)


def weight_casts(rows: int) -> Work:
    """One autocast cache per micro-batch against one per window of four; not part of the toolkit."""
    model, batches = model_of(2000), [batch_of(2000, seed, rows) for seed in range(4)]
    use_fast_dropout(model)

    def work(on: bool) -> None:
        with torch.autocast("cpu", enabled=False) if on else nullcontext():  # the cache lasts to the outermost exit
            for batch in batches:
                passes(model, batch, bf16=True)

    return work


def denormals() -> Work:
    """AdamW on an embedding that got no gradient for a thousand steps, without and with flushed denormals."""
    parameter = nn.Parameter(torch.randn(VOCABULARY, SIZES["hidden_size"]) * 0.02)
    optimizer = torch.optim.AdamW([parameter], lr=1e-4, fused=True)
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()

    def work(on: bool) -> None:
        optimizer.state[parameter]["exp_avg"].fill_(1e-42)
        with flushed_denormals() if on else nullcontext():
            optimizer.step()

    return work


def allocating(bf16: bool) -> dict[str, float]:
    """Returns the CPU seconds of steps with batches of different lengths, and the peak memory of the process in MiB."""
    model = model_of(VOCABULARY)
    use_fast_dropout(model)
    head_at_labels(model)
    batches = [batch_of(VOCABULARY, seed, 2 + seed % 5 * 2) for seed in range(7)]
    passes(model, batches[4], bf16)
    start = time.process_time()
    for batch in batches:
        passes(model, batch, bf16)
    seconds = time.process_time() - start
    return {"seconds": seconds, "mib": peak_memory_bytes(torch.device("cpu")) / 2**20}


CASES: dict[str, Callable[[], Work]] = {
    "fast_dropout_fp32": lambda: dropout(False),
    "fast_dropout_bf16": lambda: dropout(True),
    "labelled_logits_fp32": lambda: logits(False),
    "labelled_logits_bf16": lambda: logits(True),
    "autocast_cache_4_rows": lambda: weight_casts(ROWS),
    "autocast_cache_1_row": lambda: weight_casts(1),
    "flush_denormal_adamw": denormals,
}


def seconds(work: Work, on: bool) -> float:
    """Returns the CPU seconds of this thread."""
    start = time.thread_time()
    work(on)
    return time.thread_time() - start


def started(allocator: str, precision: str, peaks: dict[bool, list[float]], on: bool) -> float:
    """Returns the seconds that `allocating` measures in a new process, with an allocator or the default.

    Args:
        allocator: key of `ALLOCATORS`.
        precision: `fp32` or `bf16`.
        peaks: receives the peak memory, by `on`.
        on: whether to use the allocator.
    """
    environ = {**os.environ, **(ALLOCATORS[allocator] if on else {})}
    command = [sys.executable, __file__, "--allocating", precision, *(["--kept"] if on and allocator == KEPT else [])]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    peaks[on].append(found["mib"])
    return float(found["seconds"])


def pairs_of(measure: Callable[[bool], float], pairs: int) -> dict[str, Any]:
    """Measures pairs in changing order; returns the ratios without / with, and the least times."""
    found: list[tuple[float, float]] = []
    for number in range(pairs):
        order = (False, True) if number % 2 else (True, False)
        times = {on: measure(on) for on in order}
        found.append((times[False], times[True]))
    ratios = [without / with_it for without, with_it in found]
    return {
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "pairs": pairs,
        "seconds_without": round(min(without for without, _ in found), 4),
        "seconds_with": round(min(with_it for _, with_it in found), 4),
    }


def cpu_name() -> str:
    """Returns the name of the CPU, and which products of bf16 it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in values.get("flags", "").split()]
    return ", ".join([values.get("model name", platform.machine()), *flags])


def main() -> None:
    """Measures every case and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--allocating", choices=("fp32", "bf16"), help=argparse.SUPPRESS)
    parser.add_argument("--kept", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.allocating:
        with freed_memory_kept() if arguments.kept else nullcontext():
            print(json.dumps(allocating(arguments.allocating == "bf16")))
        return
    cases: dict[str, Any] = {}
    for name, make in CASES.items():
        work = make()
        for on in (False, True):
            work(on)
        cases[name] = pairs_of(lambda on, work=work: seconds(work, on), arguments.pairs)  # type: ignore[misc]
        print(name, cases[name], flush=True)
    for allocator, precision in itertools.product(ALLOCATORS, ("fp32", "bf16")):
        name, peaks = f"{allocator}_{precision}", dict[bool, list[float]]({False: [], True: []})
        cases[name] = pairs_of(partial(started, allocator, precision, peaks), arguments.pairs)
        cases[name] |= {f"mib_{key}": round(max(peaks[on])) for key, on in (("without", False), ("with", True))}
        print(name, cases[name], flush=True)
    found = {"cpu": cpu_name(), "torch": torch.__version__, "threads": 1, "time": "CPU seconds", "cases": cases}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
