"""Time, accuracy and memory of the loop and of a plain `transformers.Trainer` script on text classification.

    python benchmarks/bench_reviews.py [--model FOLDER --train-file FILE --validation-file FILE] [--pairs 3]

Both train one epoch with the same batch size, learning rate and precision, alternately (A B A B ...) and each in its
own process. Ratios are computed per pair, so that a drift in the machine's speed cancels out. Without arguments, an
encoder of MiniLM's size is trained from scratch on the reviews in this repository. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REVIEWS = ROOT / "recipes/data/reviews"
MINILM_SIZE = {
    "model_type": "bert", "vocab_size": 8000, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 1536, "max_position_embeddings": 128,
}  # fmt: skip


def new_model(folder: Path) -> Path:
    """Writes a configuration and a tokenizer trained on the reviews, which all sides start from."""
    import csv

    from transformers import AutoConfig

    from toolkit.modalities.text import configure, new_processor

    sizes = {name: value for name, value in MINILM_SIZE.items() if name != "model_type"}
    config = AutoConfig.for_model("bert", **sizes)
    with (REVIEWS / "train.csv").open(encoding="utf-8") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    tokenizer = new_processor(iter(texts), config, argparse.Namespace(max_length=128))
    configure(config, tokenizer, new=True)
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(command: Sequence[str]) -> str:
    """Runs a command and returns what it printed."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


def loop(arguments: argparse.Namespace, folder: Path, *overrides: str) -> dict[str, float]:
    """Trains with the toolkit's loop and returns seconds, accuracy and peak memory."""
    model = f"name_or_path={arguments.model}" if arguments.pretrained else f"from_config={json.dumps(MINILM_SIZE)}"
    settings = [
        f"model.{model}",
        f"data.train_file={arguments.train_file}",
        f"data.validation_file={arguments.validation_file}",
        f"train.per_device_train_batch_size={arguments.batch_size}",
        f"train.mixed_precision={'bf16' if arguments.bf16 else 'no'}",
        f"output_dir={folder}",
    ]
    config = "recipes/configs/reviews/customer_reviews.yaml"
    command = [sys.executable, "recipes/reviews.py", "--config", config, *settings, *overrides]
    run(command)
    figures = json.loads((folder / "run.json").read_text(encoding="utf-8"))["result"]
    return {"train_seconds": figures["train_seconds"], "accuracy": figures["eval_accuracy"],
            "peak_memory_mib": figures["peak_memory_bytes"] / 2**20}  # fmt: skip


def plain(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Trains with the plain Trainer script and returns seconds and accuracy."""
    command = [sys.executable, "benchmarks/plain_trainer.py", "--model", str(arguments.model), "--train_file",
               arguments.train_file, "--validation_file", arguments.validation_file, "--output_dir", str(folder),
               "--batch_size", str(arguments.batch_size), *(["--bf16"] if arguments.bf16 else [])]  # fmt: skip
    return json.loads(run(command).split("RESULT")[1])


def main() -> None:
    """Runs the pairs, prints the table and writes it to `benchmarks/results/reviews.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a pretrained encoder")
    parser.add_argument("--train-file", default=str(REVIEWS / "train.csv"))
    parser.add_argument("--validation-file", default=str(REVIEWS / "validation.csv"))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--name", default="reviews", help="name of the result file")
    arguments = parser.parse_args()
    arguments.pretrained = arguments.model is not None
    sides = {
        "plain Trainer": lambda folder: plain(arguments, folder),
        "loop": lambda folder: loop(arguments, folder, "train.train_sampling_strategy=random"),
        "loop, group_by_length": lambda folder: loop(arguments, folder),
    }
    results: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as scratch:
        if not arguments.pretrained:
            arguments.model = new_model(Path(scratch) / "model")
        for pair in range(arguments.pairs):
            for number, (name, side) in enumerate(sides.items()):
                results[name].append(side(Path(scratch) / f"{pair}-{number}"))
                print(f"pair {pair + 1}: {name}: {results[name][-1]}", flush=True)
    report(arguments, results)


def report(arguments: argparse.Namespace, results: dict[str, list[dict[str, float]]]) -> None:
    """Prints and writes the medians over pairs of time, time relative to the plain Trainer, and accuracy."""
    base = [run["train_seconds"] for run in results["plain Trainer"]]
    rows = {}
    for name, runs in results.items():
        seconds = [run["train_seconds"] for run in runs]
        rows[name] = {
            "train_seconds": statistics.median(seconds),
            "time_ratio": statistics.median(own / other for own, other in zip(seconds, base, strict=True)),
            "accuracy": statistics.median(run["accuracy"] for run in runs),
        }
    print(f"\n{'side':24}{'seconds':>10}{'ratio':>8}{'accuracy':>10}")
    for name, row in rows.items():
        print(f"{name:24}{row['train_seconds']:10.1f}{row['time_ratio']:8.2f}{row['accuracy']:10.3f}")
    folder = ROOT / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    setting = {"pairs": arguments.pairs, "batch_size": arguments.batch_size, "bf16": arguments.bf16}
    page = {"setting": setting, "median": rows, "runs": results}
    (folder / f"{arguments.name}.json").write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
