"""Fine-tunes a text classifier step by step, and writes docs/worked_example.md and .ipynb: `make worked-example`.

Every figure comes from one `toolkit compare`. With `--render`, page and notebook are written from the figures of the
last comparison (docs/worked_example.json).
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import worked_notebook

from toolkit.catalog.entries import CATALOG
from toolkit.config.keys import to_yaml
from toolkit.document import render
from toolkit.document.svg import sheet
from toolkit.lab.compare import pictures
from toolkit.lab.compare.page import SAME, interval, marked, notes, shown
from toolkit.lab.compare.statistics import difference, summarise
from toolkit.lab.compare.variants import combine, read_switch
from toolkit.lab.jobs.jobs import MEASURED

HERE = Path(__file__).resolve().parent
PAGE, FIGURES, PICTURES = HERE / "worked_example.md", HERE / "worked_example.json", HERE / "images"
NOTEBOOK = HERE / "worked_example.ipynb"
OUTPUT = Path("outputs/worked-example")
DATASET, ROWS = "customer_reviews", 576
THREADS = 1
CONFIG = f"recipes/configs/reviews/{DATASET}.yaml"
PLAIN = (f"data.max_train_samples={ROWS}", "seed=1")
STEPS = (
    (
        "Learning rate",
        "train.learning_rate=5e-5+train.warmup_steps=0,3e-4+train.warmup_steps=0.1",
        "Few rows give few updates, so each must be larger than with the usual 5e-5; a warm-up keeps the first ones "
        "small.",
    ),
    (
        "Length groups",
        "train.train_sampling_strategy=random,group_by_length",
        "Texts of similar length share a batch, so less padding is computed.",
    ),
    (
        "Precision",
        "train.mixed_precision=no,bf16",
        "Matrix products in bfloat16 are faster on hardware that supports them.",
    ),
    (
        "Frozen embeddings",
        'model.freeze=[],["*embeddings.*"]',
        "Half of this model's parameters are word vectors, most of which a few rows hardly change. Frozen, they need "
        "neither gradients nor optimizer state.",
    ),
    (
        "Micro-batches",
        "train.per_device_train_batch_size=16,4",
        "The 16 rows of a step are split into four parts: activations of 4 rows at a time, and the same update apart "
        "from dropout.",
    ),
)
"""The title of each change, the switch that makes it, and the reason."""
KEPT = ("recipe", "config", "overrides", "metric", "hardware", "versions", "seeds", "num_processes", "variants")
"""The parts of comparison.json that the page uses."""
METRIC = "eval_accuracy"
NAMES = {"train_peak": "peak memory", "step_seconds": "step", METRIC: "accuracy"}
"""Titles of the figures, in the order of the columns."""

Change = Mapping[str, Any]
"""A change of a figure: `value`, `low` and `high` of a ratio (memory, time) or difference (metric), and `pairs`."""


def command() -> list[str]:
    """Returns the one command that measures everything."""
    switches = [part for _, switch, _ in STEPS for part in ("--switch", switch)]
    return ["compare", "recipes/reviews.py", "--config", CONFIG, "--mode", "cumulative", *switches,
            "--seeds", "3", "--output-dir", str(OUTPUT), *PLAIN]  # fmt: skip


def collected(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the page needs of a comparison, with the figures of each run and the change of each step.

    `seeds` of a variant are its figures by seed; `step` compares them with those of the variant before it, and `total`
    of the result compares the last variant with the first.
    """
    kept: dict[str, Any] = {name: found[name] for name in KEPT}
    kept["hardware"] = {name: found["hardware"][name] for name in ("machine", "cpus", "threads", "gpus")}
    runs = [_runs(slug, each) for slug, each in zip(_slugs(), found["variants"], strict=True)]
    for number, (variant, measured) in enumerate(zip(kept["variants"], runs, strict=True)):
        variant["seeds"] = {seed: run["figures"] for seed, run in measured.items()}
        if number:
            variant["step"] = _changes(measured, runs[number - 1])
    return {**kept, "total": _changes(runs[-1], runs[0])}


def _slugs() -> list[str]:
    """Returns the names of the folders of the variants' runs."""
    return [variant.slug for variant in combine([read_switch(switch, {}) for _, switch, _ in STEPS], "cumulative")]


