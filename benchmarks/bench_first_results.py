"""What `toolkit init` writes, untouched, beside the plain script that people would write for the same rows.

    python benchmarks/bench_first_results.py [--minilm FOLDER] [--data FOLDER] [--only text images] [--cpu-time]

The datasets are those of `toolkit data get`, and `gsm8k`, JSON rows of `instruction` and `output`; both sides train on
the training rows, of which `init` sets some aside for validation, and are scored on the validation files, which neither
has seen. Seconds are the CPU time of a side from its start, `init` included, without the scoring. The scripts are
short: `transformers.Trainer` as in its tutorials for texts, questions and problems, and a network of a dozen lines for
images and recordings. Problems, images and recordings are learned without a pretrained model.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import texts
from pairs import ROOT, calling, compared, interleave, parser, read_options, write

NAME = "first_results"


@dataclass(frozen=True)
class Case:
    """A dataset.

    Args:
        name: its name in `toolkit data get`.
        recipe: the recipe that `init` chooses.
        train: the training rows, below the dataset's folder.
        test: the rows for the scores.
        metric: the score.
    """

    name: str
    recipe: str
    train: str
    test: str
    metric: str


CASES = {
    "text": Case("customer_reviews", "reviews", "train.csv", "validation.csv", "eval_accuracy"),
    "questions": Case("agxqa", "qa", "train.json", "validation.json", "eval_f1"),
    "problems": Case("gsm8k", "language_modeling", "train.json", "validation.json", "eval_bits_per_byte"),
    "images": Case("fashion", "reviews", "train", "validation", "eval_accuracy"),
    "recordings": Case("spoken_digits", "reviews", "train", "validation", "eval_accuracy"),
}
PRETRAINED = ("text", "questions")
"""Cases whose model is MiniLM; the others are trained from scratch."""
ONE_RATE = ("train.learning_rate=5e-5", "train.mixed_precision=no", "train.train_sampling_strategy=random")
FORMER = {"text": (*ONE_RATE, "train.num_train_epochs=3"), "questions": ONE_RATE}
"""What `init` wrote for these before it knew sizes and lengths: a third side."""


def toolkit(*arguments: str | Path) -> None:
    """Runs a command of the toolkit; raises SystemExit with its output if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{arguments}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def cpu_seconds() -> float:
    """Returns the CPU time of this process and those that it has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + usage.ru_utime + usage.ru_stime


def ours(case: str, data: str, minilm: str, seed: int, former: bool = False) -> dict[str, Any]:
    """Trains what `init` writes, or wrote before, and scores it."""
    this, rows = CASES[case], Path(data) / CASES[case].name
    with tempfile.TemporaryDirectory() as folder:
        yaml, run, own = Path(folder, "mine.yaml"), Path(folder, "run"), Path(folder, this.train)
        own.symlink_to(rows / this.train)  # alone: beside the test rows, these would be found and select the best model
        model = ["--model", minilm] if case in PRETRAINED else ["--from-scratch"]
        toolkit("init", own, "--output", yaml, *model)
        settings = FORMER[case] if former else ()
        toolkit("train", this.recipe, "--config", yaml, f"seed={seed}", f"output_dir={run}", *settings)
        seconds = cpu_seconds()
        toolkit("evaluate", run, "--data", rows / this.test, "--output", Path(folder, "scores.json"))
        found = json.loads(Path(folder, "scores.json").read_text())
        if case == "problems":
            found[this.metric] = bits_per_byte(found["eval_loss"], f"{run}/model", rows / this.test)
        return {"seconds": seconds, "score": found[this.metric]}


def bits_per_byte(loss: float, tokenizer: Any, file: Path) -> float:
    """Returns a mean loss of answers' tokens in bits per byte of their text, which tokenizers do not change."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer) if isinstance(tokenizer, str) else tokenizer
    answers = [row["output"] for row in json.loads(file.read_text())]
    num_tokens = sum(len(tokenizer(answer, add_special_tokens=False)["input_ids"]) + 1 for answer in answers)
    return loss * num_tokens / math.log(2) / sum(len(answer.encode()) for answer in answers)


def text(data: str, minilm: str, seed: int) -> dict[str, Any]:
    """Trains as the tutorial on text classification: 2 epochs at 2e-5, 16 rows a step."""
    from datasets import load_dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer

    rows = load_dataset(
        "csv", data_files={name: f"{data}/customer_reviews/{name}.csv" for name in ("train", "validation")}
    )
    rows = rows.class_encode_column("label").rename_column("label", "labels")
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    rows = rows.map(lambda part: tokenizer(part["text"], truncation=True), batched=True, remove_columns="text")
    model = AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=2)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model, arguments(folder, seed, num_train_epochs=2), train_dataset=rows["train"],
            data_collator=DataCollatorWithPadding(tokenizer),
        )  # fmt: skip
        trainer.train()
        seconds = cpu_seconds()
        found = trainer.predict(rows["validation"])
    return {"seconds": seconds, "score": float((found.predictions.argmax(-1) == found.label_ids).mean())}


