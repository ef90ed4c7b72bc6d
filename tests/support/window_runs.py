"""Trains embeddings, whose loss compares all rows of a window: `window_runs.py DIR RUN...`; rows are in `DIR`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from finishing import finish
from runs import ROOT, train_recipe

RECIPE = ROOT / "recipes/embeddings.py"
WORDS = ("soil", "rain", "clay", "sand", "frost", "seed", "hay", "ewe", "barn", "roof", "apple", "garlic")
ROWS = 16
SETTINGS: dict[str, Any] = {
    "seed": 1,
    "task": {"max_length": 24},
    "model": {
        "from_config": {
            "model_type": "bert", "vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 40,
            "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        }
    },
    "data": {"validation_split": 0.2},
    "train": {
        "optim": "sgd", "learning_rate": 0.05, "lr_scheduler_type": "constant", "max_steps": 5, "max_grad_norm": 0.5,
        "global_batch_size": ROWS, "train_sampling_strategy": "random",
    },
    "eval": {"eval_steps": None, "per_device_eval_batch_size": 7},
    "checkpoint": {"save_steps": None},
    "tracking": {"logging_steps": 1},
}  # fmt: skip
"""Of 75 rows some 60 train, so the last window of an epoch is short; clipping is active."""
DROPOUT = ("model.from_config.hidden_dropout_prob=0.2", "model.from_config.attention_probs_dropout_prob=0.2")


def rows_per_micro_batch(count: int) -> str:
    """Returns the setting of the rows of a process's micro-batch."""
    return f"train.per_device_train_batch_size={count}"


RUNS: dict[str, tuple[int, tuple[str, ...]]] = {
    "16x1": (1, (rows_per_micro_batch(16),)),
    "8x2": (1, (rows_per_micro_batch(8),)),
    "2x8": (1, (rows_per_micro_batch(2),)),
    "trainer": (1, (rows_per_micro_batch(8), "engine=trainer")),
    "padded": (1, (rows_per_micro_batch(8), "train.unpadded=false")),
    "unpadded": (1, (rows_per_micro_batch(8), "train.unpadded=true")),
    "recompute": (1, (rows_per_micro_batch(8), "train.activation_checkpointing=full")),
    "budget": (1, ("train.max_tokens_per_batch=200",)),
    "auto_batch_size": (1, (rows_per_micro_batch(8), "train.auto_batch_size=true")),
    "ddp": (2, (rows_per_micro_batch(4),)),
    "ddp-trainer": (2, (rows_per_micro_batch(8), "engine=trainer")),
    "ddp-budget": (2, ("train.max_tokens_per_batch=200",)),
    "zero1": (2, (rows_per_micro_batch(4), "parallel.zero_stage=1")),
    "fsdp": (2, (rows_per_micro_batch(4), "parallel.fsdp=2")),
    "fsdp-trainer": (2, (rows_per_micro_batch(4), "parallel.fsdp=2", "engine=trainer")),
    "zero2": (2, (rows_per_micro_batch(4), "parallel.zero_stage=2")),
    "tensor": (2, (rows_per_micro_batch(4), "parallel.tensor=2")),
    "three": (3, (rows_per_micro_batch(2),)),
    "symmetric-16x1": (1, (rows_per_micro_batch(16), "task.symmetric=true", "task.matryoshka_dims=[8]")),
    "symmetric-2x8": (1, (rows_per_micro_batch(2), "task.symmetric=true", "task.matryoshka_dims=[8]")),
    **{
        f"{loss}-{split}x{ROWS // split}": (1, (rows_per_micro_batch(split), f"task.loss={loss}"))
        for loss in ("triplet", "cosent", "cosine") for split in (16, 2)
    },
    "dropout-loop": (1, (rows_per_micro_batch(4), *DROPOUT)),
    "dropout-trainer": (1, (rows_per_micro_batch(4), *DROPOUT, "engine=trainer")),
}  # fmt: skip
"""The number of processes, and the settings."""
SCORED = ("cosent", "cosine")


def write_rows(folder: Path) -> None:
    """Writes texts of different lengths with one or two negatives or none, some anchors and positives twice."""
    triples, pairs = [], []
    for number in range(75):
        anchor = f"{number // 2 if number % 10 == 1 else number} " + " ".join(
            WORDS[(number * 5 + k) % 12] for k in range(1 + number % 4)
        )
        positive = f"{number % 60} " + " ".join(WORDS[(number * 3 + k) % 12] for k in range(2 + number % 9))
        negatives = [f"no {number} {WORDS[(number + k) % 12]}" for k in range(number % 3)] or [f"none {number}"]
        triples.append({"anchor": anchor, "positive": positive, "negative": negatives})
        pairs.append({"text": anchor, "text_pair": positive, "score": number % 7})
    for name, rows in (("triples", triples), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(folder: Path, *names: str) -> None:
    """Trains runs by name, in float64."""
    for name in names:
        _, settings = RUNS[name]
        file = "pairs" if name.startswith(SCORED) else "triples"
        train_recipe(
            RECIPE, SETTINGS, f"data.train_file={folder / file}.jsonl", *settings, f"output_dir={folder / name}",
            double=True,
        )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    finish()