def _runs(slug: str, variant: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Returns the main figures of a variant's runs by seed, and the bootstrap draws of the metric."""
    found = {}
    for seed, score in variant["metrics"][METRIC]["values"].items():
        # A folder may also hold runs of earlier versions of the code.
        files = (OUTPUT / "runs" / slug).glob(f"seed-{seed}-*/{MEASURED}")
        newest = max(files, key=lambda file: file.stat().st_mtime)
        run = json.loads(newest.read_text(encoding="utf-8"))
        assert run["figures"][METRIC] == score, newest
        figures = summarise([run])["figures"]
        found[int(seed)] = {
            "figures": {name: figures[name].value for name in NAMES if name != METRIC} | {METRIC: score},
            "metrics": {METRIC: run["metrics"][METRIC]},
        }
    return found


def _changes(after: Mapping[int, Any], before: Mapping[int, Any]) -> dict[str, Any]:
    """Compares runs seed by seed: ratios of memory and time, the difference of the metric, all with 95 % intervals."""
    found = {METRIC: _paired(after, before, METRIC)}
    for name in (name for name in NAMES if name != METRIC):
        change = _paired(_logarithms(after, name), _logarithms(before, name), name)
        found[name] = {key: value if key == "pairs" else math.exp(value) for key, value in change.items()}
    return found


def _paired(after: Mapping[int, Any], before: Mapping[int, Any], name: str) -> dict[str, Any]:
    found = difference(after, before, name)
    assert found is not None  # every seed ran
    return asdict(found)


def _logarithms(runs: Mapping[int, Any], name: str) -> dict[int, Any]:
    """Returns the logarithms of a figure in the form of measurements, without draws: a difference is then a ratio."""
    return {
        seed: {"figures": {name: math.log(run["figures"][name])}, "metrics": {name: {"draws": []}}}
        for seed, run in runs.items()
    }


def rendered(found: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Returns the page for the collected figures, and its charts by file name."""
    variants = found["variants"]
    numbers = range(1, len(variants) + 1)
    names = ["Baseline", *(f"+ {title.lower()}" for title, _, _ in STEPS)]
    rows = [
        [number, name, *(_with_interval(key, variant["figures"][key]) for key in NAMES)]
        for number, name, variant in zip(numbers, names, variants, strict=True)
    ]
    lines = [f"export OMP_NUM_THREADS={THREADS}", f"toolkit data get {DATASET}", f"toolkit {shlex.join(command())}"]
    parts = [
        *_introduction(found),
        f"The same as a notebook: [{NOTEBOOK.name}]({NOTEBOOK.name}).",
        render.fenced("\n".join(lines), "bash"),
        render.table(["", "training", *NAMES.values()], rows),
        *_result(found),
        "## Step by step",
        "Each step is compared with the one before it, seed by seed: memory and time by their ratio, accuracy by its "
        f"difference, with 95 % intervals. `{SAME}` marks a change that could be chance.",
    ]
    for (title, _, why), before, after in zip(STEPS, variants, variants[1:], strict=False):
        parts += [f"### {title}", why, _effect(before, after)]
    seeds = [
        [number, seed, *(shown(key, figures[key]) for key in NAMES)]
        for number, variant in zip(numbers, variants, strict=True)
        for seed, figures in variant["seeds"].items()
    ]
    parts += ["## Each run", render.table(["training", "seed", *NAMES.values()], seeds)]
    drawn = pictures.draw(variants, numbers, found["metric"])
    return "\n\n".join(parts) + "\n", {f"worked_example_{k}.svg": sheet([drawing]) for k, drawing in drawn.items()}


def notebook(found: Mapping[str, Any]) -> str:
    """Returns the notebook for the collected figures."""
    commands = [f"toolkit data get {DATASET}", f"OMP_NUM_THREADS={THREADS} toolkit {shlex.join(command())}"]
    steps = [(title, why) for title, _, why in STEPS]
    return worked_notebook.rendered(found, _introduction(found), _result(found), commands, steps)


def _introduction(found: Mapping[str, Any]) -> list[str]:
    return ["# A worked example", _lead(found), *notes(found)]


def _result(found: Mapping[str, Any]) -> list[str]:
    """Returns what all changes did, and the charts."""
    charts = (f"![{title}](images/worked_example_{name}.svg)" for name, title in pictures.TITLES.items())
    return [_conclusion(found), *charts]


def _with_interval(name: str, figure: Mapping[str, Any]) -> str:
    return f"{shown(name, figure['value'])} ({interval(name, figure)})"


def _lead(found: Mapping[str, Any]) -> str:
    """Returns what is trained, on what, and how it was measured."""
    return (
        f"A small pretrained encoder learns to classify {CATALOG[DATASET].summary.split(':')[0]}, from {ROWS} "
        f"examples in one epoch (`{found['config']}`). The baseline is plain fine-tuning in float32 with the learning "
        "rate that `transformers` uses by default. Each change is made on top of the previous ones. All figures come "
        "from one "
        f"`toolkit compare` ([how to read them](compare.md)) with {len(found['seeds'])} seeds and "
        f"{found['hardware']['threads']} CPU thread; intervals are in brackets. `make worked-example` repeats all "
        "measurements and writes this page."
    )


def _conclusion(found: Mapping[str, Any]) -> str:
    """Returns what all changes do together, and which of them help and cost something."""
    pairs = zip(STEPS, found["variants"][1:], strict=True)
    changes = {title.lower(): variant["step"] for (title, _, _), variant in pairs}
    helping, costly = (
        [
            f"{title} ({', '.join(f'{NAMES[name]} {_written(name, change)}' for name, change in each.items())})"
            for title, step in changes.items()
            if (each := {name: step[name] for name in NAMES if _effect_of(name, step[name]) == sign})
        ]
        for sign in (1, -1)
    )
    total = ", ".join(f"{NAMES[name]} {_written(name, found['total'][name])}" for name in NAMES)
    chance = [title for title, step in changes.items() if all(_effect_of(name, step[name]) < 1 for name in NAMES)]
    unclear = f" {' and '.join(chance).capitalize()} may not help: repeat with more seeds to know." if chance else ""
    costs = f" Costs: {'; '.join(costly)}." if costly else " None of them makes another figure worse."
    return (
        f"All changes together: {total}. Of {len(changes)} changes, {len(helping)} improve a figure by more than "
        f"chance explains: {'; '.join(helping)}.{unclear}{costs}"
    )


def _same(name: str, change: Change) -> bool:
    """Whether a change could be chance: its interval contains no change."""
    return bool(change["low"] <= (0 if name == METRIC else 1) <= change["high"])


def _effect_of(name: str, change: Change) -> int:
    """Returns 1 for an improvement, -1 for the opposite, and 0 for a change that could be chance."""
    if _same(name, change):
        return 0
    return 1 if (change["value"] > 0 if name == METRIC else change["value"] < 1) else -1


def _written(name: str, change: Change) -> str:
    """Returns a ratio or difference, marked if it could be chance."""
    return marked(f"{change['value']:+.3f}" if name == METRIC else f"x{change['value']:.2f}", _same(name, change))


def _effect(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Returns what one change did: the settings changed and the effect on each figure."""
    lines = []
    for name, title in NAMES.items():
        old, new = (shown(name, variant["figures"][name]["value"]) for variant in (before, after))
        change = after["step"][name]
        ends = (f"{change[end]:+.3f}" if name == METRIC else f"x{change[end]:.2f}" for end in ("low", "high"))
        lines.append(f"- {title}: {old} -> {new}, {_written(name, change)} ({' to '.join(ends)})")
    return "\n".join([f"Changed: {', '.join(_changed(before, after))}.", "", *lines])


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Sequence[str]:
    """Returns the settings in which a variant differs from the one before it."""
    earlier = {key: pair[1] for key, pair in before["differs"].items()}
    return [
        f"`{key}: {to_yaml(value)}`"
        for key, (first, value) in after["differs"].items()
        if value is not None and earlier.get(key, first) != value
    ]


def main() -> None:
    """Measures, unless `--render` is given, and writes figures, charts, page and notebook."""
    if "--render" not in sys.argv[1:]:
        # With one thread, other programs disturb step times the least, and machines can be compared.
        environ = os.environ | {"OMP_NUM_THREADS": str(THREADS)}
        subprocess.run([sys.executable, "-m", "toolkit", *command()], check=True, env=environ)
        found = json.loads((OUTPUT / "comparison.json").read_text(encoding="utf-8"))
        if failed := [variant["name"] for variant in found["variants"] if "figures" not in variant]:
            sys.exit(f"not measured: {', '.join(failed)}")
        FIGURES.write_text(json.dumps(collected(found), indent=1) + "\n", encoding="utf-8")
    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    page, drawn = rendered(found)
    PAGE.write_text(page, encoding="utf-8")
    NOTEBOOK.write_text(notebook(found), encoding="utf-8")
    for name, picture in drawn.items():
        (PICTURES / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
