"""Counted memory and messages of each process under data parallelism and FSDP2, beside what `toolkit plan` estimates.

    python benchmarks/bench_sharding.py [--only 2 4]

A Llama of 78 million parameters (hidden 768, 8 layers, tied vocabulary of 8,000) with AdamW, micro-batches of 2 x 64
tokens. A case has the numbers of processes, micro-batches of a step, the precision, recomputation and
`parallel.gradient_sync`. `tracking.count_memory` counts the bytes of all tensors in the second step until its update,
so nothing depends on the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pairs import ROOT, cpu, parser, read_options

from toolkit.system.environment import checkout, versions

NAME, MIB = "sharding", 2**20
MODEL = (
    "model.from_config={model_type: llama, vocab_size: 8000, hidden_size: 768, num_hidden_layers: 8, "
    "num_attention_heads: 12, num_key_value_heads: 12, intermediate_size: 3072, max_position_embeddings: 64, "
    "tie_word_embeddings: true}"
)
SHORT = (
    MODEL, "task.block_size=64", "train.max_steps=2", "train.per_device_train_batch_size=2",
    "train.global_batch_size=null", "train.chunked_loss=false", "data.validation_file=null", "eval.eval_steps=null",
    "checkpoint.save_steps=null", "tracking.count_memory=true",
)  # fmt: skip


def cases(processes: int) -> Iterator[tuple[str, list[str]]]:
    """Yields the name and the settings of each case."""
    for accumulation, precision, recomputed in ((a, p, r) for a in (4, 1) for p in ("bf16", "no") for r in (0, 1)):
        settings = [
            f"train.gradient_accumulation_steps={accumulation}", f"train.mixed_precision={precision}",
            f"train.activation_checkpointing={'full' if recomputed else 'none'}",
        ]  # fmt: skip
        name = f"{processes} processes, {accumulation} x {'bf16' if precision == 'bf16' else 'float32'}"
        name += ", recomputed" if recomputed else ""
        if not recomputed:
            yield f"DDP, {name}", settings
        yield f"FSDP2, {name}", [*settings, f"parallel.fsdp={processes}"]
        if accumulation > 1 and not recomputed:
            yield f"FSDP2 by window, {name}", [*settings, f"parallel.fsdp={processes}", "parallel.gradient_sync=window"]


def measured(settings: list[str], processes: int, folder: Path) -> dict[str, float]:
    """Trains two steps; returns the largest counted peak, and the bytes that a process sent per step, in MiB."""
    config = ROOT / "recipes/configs/language_modeling/smoke.yaml"
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(processes), "--config_file",
              str(ROOT / "accelerate_configs/cpu_2proc.yaml"), str(ROOT / "recipes/language_modeling.py")]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [*launch, "--config", str(config), *SHORT, *settings, f"output_dir={folder}"]
    subprocess.run(command, env=environment, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    result = json.loads((folder / "run.json").read_text(encoding="utf-8"))["result"]
    return {"counted": max(result["counted_peak_bytes"]) / MIB, "sent": result["exchange_bytes"] / 2 / MIB}


def planned(settings: list[str], processes: int) -> dict[str, float]:
    """Returns what the plan estimates, in MiB."""
    from toolkit.distributed.launch import own_process_state
    from toolkit.footprint.simulate import simulate
    from toolkit.lab.plan.estimates import estimated
    from toolkit.lab.plan.subject import subject_of
    from toolkit.recipe import load_settings, load_task_type

    task_type = load_task_type(ROOT / "recipes/language_modeling.py")
    config = ROOT / "recipes/configs/language_modeling/smoke.yaml"
    cfg = load_settings(task_type, config, [*SHORT, *settings, "output_dir=none"]).config
    with own_process_state():
        found = estimated(simulate(subject_of(cfg, task_type(cfg))), cfg, processes)
    return {"planned": found.peak / MIB, "planned_sent": found.sent / MIB}


def main() -> None:
    """Measures the cases, and writes each result when it is there."""
    made = parser(__doc__, pairs=1, wall_only="bytes are counted")
    made.add_argument("--only", type=int, nargs="+", default=[2, 4], help="numbers of processes")
    options: argparse.Namespace = read_options(made)
    file = options.results / f"{NAME}.json" if options.results else Path(os.devnull)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["cases"] if file.is_file() else {}
    for processes in options.only:
        for name, settings in cases(processes):
            if options.quick and "recomputed" not in name:
                continue
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                found[name] = measured(settings, processes, Path(folder) / "run") | planned(settings, processes)
            state = checkout(ROOT)
            page = {"cases": found, **cpu(), "versions": versions(), "commit": state.commit if state else None}
            print(name, found[name])
            if options.results:
                (options.results / f"{NAME}.json").write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
