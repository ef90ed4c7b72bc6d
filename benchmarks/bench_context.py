"""Counted memory and messages of processes that share the positions of a text of 32,768 tokens (`parallel.context`).

    python benchmarks/bench_context.py [--only 1 2 4]

A Llama (hidden 64, 2 layers, 4 heads of queries and 1 of keys and values, vocabulary 300) in float32 with SGD trains on
one text per step. `tracking.count_memory` counts the bytes of all tensors in the second step until its update, so
nothing depends on the load of the machine. The losses of all cases must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pairs import ROOT, cpu, parser, read_options

from toolkit.system.environment import checkout, versions

NAME, MIB, LENGTH = "context", 2**20, 32_768
MODEL = (
    "model.from_config={{model_type: llama, vocab_size: 300, hidden_size: 64, num_hidden_layers: 2, "
    "num_attention_heads: 4, num_key_value_heads: 1, intermediate_size: 256, max_position_embeddings: {length}, "
    "tie_word_embeddings: true}}"
)
SETTINGS = (
    MODEL, "task.block_size={length}", "task.prompts=[]", "data.train_file={file}", "data.validation_split=0",
    "data.validation_file=null", "eval.eval_steps=null", "train.max_steps=2", "train.global_batch_size=1",
    "train.per_device_train_batch_size=1", "train.optim=sgd", "train.chunked_loss=false",
    "checkpoint.save_steps=null", "tracking.count_memory=true",
)  # fmt: skip
RECOMPUTED = "train.activation_checkpointing=full"
LOSSES_DIFFER = 1e-5


def text(length: int) -> str:
    """Returns more random words than a tokenizer of 300 pieces needs for two texts of `length` tokens."""
    draw = random.Random(0)
    return " ".join("".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(length))


def measured(folder: Path, processes: int, length: int, *further: str) -> dict[str, float]:
    """Trains two steps; returns the largest counted peak and what a process sent per step, in MiB, and the loss."""
    (folder / "text.txt").write_text(text(length), encoding="utf-8")
    settings = [each.format(length=length, file=folder / "text.txt") for each in SETTINGS]
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(processes), "--config_file",
        str(ROOT / f"accelerate_configs/{'cpu' if processes == 1 else 'cpu_2proc'}.yaml"),
        str(ROOT / "recipes/language_modeling.py"), "--config",
        str(ROOT / "recipes/configs/language_modeling/smoke.yaml"), *settings, *further,
        f"parallel.context={processes}", f"output_dir={folder / 'run'}",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, env=environment, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    result: dict[str, Any] = json.loads((folder / "run/run.json").read_text(encoding="utf-8"))["result"]
    sent = result.get("exchange_bytes", 0.0) / 2 / MIB
    return {"counted": max(result["counted_peak_bytes"]) / MIB, "sent": sent, "loss": result["train_loss"]}


def main() -> None:
    """Measures the cases, compares their losses, and writes each result when it is there."""
    made = parser(__doc__, pairs=1, wall_only="bytes are counted")
    made.add_argument("--only", type=int, nargs="+", default=[1, 2, 4], help="numbers of processes")
    options: argparse.Namespace = read_options(made)
    length, found = LENGTH // 32 if options.quick else LENGTH, dict[str, dict[str, float]]()
    for processes in options.only:
        for name, further in (("", ()), (", recomputed", (RECOMPUTED,))):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                case = f"{processes} process{'es' if processes > 1 else ''}{name}"
                found[case] = measured(Path(folder), processes, length, *further)
            print(case, found[case], flush=True)
            losses = [each["loss"] for each in found.values()]
            assert max(losses) - min(losses) < LOSSES_DIFFER, f"the losses of {[*found]} differ: {losses}"
            state = checkout(ROOT)
            page = {"length": length, "cases": found, **cpu(), "versions": versions()}
            if options.results:
                page["commit"] = state.commit if state else None
                (options.results / f"{NAME}.json").write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
