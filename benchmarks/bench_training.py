"""P1, P2, P3, and classification of texts: training against scripts on `transformers.Trainer`.

    python benchmarks/bench_training.py --case qa --minilm FOLDER [--pairs 3] [--steps 8]
    python benchmarks/bench_training.py --case translation [--pairs 3]
    python benchmarks/bench_training.py --case reviews --minilm FOLDER [--pairs 3]

The scripts (benchmarks/scripts) do what the library's examples do, with defaults, or tuned by hand: padding to the
longest row of a batch, rows of similar length together, bfloat16, the fused optimizer. All sides train on the same rows
in the same steps from the same weights; without dropout, their losses are compared too. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import texts
from ours import no_waste, recipe_side
from pairs import ROOT, Side, compared, interleave, parser, read_options, write

WARM_UP = 2
TOLERANCE = 1e-3
"""Largest relative difference of the losses of a step."""
SAME = ("train.learning_rate=5e-5", "train.warmup_steps=0", "train.weight_decay=0", "train.adam_beta2=0.999",
        "train.num_train_epochs=1", "train.train_sampling_strategy=sequential", "train.dataloader_num_workers=0",
        "tracking.logging_steps=500")  # fmt: skip
"""The Trainer's defaults, in the toolkit's YAML."""
PRECISIONS = {"no": "fp32", "bf16": "bf16"}
Interleave = Callable[[Sequence[Side], argparse.Namespace], dict[str, list[dict[str, Any]]]]


class Case:
    """Rows, models and sides of one task.

    Args:
        name: name of the recipe and of the script.
        config: the recipe's YAML.
        options: the command line.
        folder: a scratch folder.
    """

    def __init__(self, name: str, config: str, options: argparse.Namespace, folder: Path) -> None:
        self.name, self.config, self.options, self.folder = name, config, options, folder
        self.size = options.batch_size
        self.warm_up = options.warm_up
        self.batches = self.warm_up + options.steps
        self.orders: dict[str, list[texts.Row]] = {}
        self.models: dict[bool, Path] = {}
        self.flags: list[str] = []
        """Further options of the script."""
        self.settings: list[str] = []
        """The same as settings of the toolkit."""
        self.waste = no_waste(options.max_tokens)
        """The toolkit's settings against waste."""

    def add(self, order: str, rows: list[texts.Row]) -> None:
        """Adds rows in an order and writes them to a file."""
        self.orders[order] = rows
        texts.write_rows(rows, self.file(order))

    def file(self, order: str) -> Path:
        """Returns the file of the rows in an order."""
        return self.folder / f"{self.name}-{order}.jsonl"

    def script(self, variant: str, precision: str, order: str, *flags: str, dropout: bool = True) -> Side:
        """Returns the side of the Trainer script."""
        command = [sys.executable, str(ROOT / "benchmarks" / "scripts" / f"{self.name}.py"), "--variant", variant,
                   "--precision", precision, "--batch_size", str(self.size), "--warm_up", str(self.warm_up), "--model",
                   str(self.models[dropout]), "--train_file", str(self.file(order)), "--output_dir",
                   str(self.folder / "script"), *self.flags, *flags]  # fmt: skip
        return Side(label(variant, precision, order), command)

    def ours(self, precision: str, order: str, dropout: bool = True) -> Side:
        """Returns the toolkit's side."""
        settings = [
            f"model.name_or_path={self.models[dropout]}",
            f"data.train_file={self.file(order)}",
            f"train.per_device_train_batch_size={self.size}",
            f"train.mixed_precision={precision}",
            *SAME,
            *self.settings,
            *self.waste,
        ]
        return recipe_side(
            label("toolkit", precision, order), self.name, self.config, settings, self.folder, self.warm_up
        )  # fmt: skip


def label(side: str, precision: str, order: str) -> str:
    """Returns the name of a side in the results."""
    return f"{side}, {PRECISIONS[precision]}, {order}"


