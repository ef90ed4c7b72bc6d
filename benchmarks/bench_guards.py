"""What guarding a step costs: training with all guards, against the same training without them.

    python benchmarks/bench_guards.py [--pairs 9]

Guards are the heartbeat between processes, the check of every update for values that are not finite, and the watch over
signals. The side without them replaces them in its own process. The seconds are those of the median step. The target is
a ratio of at least 0.99: at most 1 % of a step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import texts
from bench_loop import LARGE, SMALL
from ours import STEPS_ONLY, Steps, fresh
from pairs import ROOT, Side, calling, compared, interleave, parser, read_options, write

GUARDS: dict[str, Callable[..., Any]] = {
    "toolkit.run:heartbeat": lambda *arguments: nullcontext(),
    "toolkit.engine.updates:UpdateGuard.check": lambda *arguments: None,
    "toolkit.engine.updates:UpdateGuard.check_parameters": lambda *arguments: None,
    "toolkit.distributed.signals:StopSignal.beat": lambda *arguments: None,
}
"""Places of the guards, and what stands there without them."""
CASES = {
    "large": (LARGE, 16, 192, 12, 1),
    "small": (SMALL, 8, 64, 200, 1),
    "small, 2 processes": (SMALL, 8, 64, 200, 2),
}
"""Sizes of the model, rows of a step, largest number of tokens, measured steps and processes."""
WARM_UP = 4
CONFIG = "recipes/configs/qa/squad.yaml"


@contextmanager
def without_guards() -> Iterator[None]:
    """Takes the guards out of this process.

    Raises:
        AttributeError: if there is none at a place.
    """
    with ExitStack() as replaced:
        for place, neutral in GUARDS.items():
            module, _, name = place.partition(":")
            replaced.enter_context(patch(f"{module}.{name}", neutral))
        yield


def train(overrides: Sequence[str], folder: str, guards: bool) -> dict[str, Any]:
    """Trains in this process, with or without guards, and returns the seconds of the median step."""
    with nullcontext() if guards else without_guards():
        seconds, losses = timed(overrides, folder)
    return {"seconds": statistics.median(seconds), "losses": losses}


def timed(overrides: Sequence[str], folder: str) -> tuple[list[float], list[float]]:
    """Trains in this process, and returns the seconds of the steps after the warm-up, and the losses of all."""
    from toolkit.lab.training import trained

    steps = Steps()
    job = {"recipe": str(ROOT / "recipes" / "qa.py"), "config": str(ROOT / CONFIG),
           "overrides": [*STEPS_ONLY, *overrides, f"output_dir={fresh(folder)}"]}  # fmt: skip
    with trained(job, steps):
        return steps.clock.steps(WARM_UP - 1), steps.losses


def settings_of(name: str, options: argparse.Namespace, folder: Path) -> list[str]:
    """Makes the model and the rows of a case, and returns its settings."""
    sizes, rows, limit, steps, processes = CASES[name]
    rows, limit, steps = (2, 48, 2) if options.quick else (rows, limit, steps)
    pretrained = texts.new_bert(folder / f"{name}-base", **sizes)
    model = texts.with_head(pretrained, folder / name, dropout=False)
    made = texts.qa_rows(texts.one_token_words(pretrained), WARM_UP + steps, rows, "random", limit)
    file = texts.write_rows(made, folder / f"{name}.jsonl")
    return [
        "data.dataset_name=null", f"data.train_file={file}", f"model.name_or_path={model}", "task.doc_stride=16",
        f"task.max_length={limit}", f"train.per_device_train_batch_size={rows // processes}",
        "train.num_train_epochs=1", "train.mixed_precision=no", "train.dataloader_num_workers=0",
        "tracking.logging_steps=50",
    ]  # fmt: skip


def sides(name: str, options: argparse.Namespace, folder: Path) -> list[Side]:
    """Returns the sides of a case: without and with guards."""
    settings = settings_of(name, options, folder)
    made_sides = [
        calling(f"{kind}, {name}", train, overrides=settings, folder=str(folder), guards=kind == "guards")
        for kind in ("no guards", "guards")
    ]
    return [launched(side, CASES[name][-1]) for side in made_sides]


def launched(side: Side, processes: int) -> Side:
    """Returns a side that runs on several processes with one thread each, or the side itself for one."""
    if processes == 1:
        return side
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file",
              str(ROOT / "accelerate_configs" / "cpu_2proc.yaml"), "--num_processes", str(processes)]  # fmt: skip
    return Side(side.name, [*launch, *side.command[1:]], {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})


def cases_of(sides_of: Callable[[str], list[Side]], options: argparse.Namespace) -> dict[str, Any]:
    """Runs both sides of every case, and returns their ratios.

    Raises:
        SystemExit: if the losses differ.
    """
    cases = {}
    for name in CASES:
        baseline, ours = sides_of(name)
        runs = interleave([baseline, ours], options)
        if len({tuple(run["losses"]) for each in runs.values() for run in each}) > 1:
            raise SystemExit(f"{ours.name}: the losses differ from those of {baseline.name}")
        cases[name] = compared(runs, baseline.name, ours.name)
    return cases


def main() -> None:
    """Runs the pairs and writes the result."""
    options = read_options(parser(__doc__, pairs=9))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cases = cases_of(lambda name: sides(name, options, Path(folder)), options)
    title = "a step without guards (heartbeat, finite checks, signals), against the same step with them"
    figures = {**cases["large"], "case": "large", "cases": cases, "removed": list(GUARDS)}
    write("guards", "guards", title, figures, options)


if __name__ == "__main__":
    main()
