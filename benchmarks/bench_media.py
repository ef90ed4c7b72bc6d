"""P4: images and audio, training against scripts on `transformers.Trainer`.

    python benchmarks/bench_media.py [--case image photo audio] [--pairs 3] [--steps 12] [--epochs 3]

The scripts (benchmarks/scripts) do what the library's examples do, with defaults: files are decoded in the training
process, every epoch again, in float32, clips in random order. The toolkit's side keeps what it decoded, and has clips
of similar length together; it is measured in float32 and in bfloat16, and against itself without what it keeps and with
a worker process that decodes ahead. All sides train on the same files in as many steps of as many rows, from the same
weights; without dropout and in the same order, their losses are compared too. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import media_files
from ours import recipe_side
from pairs import ROOT, Side, compared, interleave, parser, read_options, write

WARM_UP = 2
TOLERANCE = 1e-4
"""Largest relative difference of the losses of a step."""
PRECISIONS = {"no": "fp32", "bf16": "bf16"}
SAME = ("train.learning_rate=5e-5", "train.warmup_steps=0", "train.weight_decay=0",
        "train.train_sampling_strategy=sequential", "tracking.logging_steps=500", "data.validation_file=null",
        "checkpoint.load_best_model_at_end=false", "train.gradient_accumulation_steps=1")  # fmt: skip
"""The Trainer's defaults, in the toolkit's YAML."""


@dataclass(frozen=True)
class Case:
    """Files, models and sides of one kind of media.

    Args:
        name: name of the script.
        config: the recipe's YAML.
        files: rows in each order, written to a file.
        models: folders of the model with and without dropout.
        settings: further overrides of the YAML.
        options: the command line.
        folder: a scratch folder.
    """

    name: str
    config: str
    files: dict[str, Path]
    models: dict[bool, Path]
    settings: tuple[str, ...]
    options: argparse.Namespace
    folder: Path

    def script(self, *flags: str, dropout: bool = True) -> Side:
        """Returns the side of the Trainer script, with its defaults."""
        options = {"batch_size": self.options.batch_size, "warm_up": WARM_UP, "model": self.models[dropout],
                   "train_file": self.files["random"], "output_dir": self.folder / "script",
                   "epochs": self.options.epochs}  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return Side("defaults", [sys.executable, str(ROOT / "benchmarks/scripts" / f"{self.name}.py"), *words, *flags])

    def ours(self, precision: str, order: str, dropout: bool = True, *more: str) -> Side:
        """Returns the toolkit's side."""
        settings = [
            f"model.name_or_path={self.models[dropout]}",
            f"data.train_file={self.files[order]}",
            f"train.num_train_epochs={self.options.epochs}",
            f"train.per_device_train_batch_size={self.options.batch_size}",
            f"train.mixed_precision={precision}",
            *SAME,
            *self.settings,
            *more,
        ]
        name = label(precision, order) + "".join(f", {setting.rpartition('.')[2]}" for setting in more)
        return recipe_side(name, "reviews", self.config, settings, self.folder, WARM_UP)


def label(precision: str, order: str) -> str:
    """Returns the name of the toolkit's side in the results."""
    return f"toolkit, {PRECISIONS[precision]}, {order}"


def image_case(options: argparse.Namespace, folder: Path, kind: str = "image") -> Case:
    """Returns image classification with a small ViT."""
    size = (64, 48) if options.quick else media_files.SIZES[kind]
    rows = media_files.images(folder / "images", options.steps * options.batch_size, size)
    files = {"random": media_files.write_rows(rows, folder / "images.jsonl")}
    models = {d: media_files.new_model("vit", folder / f"vit-{d}", d, options.quick) for d in (True, False)}
    settings = ("data.dataset_name=null", "data.columns.label=label", "task.image.random_crop=1",
                "task.image.horizontal_flip=0")  # fmt: skip
    config = "recipes/configs/reviews/beans_vit.yaml"
    return Case("image_classification", config, files, models, settings, options, folder)


def photo_case(options: argparse.Namespace, folder: Path) -> Case:
    """Returns image classification of photos of 3 megapixels."""
    return image_case(options, folder, "photo")


