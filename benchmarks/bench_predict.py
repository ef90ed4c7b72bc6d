"""P15: predictions for the rows of a file, by a pipeline of transformers and by `toolkit predict`.

    python benchmarks/bench_predict.py --minilm FOLDER [--pairs 3] [--rows 1500] [--batch-size 32]
        [--case texts image audio qa translation]

Each side loads the same text classifier, reads the same CSV of texts of mixed lengths, predicts its rows, and writes a
CSV of labels and scores; imports and a few rows before are not counted. The pipeline gets a list and the batch size; in
a further side, the list is sorted by length before, and the answers are put into the order of the file. Each is
measured in float32 and in bfloat16: a pipeline's weights are then bfloat16, the toolkit's forward pass is under
autocast. Sides that give less than 99 % of the rows the pipeline's label write nothing.

The other cases are measured in the same way, in float32, with new models of the sizes in bench_media.py (images, audio)
and multi30k.yaml (translation, greedy), and MiniLM with a new head (question answering). The audio pipeline gets
samples that soundfile decoded and soxr resampled, as in the toolkit. transformers 5 has no pipeline for the last two:
there, a loop over batches does what it did, with the longest answer and translation that the toolkit has.
"""

from __future__ import annotations

import argparse
import csv
import json
import operator
import random
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import media_files
import soundfile
import soxr
import texts
from ours import STEPS_ONLY
from pairs import ROOT, Clock, Runs, calling, compared, interleave, parser, read_options, write

PRECISIONS = {"fp32": "no", "bf16": "bf16"}
MOST_WORDS, MEAN_WORDS = 250, 40
LEAST_EQUAL = 0.99
"""Share of the rows that must have the pipeline's label."""
MOST_TOKENS, LONGEST_ANSWER, LONGEST_TRANSLATION = 384, 30, 32
"""Tokens of a question with its context, of an answer, and of a translation."""


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


def other(kind: str, run: str, files: Sequence[str], output: str, batch_size: int) -> Any:
    """Predicts files of another kind, of which the last is timed, with a pipeline or the loop in its place."""
    answer = {"qa": answered, "translation": translated}.get(kind, partial(classified, kind))
    clock = Clock()
    for file in files:
        clock.tick()
        rows = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
        answers = answer(f"{run}/model", rows, batch_size)
        with Path(output).open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows([["prediction"], *([text] for text in answers)])
    clock.tick()
    return {"seconds": clock.steps(len(files) - 1)[-1], "labels": column(output, "prediction")}


def classified(kind: str, model: str, rows: Sequence[texts.Row], batch_size: int) -> list[str]:
    """Returns the classes of images or clips."""
    import transformers

    classify = transformers.pipeline(f"{kind}-classification", model, device="cpu", batch_size=batch_size)
    given = [row[kind] for row in rows]
    if kind == "audio":
        rate = classify.feature_extractor.sampling_rate
        given = [soxr.resample(*soundfile.read(file, dtype="float32"), rate) for file in given]
    return [found[0]["label"] for found in classify(given)]


def answered(model: str, rows: Sequence[texts.Row], batch_size: int) -> list[str]:
    """Returns the best span of each context, whose windows are whole: start and end with the largest sum of logits."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModelForQuestionAnswering.from_pretrained(model).eval()
    answers = []
    for start in range(0, len(rows), batch_size):
        part = rows[start : start + batch_size]
        encoded = tokenizer(
            [row["question"] for row in part], [row["context"] for row in part], truncation="only_second",
            max_length=MOST_TOKENS, padding=True, return_offsets_mapping=True, return_tensors="pt",
        )  # fmt: skip
        offsets = encoded.pop("offset_mapping")
        with torch.no_grad():
            found = network(**encoded)
        for place, row in enumerate(part):
            outside = torch.tensor([side != 1 for side in encoded.sequence_ids(place)])
            begin, end = (each[place].masked_fill(outside, -1e4) for each in (found.start_logits, found.end_logits))
            allowed = torch.ones(len(begin), len(begin)).triu().tril(LONGEST_ANSWER - 1).bool()
            best = int((begin[:, None] + end).masked_fill(~allowed, -1e9).argmax())
            first, last = divmod(best, len(begin))
            answers.append(row["context"][offsets[place, first, 0] : offsets[place, last, 1]])
    return answers


def translated(model: str, rows: Sequence[texts.Row], batch_size: int) -> list[str]:
    """Returns the translations of texts."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(model).eval()
    answers: list[str] = []
    for start in range(0, len(rows), batch_size):
        given = [row["source"] for row in rows[start : start + batch_size]]
        encoded = tokenizer(given, padding=True, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            ids = network.generate(**encoded, num_beams=1, do_sample=False, max_new_tokens=LONGEST_TRANSLATION)
        answers += map(str.strip, tokenizer.batch_decode(ids, skip_special_tokens=True))
    return answers


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


NO_ROWS = ("data.dataset_name=null", "data.validation_file=null", "checkpoint.load_best_model_at_end=false")
KINDS: dict[str, tuple[str, str, int, tuple[str, ...]]] = {
    "image": ("reviews", "beans_vit", 400, (*NO_ROWS, "data.columns.label=label")),
    "audio": ("reviews", "digits_wav2vec2", 160, (*NO_ROWS, "task.audio.max_seconds=20")),
    "qa": ("qa", "squad", 400, NO_ROWS),
    "translation": ("translation", "multi30k", 800, (
        "model.from_config=null", "data.validation_file=null", "task.num_beams=1",
        f"task.val_max_target_length={LONGEST_TRANSLATION}")),
}  # fmt: skip
"""Recipe, configuration, rows and settings of each further kind."""


def given_rows(kind: str, count: int, options: argparse.Namespace, folder: Path) -> tuple[Path, list[texts.Row]]:
    """Writes the model and the files of a further kind, and returns the model and the rows."""
    quick = options.quick
    if kind == "image":
        rows = media_files.images(folder / kind, count, (64, 48) if quick else media_files.SIZES[kind])
        return media_files.new_model("vit", folder / "vit", False, quick), rows
    if kind == "audio":
        rows = media_files.clips(folder / kind, count, 2.0 if quick else None)
        return media_files.new_model("wav2vec2", folder / "wav2vec2", False, quick), rows
    if kind == "translation":
        rows = texts.caption_rows(1, count, "random")
        sizes = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64} if quick else {}
        return texts.new_mbart(rows, folder / "mbart", False, init_std=0.1, **sizes), rows
    base = texts.new_bert(folder / "base") if quick else texts.minilm(options.minilm)
    return texts.with_head(base, folder / "head", False), texts.qa_rows(texts.one_token_words(base), 1, count, "random")


