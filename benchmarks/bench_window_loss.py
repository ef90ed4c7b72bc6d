"""Time and memory of a loss that compares all rows of a window, against plain accumulation of losses of single rows.

    python benchmarks/bench_window_loss.py [--pairs 5] [--cpu-time]

Both sides train the same BERT on the same rows in windows of 256 rows, 8 at once: `multiple_negatives`, which takes two
passes, and `triplet`, which takes one. A third side has a window of 8 rows, for the memory of one micro-batch.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from ours import recipe_side
from pairs import compared, interleave, parser, read_options, write

WORDS = 400
SIDES = {"plain accumulation": ("triplet", 32), "loss of the window": ("multiple_negatives", 32),
         "one micro-batch": ("triplet", 1)}  # fmt: skip
"""The loss, and the micro-batches of a window, of each side."""
PLAIN, WHOLE, ONE = SIDES


def write_rows(file: Path, count: int, length: int) -> Path:
    """Writes rows of an anchor, a positive and a negative with so many words each."""
    draw = random.Random(0)
    rows = [
        {
            name: " ".join(f"w{draw.randrange(WORDS)}" for _ in range(length))
            for name in ("anchor", "positive", "negative")
        }
        for _ in range(count)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def main() -> None:
    """Measures the sides."""
    options = read_options(parser(__doc__, pairs=5))
    width, length, micro = (16, 8, 2) if options.quick else (128, 60, 8)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        parts = 4 if options.quick else 32
        file = write_rows(folder / "rows.jsonl", 3 * parts * micro, length)

        def settings(loss: str, micro_batches: int) -> list[str]:
            sizes = {"hidden_size": width, "num_hidden_layers": 4, "intermediate_size": 4 * width, "vocab_size": 800}
            config = ", ".join(f"{key}: {value}" for key, value in sizes.items())
            return [
                f"data.train_file={file}", "data.validation_file=null",
                "data.columns={anchor: anchor, positive: positive}",
                f"model.from_config={{model_type: bert, num_attention_heads: 4, {config}}}",
                "task.max_length=256", f"task.loss={loss}", f"train.per_device_train_batch_size={micro}",
                f"train.gradient_accumulation_steps={min(micro_batches, parts)}", "train.max_steps=3",
                "eval.eval_on_start=false", "train.unpadded=true",
            ]  # fmt: skip

        sides = [
            recipe_side(
                name, "embeddings", "recipes/configs/embeddings/smoke.yaml", settings(*given), folder, warm_up=1
            )
            for name, given in SIDES.items()
        ]
        runs = interleave(sides, options)
    memory = {name: statistics.median(run["mib"] for run in each) for name, each in runs.items()}
    figures: dict[str, Any] = {**compared(runs, PLAIN, WHOLE), "mib": memory}
    write(
        "window_loss", "window loss", "a loss over all rows of a window, against plain accumulation", figures, options
    )


if __name__ == "__main__":
    main()
