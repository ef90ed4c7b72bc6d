"""What is always on costs: training with it, against the same training without it.

    python benchmarks/bench_guards.py [--pairs 9] [--only guards phases samples] [--cpu-time]

- guards: the heartbeat between processes, the check of every update for values that are not finite, and the watch over
  signals;
- phases: the clock of the phases of a step;
- samples: what the process uses of the machine, every two seconds. Most steps meet none, so these are the mean seconds
  of a step; the others are those of the median step.

The side without it replaces it in its own process, or turns it off. The target is a ratio of at least 0.99: at most 1 %
of a step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import texts
from bench_loop import LARGE, SMALL
from ours import STEPS_ONLY, Steps, fresh
from pairs import ROOT, Side, calling, compared, interleave, parser, read_options, write


@dataclass(frozen=True)
class Part:
    """Something that is always on.

    Args:
        title: what is compared.
        places: its places, and what stands there without it.
        settings: overrides that turn it off instead.
        average: of the seconds of steps.
    """

    title: str
    places: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    average: Callable[[Sequence[float]], float] = statistics.median


PARTS = {
    "guards": Part(
        "a step without guards (heartbeat, finite checks, signals), against the same step with them",
        {
            "toolkit.run:heartbeat": lambda *arguments: nullcontext(),
            "toolkit.engine.updates:UpdateGuard.check": lambda *arguments: None,
            "toolkit.engine.updates:UpdateGuard.check_parameters": lambda *arguments: None,
            "toolkit.distributed.signals:StopSignal.beat": lambda *arguments: None,
        },
    ),
    "phases": Part(
        "a step whose phases are not measured, against the same step with the measurement",
        {
            "toolkit.base.phases:_Phase.__enter__": lambda phase: None,
            "toolkit.base.phases:_Phase.__exit__": lambda phase, *error: None,
        },
    ),
    "samples": Part(
        "a step without samples of the machine, against the same step with one every two seconds",
        settings=("tracking.system_interval=null",),
        average=statistics.fmean,
    ),
}
CASES = {
    "large": (LARGE, 16, 192, 12, 1),
    "small": (SMALL, 8, 64, 200, 1),
    "small, 2 processes": (SMALL, 8, 64, 200, 2),
}
"""Sizes of the model, rows of a step, largest number of tokens, measured steps and processes."""
WARM_UP = 4
CONFIG = "recipes/configs/qa/squad.yaml"


@contextmanager
def without(part: Part) -> Iterator[None]:
    """Takes what can be replaced out of this process.

    Raises:
        AttributeError: if there is nothing at a place.
    """
    with ExitStack() as replaced:
        for place, neutral in part.places.items():
            module, _, name = place.partition(":")
            replaced.enter_context(patch(f"{module}.{name}", neutral))
        yield


def train(overrides: Sequence[str], folder: str, part: str, on: bool) -> dict[str, Any]:
    """Trains in this process, with or without one of `PARTS`, and returns the average seconds of a step."""
    from toolkit.lab.training import trained

    steps, chosen = Steps(), PARTS[part]
    settings = [*STEPS_ONLY, *overrides, *([] if on else chosen.settings), f"output_dir={fresh(folder)}"]
    job = {"recipe": str(ROOT / "recipes" / "qa.py"), "config": str(ROOT / CONFIG), "overrides": settings}
    with nullcontext() if on else without(chosen), trained(job, steps):
        return {"seconds": chosen.average(steps.clock.steps(WARM_UP - 1)), "losses": steps.losses}


def sides(part: str, name: str, options: argparse.Namespace, folder: Path) -> list[Side]:
    """Returns the sides of a case: without and with one of `PARTS`."""
    sizes, rows, limit, steps, processes = CASES[name]
    rows, limit, steps = (2, 48, 2) if options.quick else (rows, limit, steps)
    pretrained = texts.new_bert(folder / f"{name}-base", **sizes)
    model = texts.with_head(pretrained, folder / name, dropout=False)
    made = texts.qa_rows(texts.one_token_words(pretrained), WARM_UP + steps, rows, "random", limit)
    file = texts.write_rows(made, folder / f"{name}.jsonl")
    settings = [
        "data.dataset_name=null", f"data.train_file={file}", f"model.name_or_path={model}", "task.doc_stride=16",
        f"task.max_length={limit}", f"train.per_device_train_batch_size={rows // processes}",
        "train.num_train_epochs=1", "train.mixed_precision=no", "train.dataloader_num_workers=0",
        "tracking.logging_steps=50",
    ]  # fmt: skip
    made_sides = [
        calling(f"{kind}, {name}", train, overrides=settings, folder=str(folder), part=part, on=on)
        for kind, on in ((f"no {part}", False), (part, True))
    ]
    return [launched(side, processes) for side in made_sides]


def launched(side: Side, processes: int) -> Side:
    """Returns a side that runs on several processes with one thread each, or the side itself for one."""
    if processes == 1:
        return side
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file",
              str(ROOT / "accelerate_configs" / "cpu_2proc.yaml"), "--num_processes", str(processes)]  # fmt: skip
    return Side(side.name, [*launch, *side.command[1:]], {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})


def measure(part: str, options: argparse.Namespace) -> None:
    """Runs the pairs of all cases and writes the result.

    Raises:
        SystemExit: if the losses differ.
    """
    cases = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name in CASES:
            runs = interleave(sides(part, name, options, Path(folder)), options)
            if len({tuple(run["losses"]) for each in runs.values() for run in each}) > 1:
                raise SystemExit(f"{name}: {part} change the losses")
            cases[name] = compared(runs, f"no {part}, {name}", f"{part}, {name}")
    removed = [*PARTS[part].places, *PARTS[part].settings]
    figures = {**cases["large"], "case": "large", "cases": cases, "removed": removed}
    write(part, part, PARTS[part].title, figures, options)


def main() -> None:
    """Measures the parts, one after the other."""
    made = parser(__doc__, pairs=9)
    made.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="the parts to measure")
    options = read_options(made)
    for part in options.only:
        measure(part, options)


if __name__ == "__main__":
    main()
