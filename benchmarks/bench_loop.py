"""P7: the toolkit's loop against a bare PyTorch loop, and the Trainer engine against the toolkit's loop.

    python benchmarks/bench_loop.py [--pairs 7]

All sides train question answering on the same rows in the same steps from the same weights, without dropout and with
padding (unpadded batches are off), and their losses are compared: what differs is the cost of the engine itself. With a
small model, a step is mostly that cost; with one of MiniLM's size it is mostly the model.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import texts
from ours import recipe_side
from pairs import ROOT, Side, compared, interleave, parser, read_options, write

WARM_UP = 5
TOLERANCE = 1e-3
"""Largest relative difference of the losses of a step."""
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
LARGE = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12, "num_hidden_layers": 6}
MODELS = {"small": (SMALL, 8, 64, 150), "large": (LARGE, 16, 192, 8)}
"""Sizes of the model, rows of a batch, largest number of tokens, and measured steps; a quick form has the first."""


def sides(size: str, options: argparse.Namespace, folder: Path) -> list[Side]:
    """Returns the bare loop, the toolkit's loop and its Trainer engine for a size of model."""
    sizes, rows, limit, steps = MODELS[size]
    rows, limit, steps = (2, 48, 3) if options.quick else (rows, limit, steps)
    pretrained = texts.new_bert(folder / f"{size}-base", **sizes)
    model = texts.with_head(pretrained, folder / size, dropout=False)
    made = texts.qa_rows(texts.one_token_words(pretrained), WARM_UP + steps, rows, "random", limit)
    file = texts.write_rows(made, folder / f"{size}.jsonl")
    settings = [
        "data.dataset_name=null", f"data.train_file={file}", f"model.name_or_path={model}",
        f"task.max_length={limit}", "task.doc_stride=16", f"train.per_device_train_batch_size={rows}",
        "train.num_train_epochs=1", "train.train_sampling_strategy=sequential", "train.mixed_precision=no",
        "train.learning_rate=5e-5", "train.warmup_steps=0", "train.weight_decay=0", "train.dataloader_num_workers=0",
        "tracking.logging_steps=50", "train.unpadded=false", "train.fast_dropout=false",
    ]  # fmt: skip
    script = str(ROOT / "benchmarks" / "scripts" / "bare_loop.py")
    bare = [sys.executable, script, "--model", str(model), "--train_file", file, "--cache", str(folder / "cache"),
            "--batch_size", str(rows), "--warm_up", str(WARM_UP), "--max_length", str(limit),
            "--doc_stride", "16"]  # fmt: skip
    config = "recipes/configs/qa/squad.yaml"
    engines = [
        recipe_side(f"{engine}, {size}", "qa", config, [*settings, f"engine={engine}"], folder, WARM_UP)
        for engine in ("loop", "trainer")
    ]
    return [Side(f"bare loop, {size}", bare), *engines]


def refuse_other_losses(runs: dict[str, list[dict[str, Any]]], size: str) -> float:
    """Returns the largest relative difference between the losses of a size's sides.

    Raises:
        SystemExit: if it is above `TOLERANCE`.
    """
    bare, *others = (each[0]["losses"] for name, each in runs.items() if name.endswith(size))
    found = max(abs(a / b - 1) for other in others for a, b in zip(other, bare, strict=True))
    if found > TOLERANCE:
        raise SystemExit(f"{size}: the losses differ by {found:.1e} (allowed: {TOLERANCE})")
    return found


def main() -> None:
    """Runs the pairs and writes the result."""
    options = read_options(parser(__doc__, pairs=7))
    cases, checks = {}, {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for size in list(MODELS)[: 1 if options.quick else None]:
            runs = interleave(sides(size, options, Path(folder)), options)
            checks[size] = refuse_other_losses(runs, size)
            cases[f"loop against a bare loop, {size} model"] = compared(runs, f"bare loop, {size}", f"loop, {size}")
            cases[f"loop against the Trainer engine, {size} model"] = compared(
                runs, f"trainer, {size}", f"loop, {size}"
            )
    main_case = f"loop against a bare loop, {list(checks)[-1]} model"
    check = {"losses": "largest relative difference of any step's loss", **checks, "tolerance": TOLERANCE}
    title = "a bare PyTorch loop and the Trainer engine, against the toolkit's loop"
    figures = {**cases[main_case], "case": main_case, "cases": cases, "loss_check": check}
    write("p7_loop", "P7", title, figures, options)


if __name__ == "__main__":
    main()