def audio_case(options: argparse.Namespace, folder: Path) -> Case:
    """Returns audio classification with a small wav2vec 2.0 on clips of uneven length."""
    rows = media_files.clips(folder / "clips", options.steps * options.batch_size, 2.0 if options.quick else None)
    orders = {"random": rows, "grouped": media_files.grouped(rows, options.batch_size)}
    files = {name: media_files.write_rows(part, folder / f"clips-{name}.jsonl") for name, part in orders.items()}
    models = {d: media_files.new_model("wav2vec2", folder / f"wav2vec2-{d}", d, options.quick) for d in (True, False)}
    settings = ("task.audio.max_seconds=20", "model.freeze=feature_extractor")
    return Case(
        "audio_classification", "recipes/configs/reviews/digits_wav2vec2.yaml", files, models, settings, options, folder
    )


def loss_check(case: Case) -> dict[str, Any]:
    """Compares the losses of the script with the toolkit's, step by step, in fp32 without dropout.

    Raises:
        SystemExit: if they differ by more than `TOLERANCE`.
    """
    once = argparse.Namespace(**vars(case.options) | {"pairs": 1})
    sides = [case.script("--losses", dropout=False), case.ours("no", "random", dropout=False)]
    other, own = (runs[0]["losses"] for runs in interleave(sides, once).values())
    difference = max(abs(theirs / ours - 1) for theirs, ours in zip(other, own, strict=True))
    if difference > TOLERANCE:
        raise SystemExit(f"{case.name}: the losses differ by {difference:.1e} (allowed: {TOLERANCE})")
    return {
        "losses": "fp32, no dropout, same order; largest relative difference of any step's loss",
        "defaults": difference,
        "tolerance": TOLERANCE,
        "steps": len(own),
    }


def measured(case: Case, prefix: str) -> dict[str, Any]:
    """Runs the sides of a case and returns the ratios, by name."""
    check = loss_check(case)
    best = next(reversed(case.files))  # the order of the recipe's YAML
    precisions = {key: name for key, name in PRECISIONS.items() if key == "no" or not case.options.quick}
    sides = [case.script(), *(case.ours(precision, best) for precision in precisions)]
    plain = case.ours("no", best, True, "data.media_cache=0")
    ahead = case.ours("no", best, True, "train.dataloader_num_workers=1")
    runs = interleave(sides if case.options.quick else [*sides, plain, ahead], case.options)
    found = {
        f"{prefix}, {name}": compared(runs, "defaults", label(key, best)) | {"loss_check": check}
        for key, name in precisions.items()
    }
    if case.options.quick:  # the other two differ in one setting each
        return found
    found[f"{prefix}, fp32, kept decoded, against read every time"] = compared(runs, plain.name, label("no", best))
    found[f"{prefix}, fp32, decoded in this process, against a worker"] = compared(runs, ahead.name, label("no", best))
    return found


CASES = {"image": (image_case, 16), "photo": (photo_case, 16), "audio": (audio_case, 8)}
"""Function and rows of a batch of each case."""


def main() -> None:
    """Measures the cases that are asked for."""
    made = parser(__doc__, pairs=3, wall_only="the time of processes that decode ahead would not be counted")
    made.add_argument("--case", choices=list(CASES), nargs="+", default=list(CASES))
    made.add_argument("--steps", type=int, default=12, help="steps of an epoch (default 12)")
    made.add_argument("--epochs", type=int, default=3, help="epochs (default 3, the Trainer's)")
    options = read_options(made)
    found: dict[str, Any] = {}
    for name in options.case:
        make, size = CASES[name]
        quick = {"steps": 2, "batch_size": 4, "epochs": 2} if options.quick else {"batch_size": size}
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            found |= measured(make(argparse.Namespace(**vars(options) | quick), Path(folder)), name)
    title = (
        "images (ViT-Ti; 640 x 480, and photos of 2048 x 1536) and audio (a small wav2vec 2.0): the library's examples "
        "with defaults, against the toolkit"
    )
    main_case = f"{options.case[0]}, fp32"
    settings = {"steps_per_epoch": options.steps, "epochs": options.epochs, "warm_up_steps": WARM_UP}
    figures = {**found[main_case], "case": main_case, "cases": found, "settings": settings}
    write("media", "P4", title, figures, options)


if __name__ == "__main__":
    main()
