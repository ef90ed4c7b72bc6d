"""Trains the recipe `preference` with every loss: `preference_runs.py DIR RUN...`; rows are in `DIR`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from finishing import finish
from runs import ROOT, train_recipe
from window_runs import WORDS, rows_per_micro_batch

RECIPE = ROOT / "recipes/preference.py"
ROWS, STEPS = 8, 5
SETTINGS: dict[str, Any] = {
    "seed": 1,
    "task": {"max_length": 14, "max_new_tokens": 4},
    "model": {
        "from_config": {
            "model_type": "llama", "vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 40,
        }
    },
    "data": {"validation_split": 0.2},
    "train": {
        "optim": "sgd", "learning_rate": 0.2, "lr_scheduler_type": "constant", "max_steps": STEPS, "max_grad_norm": 0.5,
        "global_batch_size": ROWS, "train_sampling_strategy": "random",
    },
    "eval": {"eval_steps": None, "per_device_eval_batch_size": 7},
    "checkpoint": {"save_steps": None},
    "tracking": {"logging_steps": 1},
}  # fmt: skip
"""Of 36 rows some 29 train, so the last window of an epoch is short; clipping is active."""
OTHERS = ("ipo", "orpo", "simpo", "kto", "reward")
LORA = ("model.peft.method=lora", "model.peft.lora_alpha=64", "train.optim=adamw_torch", "train.learning_rate=0.01")

RUNS: dict[str, tuple[int, tuple[str, ...]]] = {
    "dpo-8x1": (1, (rows_per_micro_batch(8),)),
    "dpo-2x4": (1, (rows_per_micro_batch(2),)),
    "dpo-trainer": (1, (rows_per_micro_batch(4), "engine=trainer")),
    "dpo-unpadded": (1, (rows_per_micro_batch(4), "train.unpadded=true")),
    "dpo-recompute": (1, (rows_per_micro_batch(4), "train.activation_checkpointing=full")),
    "dpo-budget": (1, ("train.max_tokens_per_batch=120",)),
    "dpo-ddp": (2, (rows_per_micro_batch(2),)),
    "dpo-ddp-trainer": (2, (rows_per_micro_batch(4), "engine=trainer")),
    "dpo-fsdp": (2, (rows_per_micro_batch(2), "parallel.fsdp=2")),
    "dpo-zero1": (2, (rows_per_micro_batch(4), "parallel.zero_stage=1")),
    "dpo-tensor": (2, (rows_per_micro_batch(4), "parallel.tensor=2")),
    **{f"{loss}-{split}x{ROWS // split}": (1, (rows_per_micro_batch(split),)) for loss in OTHERS for split in (8, 2)},
    "kto-trainer": (1, (rows_per_micro_batch(2), "engine=trainer")),
    "kto-ddp": (2, (rows_per_micro_batch(2),)),
    "kto-fsdp": (2, (rows_per_micro_batch(4), "parallel.fsdp=2")),
    "orpo-ddp": (2, (rows_per_micro_batch(2),)),
    "reward-ddp": (2, (rows_per_micro_batch(2),)),
    "reward-fsdp": (2, (rows_per_micro_batch(4), "parallel.fsdp=2")),
    "lora": (1, (rows_per_micro_batch(4), *LORA)),
}  # fmt: skip
"""The number of processes, and the settings; names begin with the loss."""


def write_rows(folder: Path) -> None:
    """Writes prompts with answers of different lengths, some prompts twice."""
    pairs, single = [], []
    for number in range(36):
        prompt = f"{number // 2 if number % 9 == 1 else number} {WORDS[number % 12]}?"
        chosen = "".join(" " + WORDS[(number * 3 + k) % 12] for k in range(1 + number % 3))
        rejected = "".join(" " + WORDS[(number * 5 + k + 1) % 12] for k in range(1 + number % 4)) + "!"
        pairs.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
        single.append({"prompt": prompt, "completion": (rejected, chosen)[number % 2], "label": number % 2})
    for name, rows in (("pairs", pairs), ("single", single)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def loss_of(name: str) -> str:
    """Returns the loss of a run."""
    found = name.split("-")[0]
    return found if found in OTHERS else "dpo"


def settings_of(folder: Path, name: str) -> tuple[str, ...]:
    """Returns the settings of a run."""
    loss = loss_of(name)
    file = folder / f"{'single' if loss == 'kto' else 'pairs'}.jsonl"
    sampling = () if loss == "reward" else ("task.beta=0.5",)
    fewer = ("task.max_new_tokens=64",) if loss == "reward" else ()
    return (f"data.train_file={file}", f"task.loss={loss}", *sampling, *fewer, *RUNS[name][1])


def main(folder: Path, *names: str) -> None:
    """Trains runs by name, in float64."""
    for name in names:
        train_recipe(RECIPE, SETTINGS, *settings_of(folder, name), f"output_dir={folder / name}", double=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    finish()
