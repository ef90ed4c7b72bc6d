"""Trains the task of `tests/data/preferences.py` with both engines: `preference_runs.py DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from finishing import finish
from runs import ROOT, train_recipe

RECIPE = ROOT / "tests/data/preferences.py"
WORDS = ("soil", "rain", "clay", "sand", "frost", "seed", "hay", "ewe", "barn", "roof", "apple", "garlic")
SETTINGS = {
    "seed": 1,
    "model": {
        "from_config": {
            "model_type": "bert", "vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 40,
            "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        }
    },
    "data": {"validation_split": 0.2},
    "train": {
        "optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "num_train_epochs": 2,
        "gradient_accumulation_steps": 2,
    },
    "eval": {"eval_steps": None},
    "checkpoint": {"save_steps": None},
    "tracking": {"logging_steps": 1},
}  # fmt: skip
"""Of 46 rows 37 train: windows of 8 rows do not divide them."""


def rows(file: Path) -> Path:
    """Writes answers of different lengths, and returns the file."""
    pairs = [
        (
            " ".join(WORDS[(i * 5 + k) % 12] for k in range(1 + i % 7)),
            " ".join(WORDS[(i * 3 + k) % 12] for k in range(1 + i % 4)),
        )
        for i in range(46)
    ]
    file.write_text("chosen,rejected\n" + "\n".join(f"{i} {a},{i} {b}" for i, (a, b) in enumerate(pairs)) + "\n")
    return file


def main(folder: Path, processes: int) -> None:
    """Trains with both engines, in windows of 8 rows."""
    for engine in ("loop", "trainer"):
        train_recipe(
            RECIPE,
            SETTINGS,
            f"data.train_file={folder / 'rows.csv'}",
            f"train.per_device_train_batch_size={4 // processes}",
            f"engine={engine}",
            f"output_dir={folder / f'{engine}-{processes}'}",
            double=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), 2)
    finish()
