"""Predicted and measured memory of training steps, by parts and at the peak.

    python benchmarks/bench_plan.py [--model bert ...] [--steps 3]

Randomly initialised models of 20 to 40 million parameters on synthetic rows. Each variant is trained for a few steps in
a separate process, which also reports the prediction for its largest micro-batch. The calibration (`--calibrate`) is
measured once with and once without checkpointing, on other variants: SGD with these rows and with a quarter of them.
The first optimizer is also measured with steps of three times the rows, cut by a token budget.

With `--malloc mapped`, the C library (glibc) maps every larger block separately and returns it when it is freed. By
default a run keeps blocks on a heap with gaps: memory that the plan does not predict and that the calibration can only
extrapolate.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OPTIMIZERS = ("adamw_torch_fused", "adafactor", "adamw_bnb_8bit")
CHECKPOINTING = ("none", "full")
MALLOC = {"default": {}, "mapped": {"MALLOC_MMAP_THRESHOLD_": "65536"}}
"""Environment of the measured processes."""
FILES = 24
"""Number of image or audio files."""
TEXTS = 120
WORDS = 200

BERT = {"model_type": "bert", "vocab_size": 4000, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
        "intermediate_size": 2048, "max_position_embeddings": 256}  # fmt: skip
T5 = {"model_type": "t5", "vocab_size": 4000, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 3,
      "num_heads": 8}  # fmt: skip
VIT = {"model_type": "vit", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
       "intermediate_size": 2048, "image_size": 224, "patch_size": 16}  # fmt: skip
WAV2VEC2 = {"model_type": "wav2vec2", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
            "intermediate_size": 2048, "feat_extract_norm": "layer", "do_stable_layer_norm": True,
            "mask_time_prob": 0.05, "layerdrop": 0.0}  # fmt: skip
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "bert": ("reviews", 8, {"task": {"max_length": 256}, "model": {"from_config": BERT}}),
    "t5": ("translation", 8, {"task": {"source_lang": "en", "target_lang": "de", "max_source_length": 128,
                                       "max_target_length": 128}, "model": {"from_config": T5}}),
    "vit": ("reviews", 8, {"task": {"modality": "image"}, "model": {"from_config": VIT}}),
    "wav2vec2": ("reviews", 4, {"task": {"modality": "audio", "audio": {"max_seconds": 3.0}},
                                "model": {"from_config": WAV2VEC2}}),
}  # fmt: skip
"""By name: the recipe, rows of a micro-batch, and the configuration."""
BUDGETS = {"bert": 2048, "t5": 2048, "wav2vec2": 192_000}
"""Token budgets (samples of audio) of the models whose rows differ in length."""
BUDGET_ROWS = 3
"""Rows of a step with a budget, as a multiple of those of a micro-batch."""


def make_rows(case: str, folder: Path) -> Path:
    """Writes synthetic rows of different lengths, the same in every call, and returns their file or folder."""
    import numpy as np
    import soundfile
    from PIL import Image

    source, noise = random.Random(0), np.random.default_rng(0)
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=source.randint(3, 9))) for _ in range(2500)]
    texts = [" ".join(source.choices(words, k=source.randint(WORDS // 4, WORDS))) for _ in range(2 * TEXTS)]
    if case in ("bert", "t5"):
        names = ("text", "label") if case == "bert" else ("source", "target")
        with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(names)
            for i in range(TEXTS):
                table.writerow([texts[i], "ab"[i % 2] if case == "bert" else texts[TEXTS + i]])
        return folder / "rows.csv"
    for i in range(FILES):
        place = folder / "files" / "ab"[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        if case == "vit":
            Image.fromarray(noise.integers(0, 255, (224, 224, 3), dtype=np.uint8)).save(place / f"{i}.png")
        else:
            soundfile.write(place / f"{i}.wav", noise.normal(0, 0.1, 16000 + 2000 * i).clip(-1, 1), 16000)
    return folder / "files"


def compare_case(case: str, folder: Path, optimizers: list[str]) -> dict[str, Any]:
    """Calibrates one model, measures its variants, and prints a line for each."""
    from ruamel.yaml import YAML

    from toolkit.lab.plan.measure import calibrate, measured

    recipe, rows, settings = CASES[case]
    contents = settings | {"data": {"train_file": str(make_rows(case, folder))}, "output_dir": str(folder / "out")}
    config = folder / "config.yaml"
    YAML(typ="safe", pure=True).dump(contents, config)
    place = str(ROOT / "recipes" / f"{recipe}.py"), str(config)
    corrections = {}
    for checkpointing in CHECKPOINTING:
        settings_of = [f"train.activation_checkpointing={checkpointing}", "train.optim=sgd"]
        corrections[checkpointing], runs = calibrate(*place, settings_of, rows)
        sizes = " and ".join(str(run.footprint.rows) for run in runs)
        factor, constant = corrections[checkpointing].factor, corrections[checkpointing].constant / 2**20
        print(f"{case}, checkpointing {checkpointing}: factor {factor:.3f}, constant {constant:.0f} MiB (from SGD at "
              f"{sizes} rows)", flush=True)  # fmt: skip
    columns = [f"{name:>8}" for name in ("weights", "grads", "state", "MiB", "plan", "before")]
    print(f"{'optimizer':20}{'checkpointing':14}{'budget':8}", *columns)
    variants = [(optim, checkpointing, None) for optim in optimizers for checkpointing in CHECKPOINTING]
    if case in BUDGETS:
        variants += [(optimizers[0], checkpointing, BUDGETS[case]) for checkpointing in CHECKPOINTING]
    table = []
    for optim, checkpointing, budget in variants:
        overrides = [f"train.optim={optim}", f"train.activation_checkpointing={checkpointing}"]
        found = measured(*place, overrides, rows * (BUDGET_ROWS if budget else 1), budget)
        predicted, peak = found.footprint, found.peak
        line = {
            "optim": optim,
            "activation_checkpointing": checkpointing,
            "max_tokens_per_batch": budget,
            "parameters": (predicted.parameters + predicted.buffers) / found.parameters,
            "gradients": predicted.gradients / found.gradients,
            "optimizer_state": predicted.optimizer_state / found.optimizer_state,
            "measured_bytes": peak,
            "predicted_bytes": corrections[checkpointing].peak(predicted),
            "peak": corrections[checkpointing].peak(predicted) / peak,
            "peak_uncalibrated": predicted.peak / peak,
        }
        table.append(line)
        print(f"{optim:20}{checkpointing:14}{budget or '-':<8}{line['parameters']:9.3f}{line['gradients']:9.3f}"
              f"{line['optimizer_state']:9.3f}{peak / 2**20:9.0f}{line['peak']:9.3f}"
              f"{line['peak_uncalibrated']:9.3f}", flush=True)  # fmt: skip
    return {"corrections": {name: asdict(each) for name, each in corrections.items()}, "variants": table}


def main() -> None:
    """Prints the tables and writes them to `benchmarks/results/plan.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--optim", nargs="+", default=list(OPTIMIZERS))
    parser.add_argument("--malloc", choices=list(MALLOC), default="default", help="see above")
    parser.add_argument("--name", default="plan", help="name of the result file")
    arguments = parser.parse_args()
    os.environ |= MALLOC[arguments.malloc]
    found: dict[str, Any] = {}
    for case in arguments.model:
        with tempfile.TemporaryDirectory(prefix="bench-plan-") as folder:
            found[case] = compare_case(case, Path(folder), arguments.optim)
    lines = [line for model in found.values() for line in model["variants"]]
    parts = [abs(line[name] - 1) for line in lines for name in ("parameters", "gradients", "optimizer_state")]
    peaks = [abs(line["peak"] - 1) for line in lines]
    print(f"\nlargest error: parts {max(parts):.2%}, peak {max(peaks):.1%}")
    file = ROOT / "benchmarks/results" / f"{arguments.name}.json"
    file.parent.mkdir(exist_ok=True)
    found["malloc"] = arguments.malloc
    found["machine"] = f"{platform.machine()}, {os.cpu_count()} CPUs"
    file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"written to {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
