"""Seconds of each tool on each smoke configuration.

    python benchmarks/every_tool.py [--only lr-find search] [--configurations qa/smoke]

A tool runs in an empty folder, with a home and a temporary folder of its own. What it leaves there is an error, beside
its output folder, the cache of prepared rows, and what the account keeps: which recipes and runs it has started, and
matplotlib's list of fonts. Finished figures are kept in the file of results, so that the rest can be measured later.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pairs import LONGEST, ROOT, parser, read_options, write

NAME = "every_tool"
CONFIGURATIONS = [f"{file.parent.name}/{file.stem}" for file in sorted(ROOT.glob("recipes/configs/*/smoke*.yaml"))]
OUTPUT = "output"
SPACE = "train.learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}\ntrain.weight_decay: [0.0, 0.1]\n"
TOOLS: Mapping[str, Sequence[str]] = {
    "lr-find": (),
    "batch-find": (),
    "search": ("--space", "space.yaml", "--method", "asha", "--trials", "4"),
    "profile": (),
    "scale": (),
    "doctor": (),
    "cross-validate": (),
    "baseline": (),
    "compare": ("--switch", "train.optim=adamw_torch,adafactor"),
    "plan": (),
    "certify": (),
}
"""The tools that train or look at a run's rows, and the options that each is given."""
CERTIFIED = {"reviews/smoke_image": (), "reviews/smoke_audio": ("train.max_tokens_per_batch=48000",)}
"""Settings of certificates where rows have one size: audio has a budget in samples, images have none."""
USUALLY_CERTIFIED = ("train.unpadded=true", "train.max_tokens_per_batch=256")
OF_THE_ACCOUNT = (".local/state/finetune-toolkit", ".cache/matplotlib")
"""What may be left in the home."""


def arguments(tool: str, configuration: str) -> list[str]:
    """Returns the command line of a tool, after `toolkit`."""
    recipe, _, config = configuration.partition("/")
    given = [recipe, "--config", config, "--output", OUTPUT, *TOOLS[tool]]
    if tool == "plan":
        given = [recipe, "--config", config, "--output", f"{OUTPUT}/plan.json"]
    if tool == "certify":
        given += CERTIFIED.get(configuration, USUALLY_CERTIFIED)
    return [tool, *given]


def run(tool: str, configuration: str, options: Any) -> float:
    """Runs a tool and returns its seconds.

    Raises:
        SystemExit: if it fails or leaves files elsewhere, with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        places = {key: folder / key for key in ("work", "HOME", "TMPDIR", "HF_HOME")}
        for place in places.values():
            place.mkdir()
        work = places.pop("work")
        (work / "space.yaml").write_text(SPACE, encoding="utf-8")
        (work / OUTPUT).mkdir()
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads))
        own = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **{key: str(place) for key, place in places.items()}}
        command = [sys.executable, "-m", "toolkit", *arguments(tool, configuration)]
        begin = time.perf_counter()
        done = subprocess.run(
            command, cwd=work, env={**os.environ, **threads, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=LONGEST, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        left = sorted(left_elsewhere(work, places))
    if done.returncode or left:
        raise SystemExit(f"{' '.join(command)}: ended with {done.returncode}, left {left}\n{done.stdout[-3000:]}")
    print(f"{tool} {configuration}: {seconds:.1f} s", file=sys.stderr, flush=True)
    return seconds


def left_elsewhere(work: Path, places: Mapping[str, Path]) -> Iterator[str]:
    """Yields the files that are neither in the output folder nor in the cache, nor kept by the account."""
    folders = (work, places["HOME"], places["TMPDIR"])
    known = (work / "space.yaml", work / OUTPUT, *(places["HOME"] / name for name in OF_THE_ACCOUNT))
    for file in (each for folder in folders for each in folder.rglob("*") if not each.is_dir()):
        if not any(file.is_relative_to(each) for each in known):
            yield file.relative_to(work.parent).as_posix()


def spread(seconds: Sequence[float]) -> dict[str, Any]:
    """Returns the median of some seconds, with their range."""
    return {
        "seconds": statistics.median(seconds), "seconds_min": min(seconds), "seconds_max": max(seconds),
        "runs": len(seconds),
    }  # fmt: skip


def main() -> None:
    """Measures what is not in the file of results yet, and writes each tool's figures when they are there."""
    made = parser(__doc__, pairs=1, wall_only="tools start processes of their own")
    made.add_argument("--only", choices=TOOLS, nargs="+", default=list(TOOLS), help="the tools to run")
    made.add_argument(
        "--configurations", choices=CONFIGURATIONS, nargs="+", default=CONFIGURATIONS, help="on which to run"
    )
    options = read_options(made)
    file = (options.results or Path()) / f"{NAME}.json"
    found = json.loads(file.read_text(encoding="utf-8"))["cases"] if options.results and file.is_file() else {}
    measured = {tool: dict(case["each"]) for tool, case in found.items()}
    for tool in options.only:
        for configuration in options.configurations:
            if configuration in measured.setdefault(tool, {}):
                continue
            measured[tool][configuration] = run(tool, configuration, options)
            cases = {key: {**spread(list(each.values())), "each": each} for key, each in measured.items() if each}
            every = [seconds for each in measured.values() for seconds in each.values()]
            title = "the commands that train or look at rows, on every smoke configuration"
            write(NAME, "tools", title, {**spread(every), "cases": cases}, options)


if __name__ == "__main__":
    main()
