"""Draws how well search works after training with windows of several sizes, whose micro-batches are equally large.

python docs/draw_windows.py --output windows.svg

The texts are made up: a query and its document share a subject and a thing, in words of their own. Of random documents,
few have the same subject, so that a small window hardly asks for the thing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path

from drawing import parser as parser_of
from drawing import write

from toolkit.document.charts import line_chart
from toolkit.document.svg import Drawing

SUBJECTS, THINGS, TRAIN, HELD_OUT = 12, 60, 6000, 500
WINDOWS, MICRO_BATCH = (8, 32, 128), 8
STEPS = 100
"""Steps of the largest window; smaller ones take as many, and then go on to as many rows."""
MODEL = {"model_type": "bert", "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 128, "max_position_embeddings": 32, "hidden_dropout_prob": 0.0,
         "attention_probs_dropout_prob": 0.0}  # fmt: skip
SETTINGS = ("task.max_length=24", f"model.from_config={json.dumps(MODEL)}",
            "data.columns={anchor: anchor, positive: positive}",
            f"train.per_device_train_batch_size={MICRO_BATCH}", "train.learning_rate=2.0e-3",
            "train.lr_scheduler_type=constant", "train.warmup_steps=0", "checkpoint.save_steps=null",
            f"eval.eval_steps={STEPS}", "eval.eval_on_start=false")  # fmt: skip


def row(draw: random.Random, subject: int, thing: int) -> dict[str, str]:
    """Returns a query and its document."""

    def words(side: str) -> str:
        found = [f"{side}s{subject}x{draw.randrange(4)}" for _ in range(6)]
        found += [f"{side}t{thing}x{draw.randrange(2)}" for _ in range(2)]
        found += [f"{side}n{draw.randrange(50)}" for _ in range(3)]
        draw.shuffle(found)
        return " ".join(found)

    return {"anchor": words("q"), "positive": words("d")}


def write_rows(folder: Path) -> list[str]:
    """Writes rows for training and, of other texts, for validation; returns the settings that name the files."""
    draw = random.Random(0)
    every = [*itertools.product(range(SUBJECTS), range(THINGS))]
    parts = {"train": draw.choices(every, k=TRAIN), "validation": draw.sample(every, k=HELD_OUT)}
    for name, pairs in parts.items():
        lines = (json.dumps(row(draw, *pair)) + "\n" for pair in pairs)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return [f"data.{name}_file={folder / name}.jsonl" for name in parts]


def recall(folder: Path, window: int, steps: int) -> dict[int, float]:
    """Trains with a window and returns recall@1 by step."""
    import toolkit

    rows = write_rows(folder)
    sizes = [f"train.global_batch_size={window}", f"train.max_steps={steps}", f"output_dir={folder / str(window)}"]
    run = toolkit.train("embeddings", "smoke", [*SETTINGS, *rows, *sizes])
    lines = map(json.loads, (run.output_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {line["step"]: line["eval_recall_at_1"] for line in lines if "eval_recall_at_1" in line}


def drawn(found: Mapping[int, Mapping[int, float]]) -> Drawing:
    """Returns a picture of recall@1, by window and step."""
    most = max(found) * STEPS
    lines = {
        f"after {most:,} rows": ([*found], [each[most // window] for window, each in found.items()]),
        f"after {STEPS} steps": ([*found], [each[STEPS] for each in found.values()]),
    }
    words = {"x_label": f"rows of a window, of which {MICRO_BATCH} are in memory at once", "y_label": "recall@1"}
    title = "Recall of unseen queries by the size of the window"
    return line_chart(lines, title=title, **words, log_x=True, zero=True, whole=False, point="rows")


def main(target: Path) -> None:
    """Trains with each window, and draws."""
    with tempfile.TemporaryDirectory() as name:
        found = {window: recall(Path(name), window, STEPS * max(WINDOWS) // window) for window in WINDOWS}
    write(target, [drawn(found)])


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    return parser_of(__doc__)


if __name__ == "__main__":
    main(parser().parse_args().output)