def questions(data: str, minilm: str, seed: int) -> dict[str, Any]:
    """Trains as the tutorial on question answering: 3 epochs at 2e-5, 16 windows a step; the toolkit scores it."""
    import datasets
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer, DataCollatorWithPadding, Trainer

    from toolkit.data.sources import read_rows

    features_of = import_module("scripts.qa").features_of
    options = SimpleNamespace(max_length=384, doc_stride=128, variant="tuned")
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    read = [row.values for row in read_rows(f"{data}/agxqa/train.json")]
    rows = datasets.Dataset.from_list(
        [{name: row[name] for name in ("question", "context", "answers")} for row in read]
    )
    features = rows.map(
        features_of,
        batched=True,
        remove_columns=rows.column_names,
        fn_kwargs={"tokenizer": tokenizer, "options": options},
    )
    model = AutoModelForQuestionAnswering.from_pretrained(minilm)
    with tempfile.TemporaryDirectory() as folder:
        collator = DataCollatorWithPadding(tokenizer)
        trainer = Trainer(
            model, arguments(folder, seed, num_train_epochs=3), train_dataset=features, data_collator=collator
        )
        trainer.train()
        seconds = cpu_seconds()
        model.save_pretrained(f"{folder}/model")
        tokenizer.save_pretrained(f"{folder}/model")
        files = [f"data.{name}_file={data}/agxqa/{name}.json" for name in ("train", "validation")]
        still = ["train.max_steps=1", "train.learning_rate=0", f"model.name_or_path={folder}/model"]
        toolkit("train", "qa", "--config", "agxqa", *files, *still, f"output_dir={folder}/run")
        result = json.loads(Path(folder, "run/run.json").read_text())["result"]
    return {"seconds": seconds, "score": result["eval_f1"]}


