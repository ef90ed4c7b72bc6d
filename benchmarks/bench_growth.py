"""P13: how time and memory grow with rows, with the length of a row, and with processes.

    python benchmarks/bench_growth.py [--pairs 3]

`rows`: seconds per row to read, check and tokenise short texts and to order an epoch. `length`: seconds of a training
step with the same number of tokens in longer rows (attention grows with the square of a row). `processes`: seconds of
the same training step on one process and on two, with one thread each. Every case is compared with the first of its
kind, so that a ratio of 1 means that nothing is lost by growth (processes: that nothing is gained; 2 is the ideal).
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import texts
from bench_guards import launched
from ours import STEPS_ONLY, no_waste, recipe_side
from pairs import ROOT, Clock, Runs, Side, calling, compared, interleave, parser, read_options, write

ROWS = (1_000, 10_000, 100_000)
LENGTHS = (128, 512, 2048)
PROCESSES = {1: "1 process", 2: "2 processes"}
TOKENS = 8192
"""Tokens of a step."""
STEPS, WARM_UP = 6, 2
CONFIG = "recipes/configs/reviews/smoke.yaml"
MODEL = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "max_position_embeddings": 2048}


def write_texts(words: Sequence[str], number: int, count: int, file: Path) -> Path:
    """Writes texts of a number of words with a class each."""
    source = random.Random(3)
    rows = ({"text": " ".join(source.choices(words, k=count)), "label": index % 2} for index in range(number))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def read(file: str, warm_up: str, model: str, folder: str) -> dict[str, Any]:
    """Reads, checks, tokenises and orders rows as a run does, and returns the seconds per row and the memory."""
    import datasets
    import torch
    from transformers import AutoTokenizer

    from toolkit.api.mesh import Mesh
    from toolkit.data.batching.batches import training_order
    from toolkit.data.loading import check_rows
    from toolkit.data.tokenise import tokenise
    from toolkit.recipe import load_settings, load_task_type
    from toolkit.system.memory import peak_memory_bytes

    datasets.config.HF_DATASETS_CACHE = Path(tempfile.mkdtemp(dir=folder))
    tokenizer = AutoTokenizer.from_pretrained(model)
    task_type = load_task_type(ROOT / "recipes" / "reviews.py")
    clock, features, peaks = Clock(), [], []
    for place in (warm_up, file):
        settings = [*STEPS_ONLY, "data.validation_file=null", f"data.train_file={place}", "model.from_config=null",
                    f"model.name_or_path={model}", f"output_dir={folder}/run"]  # fmt: skip
        cfg = load_settings(task_type, ROOT / CONFIG, settings).config
        task = task_type(cfg)
        clock.tick()
        features = tokenise(check_rows(cfg, task).splits["train"], task, tokenizer, labelled=True)
        order = training_order(features, cfg, Mesh())
        ordered = sum(len(order.window(0, index)) for index in range(order.windows_per_epoch))
        clock.tick()
        peaks.append(peak_memory_bytes(torch.device("cpu")))
    return {"seconds": clock.steps(0)[-1] / ordered, "mib": (peaks[1] - peaks[0]) / 2**20}


def row_sides(options: argparse.Namespace, model: Path, folder: Path) -> list[Side]:
    """Returns a side for each number of rows."""
    words = texts.one_token_words(model)
    warm_up = write_texts(words, 50, 20, folder / "warm_up.jsonl")
    numbers = (50, 100) if options.quick else ROWS
    return [
        calling(
            f"{number:,} rows", read, file=str(write_texts(words, number, 20, folder / f"{number}.jsonl")),
            warm_up=str(warm_up), model=str(model), folder=str(folder),
        )
        for number in numbers
    ]  # fmt: skip


def training(options: argparse.Namespace, model: Path, folder: Path, name: str, length: int, processes: int) -> Side:
    """Returns a side that trains steps of equally many tokens, on rows of one length."""
    tokens, steps = (256, 1) if options.quick else (TOKENS, STEPS)
    rows = tokens // length
    number = rows * (WARM_UP + steps)
    file = write_texts(texts.one_token_words(model), number, length - 2, folder / f"{length}-{processes}.jsonl")
    settings = [
        "model.from_config=null", f"model.name_or_path={model}", "data.validation_file=null", f"data.train_file={file}",
        f"task.max_length={length}", f"train.per_device_train_batch_size={rows // processes}",
        "train.gradient_accumulation_steps=1", "train.num_train_epochs=1", *no_waste(),
    ]  # fmt: skip
    return launched(recipe_side(name, "reviews", CONFIG, settings, folder, WARM_UP), processes)


def length_sides(options: argparse.Namespace, model: Path, folder: Path) -> list[Side]:
    """Returns a side for each length."""
    lengths = (32, 64) if options.quick else LENGTHS
    return [training(options, model, folder, f"{length:,} tokens", length, 1) for length in lengths]


def process_sides(options: argparse.Namespace, model: Path, folder: Path) -> list[Side]:
    """Returns a side for each number of processes, with one thread each."""
    length = 32 if options.quick else LENGTHS[0]
    made = [training(options, model, folder, name, length, number) for number, name in PROCESSES.items()]
    return [Side(side.name, side.command, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}) for side in made]


def growth(runs: Runs) -> dict[str, Any]:
    """Compares every case with the first."""
    first, *others = runs
    return {
        f"{first} to {other}": {
            **compared(runs, first, other),
            "peak_mib": {name: max(run["mib"] for run in runs[name]) for name in (first, other)},
        }
        for other in others
    }


def main() -> None:
    """Runs the pairs and writes the result."""
    options = read_options(parser(__doc__, pairs=3))
    cases: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        folder = Path(scratch)
        model = texts.new_bert(folder / "model", **MODEL)
        # A quick form leaves out the lengths, which train as the processes do.
        for sides in (row_sides, process_sides) if options.quick else (row_sides, length_sides, process_sides):
            cases |= growth(interleave(sides(options, model, folder), options))
    main_case = list(cases)[1 - options.quick]
    title = "growth with rows (seconds per row), with the length of rows (per token), and with processes (per step)"
    write("p13_growth", "P13", title, {**cases[main_case], "case": main_case, "cases": cases}, options)


if __name__ == "__main__":
    main()