def further(kind: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures a further kind: the pipeline of its task, or a loop in its place, and the command."""
    from toolkit import train
    from toolkit.recipe import load_task_type

    recipe, config, count, settings = KINDS[kind]
    model, rows = given_rows(kind, 16 if options.quick else count, options, folder)
    files = [texts.write_rows(part, folder / f"{kind}-{len(part)}.jsonl") for part in (rows[:8], rows)]
    train(load_task_type(recipe), ROOT / f"recipes/configs/{recipe}/{config}.yaml", [
        f"model.name_or_path={model}", f"data.train_file={files[0]}", f"output_dir={folder}/run-{kind}",
        "train.num_train_epochs=1", "train.mixed_precision=no", "train.dataloader_num_workers=0",
        *STEPS_ONLY, *settings])  # fmt: skip
    given = {"run": f"{folder}/run-{kind}", "files": files, "output": str(folder / f"{kind}.csv"),
             "batch_size": options.batch_size}  # fmt: skip
    name = f"{kind}, {'loop' if kind in ('qa', 'translation') else 'pipeline'}"
    own = calling(f"{kind}, toolkit", toolkit, precision="fp32", **given)
    runs = interleave([calling(name, other, kind=kind, **given), own], options)
    check_equal(runs, options)
    return {f"{name}, fp32": compared(runs, name, own.name)}


def check_equal(runs: Runs, options: argparse.Namespace) -> None:
    """Checks that all sides give most rows the label that the first one gives.

    Raises:
        SystemExit: if one does not, and this is no quick run.
    """
    first = next(iter(runs))
    wanted = runs[first][0]["labels"]
    for name in runs:
        found = [run["labels"] for run in runs[name]]
        equal = min(sum(map(operator.eq, wanted, each)) / max(len(wanted), len(each)) for each in found)
        if equal < LEAST_EQUAL and not options.quick:
            raise SystemExit(f"{name}: {equal:.1%} of the rows have the answer of {first}")


def text_cases(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures texts."""
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
    return {base: compared(runs, base, own) for base, own in [*pairs, ("toolkit, fp32", "toolkit, bf16")]}


def main() -> None:
    """Runs the pairs and writes the result."""
    made = parser(__doc__, pairs=3)
    made.add_argument("--case", choices=["texts", *KINDS], nargs="+", default=["texts", *KINDS])
    made.add_argument("--minilm", type=Path, help=f"folder of the pretrained MiniLM (default: ${texts.MINILM})")
    made.add_argument("--rows", type=int, default=1500, help="texts (default 1500)")
    made.add_argument("--batch-size", type=int, default=32)
    options = read_options(made)
    for name, title, kinds in (
        ("p15_predict", "texts: a pipeline of transformers, against `toolkit predict`", ["texts"]),
        (
            "p15_kinds",
            "other rows: a pipeline of transformers or a loop in its place, against `toolkit predict`",
            KINDS,
        ),
    ):
        if chosen := [kind for kind in kinds if kind in options.case]:
            write(name, "P15", f"predictions for a file of {title}", figures(chosen, options), options)


def figures(kinds: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Measures the cases of some kinds of rows."""
    cases: dict[str, Any] = {}
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            measure = text_cases if kind == "texts" else partial(further, kind)
            cases |= measure(options, Path(folder))
    main_case = next(iter(cases))
    rows = {kind: options.rows if kind == "texts" else KINDS[kind][2] for kind in kinds}
    settings = {"rows": rows, "batch_size": options.batch_size, "mean_words_of_texts": MEAN_WORDS}
    return {**cases[main_case], "case": main_case, "cases": cases, "settings": settings}


if __name__ == "__main__":
    main()