def problems(data: str, minilm: str, seed: int) -> dict[str, Any]:
    """Trains a new GPT-2 of four layers, and its tokenizer, to write solutions: 5 epochs at 5e-4; lower is better."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import DataCollatorForSeq2Seq, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Trainer

    read = {name: json.loads(Path(data, "gsm8k", f"{name}.json").read_text()) for name in ("train", "validation")}
    bpe = ByteLevelBPETokenizer()
    texts = (row["instruction"] + row["output"] for row in read["train"])
    bpe.train_from_iterator(texts, vocab_size=8000, special_tokens=["<end>"], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token="<end>", pad_token="<end>")

    def features(row: Mapping[str, str]) -> dict[str, list[int]]:
        prompt = tokenizer(row["instruction"] + "\n")["input_ids"]
        answer = tokenizer(row["output"] + "<end>")["input_ids"]
        ids, labels = (prompt + answer)[:512], ([-100] * len(prompt) + answer)[:512]
        return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels}

    rows = {name: [features(row) for row in each] for name, each in read.items()}
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=512, n_embd=256, n_layer=4, n_head=4))
    collator = DataCollatorForSeq2Seq(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        settings = arguments(folder, seed, num_train_epochs=5, learning_rate=5e-4)
        Trainer(model, settings, train_dataset=rows["train"], data_collator=collator).train()
    seconds = cpu_seconds()
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for row in rows["validation"]:
            answered = sum(label != -100 for label in row["labels"][1:])
            total += float(model(**{name: torch.tensor([each]) for name, each in row.items()}).loss) * answered
            count += answered
    score = bits_per_byte(total / count, tokenizer, Path(data, "gsm8k/validation.json"))
    return {"seconds": seconds, "score": score}


def arguments(folder: str, seed: int, **further: Any) -> Any:
    """Returns the arguments of the tutorials: a rate of 2e-5, 16 rows a step, nothing saved or tracked."""
    from transformers import TrainingArguments

    return TrainingArguments(
        folder, seed=seed, per_device_train_batch_size=16, weight_decay=0.01, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True, **{"learning_rate": 2e-5, **further},
    )  # fmt: skip


def images(data: str, minilm: str, seed: int) -> dict[str, Any]:
    """Trains a network of three convolutions for 30 epochs with Adam."""
    from PIL import Image

    sets = [
        [
            (np.asarray(Image.open(file).convert("L"), np.float32)[None] / 255, name)
            for file, name in files_of(data, part)
        ]
        for part in ("fashion/train", "fashion/validation")
    ]
    return classified(sets, seed, epochs=30)


def recordings(data: str, minilm: str, seed: int) -> dict[str, Any]:
    """Trains the same network on log-mel spectrograms of one second, each normalised."""
    import soundfile
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    filters = mel_filter_bank(129, 40, 0.0, 4000.0, 8000)
    window = window_function(256)

    def features(file: Path) -> np.ndarray:
        samples, _ = soundfile.read(file, dtype="float32")
        padded = np.pad(samples[:8000], (0, max(0, 8000 - len(samples))))
        mels = spectrogram(padded, window, 256, 128, power=2.0, mel_filters=filters, log_mel="log10")
        return ((mels - mels.mean()) / mels.std()).astype(np.float32)[None]

    sets = [
        [(features(file), name) for file, name in files_of(data, part)]
        for part in ("spoken_digits/train", "spoken_digits/validation")
    ]
    return classified(sets, seed, epochs=30)


def files_of(data: str, folder: str) -> Iterator[tuple[Path, str]]:
    """Yields the files of a folder of classes, with their class."""
    for file in sorted(Path(data, folder).glob("*/*")):
        yield file, file.parent.name


def classified(sets: list[list[tuple[np.ndarray, str]]], seed: int, epochs: int) -> dict[str, Any]:
    """Trains a small convolutional network on the first set and scores it on the second."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    names = sorted({name for _, name in sets[0]})
    (inputs, labels), (tests, expected) = (
        (torch.tensor(np.stack([values for values, _ in rows])), torch.tensor([names.index(name) for _, name in rows]))
        for rows in sets
    )
    layers: list[nn.Module] = []
    for before, after in ((1, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, len(names)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    seconds = cpu_seconds()
    model.eval()
    with torch.no_grad():
        return {"seconds": seconds, "score": float((model(tests).argmax(-1) == expected).float().mean())}


def measured(case: str, options: Any) -> Mapping[str, Any]:
    """Trains a case with both sides, one seed after the other; a round is a seed."""
    runs: dict[str, list[dict[str, Any]]] = {"script": [], "toolkit init": [], "before": []}
    data, minilm = str(options.data.resolve()), str(options.minilm)
    for seed in range(1, options.pairs + 1):
        sides = [
            calling("script", globals()[case], data=data, minilm=minilm, seed=seed),
            calling("toolkit init", ours, case=case, data=data, minilm=minilm, seed=seed),
        ]
        if case in FORMER:
            sides.append(calling("before", ours, case=case, data=data, minilm=minilm, seed=seed, former=True))
        options.pairs, rounds = 1, options.pairs
        for name, found in interleave(sides, options).items():
            runs[name] += found
        options.pairs = rounds
    runs = {name: each for name, each in runs.items() if each}
    scores = {name: [run["score"] for run in each] for name, each in runs.items()}
    means = {name: statistics.mean(each) for name, each in scores.items()}
    return {
        **compared(runs, "script", "toolkit init"), "metric": CASES[case].metric,
        "seconds_per_run": {name: [run["seconds"] for run in each] for name, each in runs.items()},
        "scores": scores, "mean_scores": means,
    }  # fmt: skip


def main() -> None:
    """Measures the cases and writes each result when it is there."""
    made = parser(__doc__, pairs=3)
    made.add_argument("--data", type=Path, default=ROOT / "data", help="folder of the datasets")
    made.add_argument("--minilm", type=Path, help="folder of the pretrained encoder")
    made.add_argument("--only", choices=CASES, nargs="+", default=list(CASES), help="the cases to measure")
    options = read_options(made)
    with tempfile.TemporaryDirectory() as folder:
        if options.quick:
            options.data = shipped(Path(folder))
            options.minilm = texts.new_bert(Path(folder, "bert"))
        elif {*options.only} & {*PRETRAINED}:
            options.minilm = texts.minilm(options.minilm)
        measure(options)


def measure(options: Any) -> None:
    """Measures the cases; the file keeps those that are not asked for."""
    file = options.results / f"{NAME}.json" if options.results else Path(os.devnull)
    cases: dict[str, Any] = json.loads(file.read_text())["cases"] if file.is_file() else {}
    for case in options.only:
        cases[case] = measured(case, options)
        ratios = [cases[case]["ratio_median"] for case in cases]
        figures = {"ratio_median": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
        title = "what `toolkit init` writes, against a plain script"
        write(NAME, "first results", title, {**figures, "pairs": options.pairs, "cases": cases}, options)


def shipped(folder: Path) -> Path:
    """Returns a folder where the rows that the toolkit ships stand for the datasets."""
    own = {"customer_reviews": "reviews", "agxqa": "qa", "fashion": "images", "spoken_digits": "audio"}
    for name, shipped in own.items():
        (folder / name).symlink_to(ROOT / "recipes/data" / shipped)
    (folder / "gsm8k").mkdir()
    for name, first in (("train", 0), ("validation", 60)):
        rows = [
            {"instruction": f"A cow eats {n} bales a day. How many in a week?", "output": f"{n} x 7 = {7 * n} bales."}
            for n in range(first, first + 60)
        ]
        (folder / "gsm8k" / f"{name}.json").write_text(json.dumps(rows))
    return folder


if __name__ == "__main__":
    main()
