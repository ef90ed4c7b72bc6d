"""The small runs into which faults are injected."""

from __future__ import annotations

from pathlib import Path

from forked import ROOT, Hook

ROWS, BATCH, PER_STEP = 22, 2, 4
STEPS_PER_EPOCH = -(-ROWS // PER_STEP)
SMALL = (
    *("model.from_config.hidden_size=16", "model.from_config.intermediate_size=24"),
    *("model.from_config.num_hidden_layers=1", "model.from_config.vocab_size=120"),
    *("model.from_config.hidden_dropout_prob=0.1", "task.max_length=16"),
    *(f"data.max_train_samples={ROWS}", "data.max_eval_samples=6"),
    *("train.num_train_epochs=2", f"train.per_device_train_batch_size={BATCH}", "tracking.logging_steps=1"),
    *("checkpoint.save_steps=4", "checkpoint.save_total_limit=2", "checkpoint.async_save=false"),
)
"""22 rows in windows of 4: six steps an epoch, the last of which is short, and checkpoints in the middle of epochs."""
RESUME = "checkpoint.resume=auto"
QUICK: tuple[Hook, ...] = (("no_prediction", {}),)


def argv(output: Path, *overrides: str, recipe: str = "reviews") -> list[str | Path]:
    """Returns the command line of a small run; windows have 4 rows on any number of processes."""
    file = ROOT / "recipes" / f"{recipe}.py"
    config = ROOT / "recipes" / "configs" / recipe / "smoke.yaml"
    small = SMALL if recipe == "reviews" else [each for each in SMALL if not each.startswith(("model.", "task."))]
    window = f"train.global_batch_size={PER_STEP}"
    return [file, "--config", config, *small, window, *overrides, f"output_dir={output}"]


def logging_rows(folder: Path) -> Hook:
    """Returns the hook that logs the rows of every step into a folder."""
    return ("log_rows", {"path": str(folder / "rows.jsonl")})
