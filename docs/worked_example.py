"""Optimises an image classifier step by step, and writes docs/worked_example.md: `make worked-example`.

Every figure of the page comes from one `toolkit compare`. With `--render`, the page is written from the figures of the
last comparison (docs/worked_example.json).
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.config.dump import to_yaml
from toolkit.document import markdown
from toolkit.document.svg import sheet
from toolkit.lab.compare import pictures
from toolkit.lab.compare.summary import overlap
from toolkit.lab.compare.table import interval, shown

HERE = Path(__file__).resolve().parent
PAGE, FIGURES, PICTURES = HERE / "worked_example.md", HERE / "worked_example.json", HERE / "images"
OUTPUT = Path("outputs/worked-example")
CONFIG = "recipes/configs/reviews/fashion.yaml"
PLAIN = (
    "train.num_train_epochs=20",
    "train.warmup_steps=0",
    "train.optim_args={momentum: 0.9}",
)
STEPS = (
    (
        "Schedule",
        "train.lr_scheduler_type=constant,cosine+train.warmup_steps=0.1",
        "Warm-up followed by cosine decay: the last steps use a small learning rate.",
    ),
    (
        "Augmentation",
        "task.image.random_crop=1.0+task.image.horizontal_flip=0.0,0.7+task.image.horizontal_flip=0.5",
        "600 images are easily memorised; random crops and flips add variety in each epoch.",
    ),
    (
        "Precision",
        "train.mixed_precision=no,bf16",
        "bfloat16 halves the memory of activations, and is faster on hardware that supports it.",
    ),
    (
        "Optimizer",
        "train.optim=sgd+train.learning_rate=0.05,adamw_torch_fused+train.learning_rate=3e-3+train.optim_args={}",
        "AdamW keeps two moments per parameter instead of one, and needs its own learning rate.",
    ),
    (
        "Batch",
        "train.per_device_train_batch_size=32,64+train.gradient_accumulation_steps=1",
        "Twice the rows per step: half as many steps, more memory.",
    ),
)
"""The title of each change, the switch that makes it, and the reason."""
KEPT = ("recipe", "config", "overrides", "metric", "hardware", "versions", "seeds", "num_processes", "variants")
"""The parts of comparison.json that the page uses."""


def command() -> list[str]:
    """Returns the one command that measures everything."""
    switches = [part for _, switch, _ in STEPS for part in ("--switch", switch)]
    return ["compare", "recipes/reviews.py", "--config", CONFIG, "--mode", "cumulative", *switches,
            "--seeds", "3", "--output-dir", str(OUTPUT), *PLAIN]  # fmt: skip


def rendered(found: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Returns the page for the figures of a comparison, and its charts by file name."""
    variants = found["variants"]
    metric = found["metric"]["name"]
    names = {"train_peak": "peak memory", "step_seconds": "step", metric: metric.removeprefix("eval_")}
    rows = []
    for number, variant in enumerate(variants, start=1):
        cells = [
            f"{shown(name, (figure := variant['figures'][name])['value'])} ({interval(name, figure)})" for name in names
        ]
        title = "Baseline" if number == 1 else f"+ {STEPS[number - 2][0].lower()}"
        rows.append([number, title, *cells])
    parts = [
        "# A worked example",
        "A small ResNet is trained from scratch to classify images of ten kinds of clothes, with 600 training images "
        f"(`{found['config']}`). The baseline is plain training: SGD with momentum at a constant learning rate, no "
        "augmentation, float32. Each change is made on top of the previous ones. All figures come from one "
        "`toolkit compare` ([how to read them](compare.md)) with "
        f"{len(found['seeds'])} seeds on {found['hardware']['cpus']} CPU cores; intervals are in brackets. "
        "`make worked-example` repeats all measurements and writes this page.",
        markdown.fenced(f"toolkit {shlex.join(command())}", "bash"),
        markdown.table(["", "training", *names.values()], rows),
        *(f"![{title}](images/worked_example_{name}.svg)" for name, title in pictures.TITLES.items()),
        "## Step by step",
    ]
    for number, (title, _, why) in enumerate(STEPS, start=1):
        parts += [f"### {title}", why, _effect(variants[number - 1], variants[number], names)]
    parts += [
        "## Conclusions",
        "Most differences in accuracy are within the noise, since there are only 150 validation images. Repeat the "
        "comparison with more seeds or more rows before you keep a switch for its accuracy. Effects on memory and "
        "time need fewer runs.",
    ]
    numbers = range(1, len(variants) + 1)
    drawn = pictures.draw(variants, numbers, found["metric"])
    return "\n\n".join(parts) + "\n", {f"worked_example_{k}.svg": sheet([drawing]) for k, drawing in drawn.items()}


def _effect(before: Mapping[str, Any], after: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Returns what one change did: the settings changed and the effect on each figure."""
    lines = []
    for name, title in names.items():
        old, new = before["figures"][name], after["figures"][name]
        chance = overlap((old["low"], old["high"]), (new["low"], new["high"]))
        lines.append(
            f"- {title}: {shown(name, old['value'])} -> {shown(name, new['value'])}"
            + (", within the noise" if chance else f", x{new['value'] / old['value']:.2f}")
        )
    changes, earlier = ({key: pair[1] for key, pair in each["differs"].items()} for each in (after, before))
    baseline = {key: pair[0] for key, pair in after["differs"].items()}
    changed = [
        f"`{key}: {to_yaml(value)}`"
        for key, value in changes.items()
        if value is not None and earlier.get(key, baseline[key]) != value
    ]
    return "\n".join([f"Changed: {', '.join(changed)}.", "", *lines])


def main() -> None:
    """Measures, unless `--render` is given, and writes figures, charts and the page."""
    if "--render" not in sys.argv[1:]:
        subprocess.run([sys.executable, "-m", "toolkit", *command()], check=True)
        found = json.loads((OUTPUT / "comparison.json").read_text(encoding="utf-8"))
        if failed := [variant["name"] for variant in found["variants"] if "figures" not in variant]:
            sys.exit(f"not measured: {', '.join(failed)}")
        found["hardware"] = {name: found["hardware"][name] for name in ("machine", "cpus", "gpus")}
        FIGURES.write_text(json.dumps({name: found[name] for name in KEPT}, indent=1) + "\n", encoding="utf-8")
    page, drawn = rendered(json.loads(FIGURES.read_text(encoding="utf-8")))
    PAGE.write_text(page, encoding="utf-8")
    for name, picture in drawn.items():
        (PICTURES / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
