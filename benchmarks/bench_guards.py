"""What is always on costs: training with it, against the same training without it.

    python benchmarks/bench_guards.py [--pairs 9] [--only guards phases samples] [--cpu-time]

- guards: the heartbeat between processes, the check of every update for values that are not finite, and the watch over
  signals;
- phases: the clock of the phases of a step;
- samples: what the process uses of the machine, every two seconds. Most steps meet none, so these are the mean seconds
  of a step; the others are those of the median step.

The side without it replaces it in its own process, or turns it off. The clock of the phases can be stopped between two
steps: each pair is two runs over the same rows in which steps with and without it take turns, with the turns swapped in
the second, so that each step is measured both ways. The target is a ratio of at least 0.99: at most 1 % of a step.
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
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import texts
from bench_loop import LARGE, SMALL
from ours import STEPS_ONLY, Steps, fresh
from pairs import ROOT, Runs, Side, calling, compared, interleave, parser, read_options, write

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Part:
    """Something that is always on.

    Args:
        title: what is compared.
        places: its places, and what stands there without it.
        settings: overrides that turn it off instead.
        average: of the seconds of steps.
        turns: whether steps with and without it take turns in a run.
    """

    title: str
    places: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    average: Callable[[Sequence[float]], float] = statistics.median
    turns: bool = False


PARTS = {
    "guards": Part(
        "a step without guards (heartbeat, finite checks, signals), against the same step with them",
        {
            "toolkit.run:heartbeat": lambda *arguments: nullcontext(),
            "toolkit.engine.non_finite:UpdateGuard.check": lambda *arguments: None,
            "toolkit.engine.non_finite:UpdateGuard.check_parameters": lambda *arguments: None,
            "toolkit.distributed.stop:StopSignal.beat": lambda *arguments: None,
        },
    ),
    "phases": Part(
        "a step whose phases are not measured, against the same step with the measurement",
        {
            "toolkit.system.phases:_Phase.__enter__": lambda phase: None,
            "toolkit.system.phases:_Phase.__exit__": lambda phase, *error: None,
        },
        turns=True,
    ),
    "samples": Part(
        "a step without samples of the machine, against the same step with one every two seconds",
        settings=("tracking.system_interval=null",),
        average=statistics.fmean,
    ),
}
CASES = {
    "large": (LARGE, 16, 192, 12, 1),
    "small": (SMALL, 8, 64, 1000, 1),
    "small, 2 processes": (SMALL, 8, 64, 1000, 2),
}
"""Sizes of the model, rows of a step, largest number of tokens, measured steps and processes."""
QUICK_CASES = ("small, 2 processes",)
"""Those of a quick form: on several processes there is most to take out."""
WARM_UP = 4
CONFIG = "recipes/configs/qa/squad.yaml"


class Turns(Steps):
    """Steps of which one has what is measured, the next two do not, and so on: with, without, without, with.

    Attributes:
        on: whether the step under way has it.
        turns: `on`, for each step so far.
    """

    def __init__(self, on: bool) -> None:
        super().__init__()
        self.on, self.turns = on, [on]

    def after_step(self, record: Mapping[str, float]) -> None:
        """Notes a step, and whose turn is next."""
        super().after_step(record)
        self.on ^= len(self.turns) % 2 == 1
        self.turns.append(self.on)

    def seconds(self, on: bool, warm_up: int) -> list[float]:
        """Returns the seconds of the steps with or without, after the first `warm_up`."""
        measured = zip(self.clock.steps(warm_up - 1), self.turns[warm_up:], strict=False)  # the last turn had no step
        return [seconds for seconds, turn in measured if turn is on]


@contextmanager
def without(part: Part, off: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Takes what can be replaced out of this process, while `off` returns true.

    Raises:
        AttributeError: if there is nothing at a place.
    """

    def switched(kept: Callable[..., Any], neutral: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: (neutral if off() else kept)(*arguments)

    with ExitStack() as replaced:
        for place, neutral in part.places.items():
            made = switched(resolve_name(place), neutral)
            replaced.enter_context(patch(place.replace(":", "."), made))
        yield


def job_of(overrides: Sequence[str], folder: str) -> dict[str, Any]:
    """Returns the job of a training, into a new output folder."""
    settings = [*STEPS_ONLY, *overrides, f"output_dir={fresh(folder)}"]
    return {"recipe": str(ROOT / "recipes" / "qa.py"), "config": str(ROOT / CONFIG), "overrides": settings}


def train(overrides: Sequence[str], folder: str, part: str, on: bool) -> dict[str, Any]:
    """Trains in this process, with or without one of `PARTS`, and returns the average seconds of a step."""
    from toolkit.lab.jobs.training import trained

    steps, chosen = Steps(), PARTS[part]
    job = job_of([*overrides, *([] if on else chosen.settings)], folder)
    with nullcontext() if on else without(chosen), trained(job, steps):
        return {"seconds": chosen.average(steps.clock.steps(WARM_UP - 1)), "losses": steps.losses}


def train_in_turns(overrides: Sequence[str], folder: str, part: str, on: bool) -> dict[str, Any]:
    """Trains in this process, with and without one of `PARTS` in turn, and returns the seconds of all steps.

    Args:
        overrides: settings.
        folder: a scratch folder.
        part: key of `PARTS`.
        on: whether the first step has it.
    """
    from toolkit.lab.jobs.training import trained

    steps = Turns(on)
    with without(PARTS[part], lambda: not steps.on), trained(job_of(overrides, folder), steps):
        both = {"with": steps.seconds(True, WARM_UP), "without": steps.seconds(False, WARM_UP)}
        return {"seconds": statistics.median(both["with"]), **both, "losses": steps.losses}


def sides(part: str, name: str, options: argparse.Namespace, folder: Path) -> list[Side]:
    """Returns the sides of a case: without and with one of `PARTS`, or beginning so if they take turns."""
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
    training = train_in_turns if PARTS[part].turns else train
    made_sides = [
        calling(f"{kind}, {name}", training, overrides=settings, folder=str(folder), part=part, on=on)
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


def by_turns(runs: Runs) -> Runs:
    """Returns the median seconds of all steps without, and with, of each pair of runs in which they took turns."""
    pairs = list(zip(*runs.values(), strict=True))
    return {
        name: [{"seconds": statistics.median([*first[turn], *second[turn]])} for first, second in pairs]
        for name, turn in zip(runs, ("without", "with"), strict=True)
    }


def measure(part: str, options: argparse.Namespace) -> None:
    """Runs the pairs of all cases and writes the result.

    Raises:
        SystemExit: if the losses differ.
    """
    cases: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name in QUICK_CASES if options.quick else CASES:
            runs = interleave(sides(part, name, options, Path(folder)), options)
            if len({tuple(run["losses"]) for each in runs.values() for run in each}) > 1:
                raise SystemExit(f"{name}: {part} change the losses")
            timed = by_turns(runs) if PARTS[part].turns else runs
            cases[name] = compared(timed, f"no {part}, {name}", f"{part}, {name}")
    removed = [*PARTS[part].places, *PARTS[part].settings]
    main_case = next(iter(cases))
    figures = {**cases[main_case], "case": main_case, "cases": cases, "removed": removed}
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
