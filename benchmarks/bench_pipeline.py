"""Waiting time and kept activations of each pipeline schedule, with a drawing of one window.

    python benchmarks/bench_pipeline.py [--processes 2] [--micro-batches 8] [--steps 9]

Trains a small Llama on several CPU processes with each schedule and records when each pass began and ended. Of all
windows but the first, the one with the median share of waiting is reported. Each process needs a core of its own; run
nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RECIPE = ROOT / "recipes" / "language_modeling.py"
SETTINGS = (
    "model.from_config.hidden_size=256", "model.from_config.intermediate_size=512",
    "model.from_config.num_hidden_layers=8", "train.global_batch_size=null", "train.per_device_train_batch_size=4",
    "eval.eval_steps=null", "checkpoint.save_steps=null", "data.max_eval_samples=8", "train.num_train_epochs=50",
)  # fmt: skip


def train(folder: Path, overrides: list[str]) -> None:
    """Trains on this process of a launch; the main process writes the spans of all as `spans.json`."""
    from accelerate.utils import gather_object

    from toolkit.engine import fit
    from toolkit.recipe import load_settings, load_task_type
    from toolkit.run import prepared_run

    task_type = load_task_type(RECIPE)
    file = ROOT / "recipes/configs/language_modeling/smoke.yaml"
    cfg = load_settings(task_type, file, [*SETTINGS, *overrides, f"output_dir={folder / 'run'}"]).config
    with prepared_run(cfg, task_type(cfg), RECIPE) as run:
        strategy: Any = run.strategy
        strategy.executor.spans = []
        fit(run)
        size = len(strategy.actions)
        own = [asdict(span) for span in strategy.executor.spans]
        steps = gather_object([[own[start : start + size] for start in range(0, len(own), size)]])
        if run.accelerator.is_main_process:
            windows = [[span for part in parts for span in part] for parts in zip(*steps, strict=True)]
            (folder / "spans.json").write_text(json.dumps(windows), encoding="utf-8")


def windows_of(schedule: str, arguments: argparse.Namespace) -> list[list[Any]]:
    """Launches a training with a schedule and returns the spans of each window but the first."""
    from toolkit.distributed.pipeline.execution import Span

    overrides = [
        f"parallel.pipeline={arguments.processes}", f"parallel.schedule={schedule}",
        f"train.gradient_accumulation_steps={arguments.micro_batches}", f"train.max_steps={arguments.steps}",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file",
                   str(ROOT / "accelerate_configs" / "cpu_2proc.yaml"), "--num_processes", str(arguments.processes),
                   __file__, "--folder", scratch, *overrides]  # fmt: skip
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
        found = json.loads((Path(scratch) / "spans.json").read_text(encoding="utf-8"))
    return [[Span(**span) for span in window] for window in found[1:]]


def main() -> None:
    """Measures each schedule and writes `benchmarks/results/pipeline.json` and `pipeline.svg`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args()
    if arguments.folder is not None:
        train(arguments.folder, arguments.overrides)
        return

    from pipeline_timeline import bubble, expected_bubble, most_kept, timeline

    from toolkit.distributed.pipeline.schedules import CHUNKS, SCHEDULES
    from toolkit.document.svg import sheet

    drawings, figures = [], {}
    for schedule in SCHEDULES:
        windows = sorted(windows_of(schedule, arguments), key=bubble)
        middle = windows[len(windows) // 2]
        figures[schedule] = {
            "bubble": bubble(middle),
            "bubble_range": [bubble(windows[0]), bubble(windows[-1])],
            "expected_bubble": expected_bubble(schedule, arguments.processes, arguments.micro_batches),
            "window_ms": 1000 * (max(span.end for span in middle) - min(span.begin for span in middle)),
            "chunks": CHUNKS.get(schedule, 1),
            "kept_passes": [most_kept(middle, process) for process in range(arguments.processes)],
        }
        drawings.append(timeline(middle, schedule))
        print(schedule, json.dumps(figures[schedule]), flush=True)
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs"
    setting = {"processes": arguments.processes, "micro_batches": arguments.micro_batches, "settings": list(SETTINGS)}
    text = json.dumps({**setting, "schedules": figures, "machine": machine}, indent=2)
    (RESULTS / "pipeline.json").write_text(text + "\n", encoding="utf-8")
    (RESULTS / "pipeline.svg").write_text(sheet(drawings), encoding="utf-8")


if __name__ == "__main__":
    main()
