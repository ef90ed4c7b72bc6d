"""P15: predictions for the rows of a file, by a pipeline of transformers and by `toolkit predict`.

    python benchmarks/bench_predict.py --minilm FOLDER [--pairs 5] [--rows 4000] [--batch-size 32]

Each side loads the same text classifier, reads the same CSV of texts of mixed lengths, predicts its rows, and writes a
CSV of labels and scores; imports and a few rows before are not counted. The pipeline gets a list and the batch size; in
a further side, the list is sorted by length before, and the answers are put into the order of the file. Each is
measured in float32 and in bfloat16: a pipeline's weights are then bfloat16, the toolkit's forward pass is under
autocast. Sides that give less than 99 % of the rows the pipeline's label write nothing.
"""

from __future__ import annotations

import argparse
import csv
import operator
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import texts
from ours import STEPS_ONLY
from pairs import ROOT, Clock, Runs, calling, compared, interleave, parser, read_options, write

PRECISIONS = {"fp32": "no", "bf16": "bf16"}
MOST_WORDS, MEAN_WORDS = 250, 40
LEAST_EQUAL = 0.99
"""Share of the rows that must have the pipeline's label."""


def pipeline(run: str, files: Sequence[str], output: str, batch_size: int, precision: str, by_length: bool) -> Any:
    """Predicts files, of which the last is timed, with a pipeline."""
    import torch
    import transformers

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    clock = Clock()
    for file in files:
        clock.tick()
        classify = transformers.pipeline(
            "text-classification", f"{run}/model", dtype=dtype, device="cpu", truncation=True, batch_size=batch_size
        )
        given = column(file, "text")
        order = sorted(range(len(given)), key=lambda place: -len(given[place])) if by_length else range(len(given))
        answers = dict(zip(order, classify([given[place] for place in order]), strict=True))
        with Path(output).open("w", newline="", encoding="utf-8") as opened:
            writer = csv.writer(opened)
            writer.writerow(["text", "prediction", "score"])
            for place, text in enumerate(given):
                writer.writerow([text, answers[place]["label"], answers[place]["score"]])
    clock.tick()
    return {"seconds": clock.steps(len(files) - 1)[-1], "labels": column(output, "prediction")}


def toolkit(run: str, files: Sequence[str], output: str, batch_size: int, precision: str) -> Any:
    """Predicts files, of which the last is timed, with the command."""
    from toolkit.commands.cli import run_command

    clock = Clock()
    for file in files:
        clock.tick()
        run_command("predict", ["predict", run, "--input", file, "--output", output, "--overwrite", "--mixed-precision",
                                PRECISIONS[precision], "--per-device-eval-batch-size", str(batch_size)])  # fmt: skip
    clock.tick()
    return {"seconds": clock.steps(len(files) - 1)[-1], "labels": column(output, "prediction")}


def column(file: str, name: str) -> list[str]:
    """Returns a column of a CSV file."""
    with Path(file).open(newline="", encoding="utf-8") as opened:
        return [row[name] for row in csv.DictReader(opened)]


def write_texts(words: list[str], count: int, file: Path) -> str:
    """Writes labelled texts, most of them short and a few long."""
    draw = random.Random(count)
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["text", "label"])
        for number in range(count):
            length = min(MOST_WORDS, 2 + int(draw.expovariate(1 / MEAN_WORDS)))
            side = words[: len(words) // 2] if number % 2 else words[len(words) // 2 :]
            writer.writerow([" ".join(draw.choices(side, k=length)), ("negative", "positive")[number % 2]])
    return str(file)


def trained_classifier(model: Path, words: list[str], folder: Path) -> str:
    """Trains the classifier that all sides use."""
    from toolkit import train
    from toolkit.recipe import load_task_type

    settings = ["model.from_config=null", f"model.name_or_path={model}", "data.validation_file=null",
                f"data.train_file={write_texts(words, 64, folder / 'train.csv')}", f"output_dir={folder}/run",
                "task.max_length=256", "train.num_train_epochs=4", "train.learning_rate=1e-4", *STEPS_ONLY]  # fmt: skip
    train(load_task_type("reviews"), ROOT / "recipes/configs/reviews/smoke.yaml", settings)
    return str(folder / "run")


def check_equal(runs: Runs, options: argparse.Namespace) -> None:
    """Checks that all sides give most rows the label that the first one gives.

    Raises:
        SystemExit: if one does not, and this is no quick run.
    """
    first, *others = runs
    wanted = runs[first][0]["labels"]
    for name in others:
        equal = min(statistics.fmean(map(operator.eq, wanted, run["labels"])) for run in runs[name])
        if equal < LEAST_EQUAL and not options.quick:
            raise SystemExit(f"{name}: {equal:.1%} of the rows have the answer of {first}")


def figures(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures all sides."""
    model = texts.new_bert(folder / "model") if options.quick else texts.minilm(options.minilm)
    words, rows = texts.one_token_words(model), 64 if options.quick else options.rows
    given = {
        "run": trained_classifier(model, words, folder),
        "files": [write_texts(words, count, folder / f"{count}.csv") for count in (33, rows)],
        "batch_size": options.batch_size,
    }
    sides = []
    for precision in PRECISIONS:
        own = {**given, "precision": precision, "output": str(folder / "answers.csv")}
        sides += [
            calling(f"pipeline, {precision}", pipeline, by_length=False, **own),
            calling(f"sorted pipeline, {precision}", pipeline, by_length=True, **own),
            calling(f"toolkit, {precision}", toolkit, **own),
        ]
    runs = interleave(sides, options)
    check_equal(runs, options)
    pairs = [(f"{side}, {precision}", f"toolkit, {precision}")
             for precision in PRECISIONS for side in ("pipeline", "sorted pipeline")]  # fmt: skip
    cases = {other: compared(runs, other, own) for other, own in [*pairs, ("toolkit, fp32", "toolkit, bf16")]}
    settings = {"rows": rows, "batch_size": options.batch_size, "mean_words": MEAN_WORDS}
    return {**cases["pipeline, fp32"], "case": "pipeline, fp32", "cases": cases, "settings": settings}


def main() -> None:
    """Runs the pairs and writes the result."""
    made = parser(__doc__)
    made.add_argument("--minilm", type=Path, help=f"folder of the pretrained MiniLM (default: ${texts.MINILM})")
    made.add_argument("--rows", type=int, default=4000)
    made.add_argument("--batch-size", type=int, default=32)
    options = read_options(made)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        title = "predictions for a file of texts: a pipeline of transformers, against `toolkit predict`"
        write("p15_predict", "P15", title, figures(options, Path(folder)), options)


if __name__ == "__main__":
    main()
