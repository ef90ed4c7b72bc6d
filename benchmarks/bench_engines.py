"""Step time of the Trainer engine relative to the loop.

    python benchmarks/bench_engines.py [--config recipes/configs/reviews/smoke.yaml] [--pairs 5] [section.key=value ...]

Both engines train the same steps alternately (A B A B ...), each in its own process, without evaluation or
checkpoints. Ratios are computed per pair, so that drift in the machine's speed cancels out. Run
nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = (
    "checkpoint.save_steps=null",
    "eval.eval_steps=null",
    "data.max_eval_samples=8",
    "tracking.logging_steps=50",
)


def seconds(config: Path, engine: str, folder: Path, overrides: list[str]) -> float:
    """Trains in a separate process and returns seconds per step."""
    recipe = ROOT / "recipes" / f"{config.parent.name}.py"
    settings = [*SETTINGS, *overrides, f"engine={engine}", f"output_dir={folder}"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(recipe), "--config", str(config), *settings]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    result = json.loads((folder / "run.json").read_text(encoding="utf-8"))["result"]
    return result["train_seconds"] / result["steps"]


def main() -> None:
    """Runs the pairs, prints the table and writes it to `benchmarks/results/engines.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "recipes/configs/reviews/smoke.yaml")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--name", default="engines", help="name of the result file")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    pairs = []
    with tempfile.TemporaryDirectory() as scratch:
        for pair in range(arguments.pairs):
            times = [
                seconds(arguments.config, engine, Path(scratch) / f"{engine}-{pair}", arguments.overrides)
                for engine in ("loop", "trainer")
            ]
            pairs.append(times)
            print(f"pair {pair + 1}: loop {1000 * times[0]:.2f} ms a step, trainer {1000 * times[1]:.2f} ms, "
                  f"ratio {times[1] / times[0]:.3f}", flush=True)  # fmt: skip
    ratios = [trainer / loop for loop, trainer in pairs]
    table = {
        "config": f"{arguments.config.parent.name}/{arguments.config.name}",
        "overrides": arguments.overrides,
        "loop_ms": [1000 * loop for loop, _ in pairs],
        "trainer_ms": [1000 * trainer for _, trainer in pairs],
        "ratio_median": statistics.median(ratios),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
    }
    file = ROOT / "benchmarks/results" / f"{arguments.name}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    print(f"median ratio of {len(ratios)} pairs: {table['ratio_median']:.3f} (written to {file.relative_to(ROOT)})")


if __name__ == "__main__":
    main()