def qa_case(options: argparse.Namespace, folder: Path, pretrained: Path | None = None) -> Case:
    """Returns question answering with an encoder, MiniLM unless one is given, on rows of SQuAD's lengths."""
    case = Case("qa", "recipes/configs/qa/squad.yaml", options, folder)
    pretrained = pretrained or (texts.new_bert(folder / "tiny") if options.quick else texts.minilm(options.minilm))
    for dropout in (True, False):
        case.models[dropout] = texts.with_head(pretrained, folder / f"qa-{dropout}", dropout)
    words = texts.one_token_words(pretrained)
    limit, stride = (96, 32) if options.quick else (384, 128)
    case.flags = ["--max_length", str(limit), "--doc_stride", str(stride)]
    case.settings = ["data.dataset_name=null", f"task.max_length={limit}", f"task.doc_stride={stride}"]
    for order in texts.ORDERS:
        case.add(order, texts.qa_rows(words, case.batches, case.size, order, limit))
    return case


def reviews_case(options: argparse.Namespace, folder: Path) -> Case:
    """Returns classification of short texts with MiniLM."""
    case = Case("reviews", "recipes/configs/reviews/customer_reviews.yaml", options, folder)
    pretrained = texts.new_bert(folder / "tiny") if options.quick else texts.minilm(options.minilm)
    for dropout in (True, False):
        place = folder / f"reviews-{dropout}"
        case.models[dropout] = texts.with_head(pretrained, place, dropout, "AutoModelForSequenceClassification")
    case.settings = ["data.validation_file=null"]
    for order in texts.ORDERS:
        rows = texts.review_rows(texts.one_token_words(pretrained), case.batches, case.size, order)
        case.add(order, rows)
    return case


def translation_case(options: argparse.Namespace, folder: Path, **sizes: int) -> Case:
    """Returns translation with the new model of multi30k.yaml, or of other sizes, on captions of Multi30k's lengths."""
    case = Case("translation", "recipes/configs/translation/multi30k.yaml", options, folder)
    for order in texts.ORDERS:
        case.add(order, texts.caption_rows(case.batches, case.size, order))
    case.settings = ["model.from_config=null", "data.validation_file=null"]
    if options.quick:
        sizes = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    for dropout in (True, False):
        place = folder / f"translation-{dropout}"
        case.models[dropout] = texts.new_mbart(case.orders["random"], place, dropout, **sizes)
    return case


def loss_check(case: Case, flags: Sequence[str], run: Interleave = interleave) -> dict[str, Any]:
    """Compares the losses of the script with the toolkit's, step by step, in fp32 without dropout.

    Args:
        case: rows and models.
        flags: further options of the script.
        run: runs the sides.

    Raises:
        SystemExit: if they differ by more than `TOLERANCE`.
    """
    sides = [
        case.script("defaults", "no", "random", "--losses", *flags, dropout=False),
        case.script("tuned", "no", "random", "--losses", *flags, dropout=False),
        case.ours("no", "random", dropout=False),
    ]
    once = argparse.Namespace(**vars(case.options) | {"pairs": 1})
    curves = [runs[0]["losses"] for runs in run(sides, once).values()]
    differences = [
        max(abs(other / own - 1) for other, own in zip(curve, curves[-1], strict=True)) for curve in curves[:-1]
    ]
    if max(differences) > TOLERANCE:
        raise SystemExit(f"{case.name}: the losses differ by {max(differences):.1e} (allowed: {TOLERANCE})")
    return {
        "losses": "fp32, no dropout; largest relative difference of any step's loss from the toolkit's",
        "defaults": differences[0],
        "tuned": differences[1],
        "tolerance": TOLERANCE,
        "steps": len(curves[-1]),
    }


def result(runs: Any, main: str, cases: dict[str, tuple[str, str]], case: Case, check: Any) -> dict[str, Any]:
    """Returns the figures of a benchmark: those of the main case, and those of all cases."""
    found = {name: compared(runs, baseline, ours) for name, (baseline, ours) in cases.items()}
    rates = {name: [case.size * run["steps"] / run["seconds"] for run in each] for name, each in runs.items()}
    return {
        **found[main],
        "case": main,
        "cases": found,
        "examples_per_second": rates,
        "loss_check": check,
        "settings": {
            "batch_size": case.size,
            "steps": case.options.steps,
            "warm_up_steps": case.warm_up,
            "max_tokens_per_batch": case.options.max_tokens,
            "toolkit": case.waste,
        },
    }


def qa(options: argparse.Namespace, folder: Path) -> None:
    """Measures P1 and P2."""
    case = qa_case(options, folder)
    check = loss_check(case, ["--mask_padding"])
    sides = [case.script("defaults", "no", "random")]
    # A quick form has the main case of each page only.
    orders = texts.ORDERS[:1] if options.quick else texts.ORDERS
    precisions = {key: name for key, name in PRECISIONS.items() if key == "bf16" or not options.quick}
    for order in orders:
        for precision in precisions:
            sides += [case.script("tuned", precision, order), case.ours(precision, order)]
    runs = interleave(sides, options)
    defaults = label("defaults", "no", "random")
    against_defaults = {name: (defaults, label("toolkit", key, "random")) for key, name in precisions.items()}
    title = "question answering (MiniLM): `run_qa.py` with defaults, against the toolkit"
    write("p1_qa_defaults", "P1", title, result(runs, "bf16", against_defaults, case, check), options)
    against_tuned = {
        f"{name}, {order}": (label("tuned", key, order), label("toolkit", key, order))
        for order in orders
        for key, name in precisions.items()
    }
    title = "question answering (MiniLM): a Trainer tuned by hand, against the toolkit"
    write("p2_qa_tuned", "P2", title, result(runs, "bf16, random", against_tuned, case, check), options)


def translation(options: argparse.Namespace, folder: Path) -> None:
    """Measures P3."""
    case = translation_case(options, folder)
    check = loss_check(case, [])
    sides = []
    for order, variant in zip(texts.ORDERS, ("defaults", "tuned"), strict=True):
        for precision in PRECISIONS:
            sides += [case.script(variant, precision, order), case.ours(precision, order)]
    runs = interleave(sides, options)
    pairs = {}
    for key, name in PRECISIONS.items():
        defaults, tuned = label("defaults", key, "random"), label("tuned", key, "grouped")
        pairs[f"{name} against defaults"] = (defaults, label("toolkit", key, "random"))
        pairs[f"{name}, grouped, against defaults"] = (defaults, label("toolkit", key, "grouped"))
        pairs[f"{name}, grouped, against tuned"] = (tuned, label("toolkit", key, "grouped"))
    fp32 = label("defaults", "no", "random")
    pairs["bf16 against defaults in fp32"] = (fp32, label("toolkit", "bf16", "random"))
    title = "translation (the model of multi30k.yaml): `run_translation.py`, against the toolkit"
    write("p3_translation", "P3", title, result(runs, "fp32 against defaults", pairs, case, check), options)


def reviews(options: argparse.Namespace, folder: Path) -> None:
    """Measures classification of texts."""
    case = reviews_case(options, folder)
    check = loss_check(case, [])
    sides = [case.script("defaults", "no", "random"), case.script("tuned", "bf16", "grouped")]
    sides += [case.ours("bf16", order) for order in texts.ORDERS]
    runs = interleave(sides, options)
    ours = {order: label("toolkit", "bf16", order) for order in texts.ORDERS}
    pairs = {
        "against defaults": (label("defaults", "no", "random"), ours["random"]),
        "grouped, against tuned": (label("tuned", "bf16", "grouped"), ours["grouped"]),
    }
    title = "classification of texts (MiniLM): `run_classification.py`, against the toolkit"
    write("reviews", "reviews", title, result(runs, "against defaults", pairs, case, check), options)


CASES = {"qa": (qa, 16, 8), "translation": (translation, 64, 48), "reviews": (reviews, 16, 24)}
"""Function, rows of a batch and measured steps of each case."""


def main() -> None:
    """Measures the cases that are asked for."""
    made = parser(__doc__, pairs=3)
    made.add_argument("--case", choices=list(CASES), nargs="+", default=list(CASES))
    made.add_argument("--minilm", type=Path, help=f"folder of the pretrained MiniLM (default: ${texts.MINILM})")
    made.add_argument("--steps", type=int, help="measured steps (default: 8, translation 48, reviews 24)")
    made.add_argument("--max-tokens", type=int, default=4096, help="token budget of the toolkit's micro-batches")
    options = read_options(made)
    for name in options.case:
        function, size, steps = CASES[name]
        quick = {"steps": 2, "batch_size": 4, "warm_up": WARM_UP}
        own = {"steps": options.steps or steps, "batch_size": size, "warm_up": WARM_UP} if not options.quick else quick
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            function(argparse.Namespace(**vars(options) | own), Path(folder))


if __name__ == "__main__":
    main()
