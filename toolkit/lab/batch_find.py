"""Finds a micro-batch: tries sizes, by the plan's estimate first, then by real steps in separate processes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from toolkit.api.batch import looked_up
from toolkit.api.run import Run
from toolkit.api.training import Callback
from toolkit.base.console import format_bytes, say
from toolkit.base.errors import ConfigError, InputError, RunError
from toolkit.config.keys import written
from toolkit.config.sections import Config, TrainConfig
from toolkit.data.batching.budget import lengths_of
from toolkit.distributed.collectives import data_sum, objects_of_all
from toolkit.distributed.strategies.auto_batch_size import is_out_of_memory
from toolkit.document.blocks import Block, Cell, Code, Figure, Page, Section, Table, Text
from toolkit.document.charts import line_chart
from toolkit.document.svg import Drawing
from toolkit.footprint.simulate import Footprint, Subject, simulate
from toolkit.lab.jobs.jobs import Outcome, Trial, batch_and_accumulation, run_trials, step_rows
from toolkit.lab.jobs.training import FEW_STEPS, trained, unfrozen_at_once
from toolkit.lab.plan.estimates import estimated
from toolkit.lab.plan.measure import Correction, Costs, Watch, fitted
from toolkit.lab.plan.report import parse_bytes
from toolkit.lab.plan.subject import resized, subject_of
from toolkit.lab.tool import Report, Request
from toolkit.modalities.text import TEXTS
from toolkit.optim.presets import PRESETS
from toolkit.report.sections import bytes_cell
from toolkit.system.limits import available_memory

OUT_OF_MEMORY = "out of memory: "
"""How the error of a trial begins that had too little memory."""


def longest_steps(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains on the longest rows, which need the most memory, and returns it beside its prediction."""
    watch, counted = Watch(), list[int]()

    def changed(run: Run) -> Run:
        counted.append(len(run.data.train))
        return _with_longest_rows(run)

    with told_of_memory(), trained(job, watch, changed=changed) as (run, result):
        batch = looked_up(watch.largest[run.unpadded])
        footprint = simulate(Subject(run.cfg, run.task, run.model.config, batch, run.accelerator.device))
        ranks = [*zip(objects_of_all(asdict(result.memory)), objects_of_all(asdict(footprint)), strict=True)]
        memory, predicted = max(ranks, key=lambda rank: rank[0]["train_peak"])
        rows = {"step_rows": step_rows(run.cfg, run.accelerator.num_processes), "epoch_rows": counted[0]}
        return {"memory": memory, "footprint": predicted, **rows}


class _Timer(Callback):
    """Records the time and the rows of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.rows: list[float] = []

    def after_step(self, record: Mapping[str, float]) -> None:
        """Records a step."""
        self.seconds.append(record["seconds"])
        self.rows.append(float(sum((batch["row_ids"] >= 0).sum() for batch in self.training.window)))


def timed_steps(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains the run's own steps, and returns the `seconds` of each and its `rows` over all processes."""
    timer = _Timer()
    with told_of_memory(), trained(job, timer) as (run, _):
        return {"seconds": timer.seconds, "rows": data_sum(run.accelerator, run.mesh, *timer.rows)}


def _with_longest_rows(run: Run) -> Run:
    """Returns a run whose training rows are only the longest ones: those of one step."""
    features = run.data.train
    order = np.argsort(-lengths_of(features).sum(axis=1), kind="stable")
    rows = order[: step_rows(run.cfg, run.accelerator.num_processes)]
    left_out = ["row_id", *{TEXTS}.intersection(features.column_names)]  # augmentation shortens texts
    longest = features.remove_columns(left_out).select(rows).add_column("row_id", range(len(rows)))
    return replace(run, data=replace(run.data, train=longest, kept=None))


@contextmanager
def told_of_memory() -> Iterator[None]:
    """Turns an error about memory into one that the command knows; the launch ends on all ranks with it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(OUT_OF_MEMORY + str(error).strip().split("\n")[0]) from error


STEP = 1.5
"""Least factor between two sizes: closer divisors of a window are skipped."""
SCALES = {"linear": 1.0, "sqrt": 0.5}
"""Power of the window's growth by which each rule scales the learning rate: linear (Goyal et al. 2017, arXiv
1706.02677), square root (Hoffer et al. 2017, arXiv 1705.08741)."""


@dataclass(frozen=True)
class Size:
    """A micro-batch to try, in tokens if the run has a budget of them; `window` counts the rows of each data rank."""

    micro_batch: int
    rows: int
    window: int
    settings: dict[str, Any]

    @property
    def overrides(self) -> list[str]:
        """The settings as overrides of the command line."""
        return written(self.settings)


def sizes_of(cfg: Config, longest: int, most_rows: int, reference: float, scale: str | None) -> list[Size]:
    """Returns the sizes to try, the smallest first.

    Up to the configured window, the window stays and accumulation changes, so that every size trains the same steps.
    With a rule for the learning rate (`scale`), windows then double up to `most_rows`. Rows are those of a data rank;
    `reference` are those of a step for which the configured rate is meant, and `longest` the tokens of the longest row.
    """
    train, window = cfg.train, window_of(cfg)
    by_tokens = train.max_tokens_per_batch is not None

    def size(rows: int, window: int, tokens: int | None = None) -> Size:
        rates = _rates(cfg, window / reference, scale)
        if not by_tokens:
            return Size(rows, rows, window, _made(train, rows, window / window_of(cfg), window // rows) | rates)
        tokens = rows * longest if tokens is None else tokens
        made = {"train.max_tokens_per_batch": tokens}
        if window != window_of(cfg):
            made |= _made(train, window, window / window_of(cfg), 1)
        return Size(tokens, max(1, tokens // longest), window, made | rates)

    doubled = [*(2**power for power in range((window - 1).bit_length())), window]
    found = [size(rows, window) for rows in (doubled if by_tokens else _divisors(window))]
    found.append(size(train.micro_batch, window, train.max_tokens_per_batch))
    while scale is not None and (window := 2 * window) <= most_rows:
        found.append(size(window, window))
    return sorted({each.micro_batch: each for each in found}.values(), key=lambda each: each.micro_batch)


def _made(train: TrainConfig, rows: int, growth: float, accumulation: int) -> dict[str, Any]:
    """Returns the settings of micro-batches of `rows` rows in a window that is `growth` times the configured one."""
    batch = {"train.per_device_train_batch_size": rows}
    if train.global_batch_size is None:
        return batch | {"train.gradient_accumulation_steps": accumulation}
    return batch | ({} if growth == 1 else {"train.global_batch_size": round(train.global_batch_size * growth)})


def window_of(cfg: Config) -> int:
    """Returns the rows of a step on each data rank."""
    return prod(batch_and_accumulation(cfg))


def _divisors(window: int) -> list[int]:
    kept = [1]
    for size in range(2, window):
        if window % size == 0 and STEP * kept[-1] <= size <= window / STEP:
            kept.append(size)
    return [*kept, window]


def _rates(cfg: Config, growth: float, scale: str | None) -> dict[str, Any]:
    """Returns the learning rates for a window that has grown by a factor."""
    if scale is None or growth == 1:
        return {}
    train, factor = cfg.train, growth ** SCALES[scale]
    rates = {"learning_rate": train.learning_rate, "head_learning_rate": train.head_learning_rate}
    return {f"train.{name}": float(f"{rate * factor:.4g}") for name, rate in rates.items() if rate is not None}


GAIN = 0.1
"""A size is fast enough if no larger one is faster by more than this part for each doubling."""
KILLED = -9
"""How a process ends that the system kills because memory is short."""


@dataclass
class Tried:
    """A size and what is known of it."""

    size: Size
    estimate: int | None
    """Bytes at the peak of a step that the plan expects on each device, scaled by the peaks of smaller sizes."""
    peak: int | None = None  # measured bytes, on the longest rows, of the rank that needs the most
    seconds: list[list[float]] = field(default_factory=list)
    """Those of each timed step, `[rounds][steps]`; every round has the same steps."""
    rows: list[float] = field(default_factory=list)  # rows of each step, over all processes
    refused: str | None = None  # why it cannot be used

    @property
    def rates(self) -> np.ndarray:
        """Rows per second of each step, in the faster of its rounds: other programs can only make it slower."""
        return np.asarray(self.rows) / np.min(self.seconds, axis=0)

    def gain(self, smaller: Tried) -> float:
        """Returns by what factor it is faster than a smaller size for each doubling: the median over steps."""
        doublings = math.log2(self.size.micro_batch / smaller.size.micro_batch)
        return float(np.median(self.rates / smaller.rates)) ** (1 / doublings)

    @property
    def spread(self) -> float:
        """By what part its slower rounds took longer than the faster ones: the median over steps."""
        return float(np.median(np.max(self.seconds, axis=0) / np.min(self.seconds, axis=0))) - 1

    @property
    def fits(self) -> bool:
        """Whether it was trained and timed."""
        return self.refused is None


class Search:
    """Tries sizes upwards until one does not fit, then times them again downwards, so that a drift favours none."""

    def __init__(self, subject: Subject, request: Request, capacity: int, steps: int) -> None:
        self.subject, self.request, self.capacity, self.steps = subject, request, capacity, steps
        self._measured: list[tuple[int, Costs]] = []
        """Measured peaks, and what was predicted for the same rows."""

    def run(self, sizes: Sequence[Size]) -> list[Tried]:
        """Returns what was found about each size, in the order given (increasing)."""
        found: list[Tried] = []
        for size in sizes:
            try:
                cfg = self.request.load(size.overrides)
            except ConfigError as error:
                found.append(Tried(size, None, refused="; ".join(error.problems)))
                continue
            expected = self._costs(simulate(resized(self.subject, cfg)), cfg)
            # How the measurements of smaller sizes relate to their predictions.
            correction = fitted(self._measured[0], self._measured[-1]) if self._measured else Correction()
            found.append(tried := Tried(size, correction.peak(expected)))
            if tried.estimate is not None and tried.estimate > self.capacity:
                tried.refused = f"its estimate of {format_bytes(tried.estimate)} exceeds the memory"
            else:
                self._train(tried, cfg)
            if tried.refused is not None:
                break
        self._time([each for each in reversed(found) if each.fits])
        return found

    def _costs(self, footprint: Footprint, cfg: Config) -> Costs:
        """Returns what each device needs if a single one needed `footprint`."""
        return estimated(footprint, cfg, self.request.launch.processes)

    def _train(self, tried: Tried, cfg: Config) -> None:
        """Trains on the longest rows, then times the run's own steps."""
        outcomes = self.launched((tried, "longest", 2), (tried, "timed", self.steps + 1))
        failed = next((outcome for outcome in outcomes if outcome.error is not None), None)
        if failed is not None:
            if failed.died != KILLED and not str(failed.error).startswith(OUT_OF_MEMORY):
                raise RunError(f"a micro-batch of {tried.size.micro_batch}: {failed.error}")
            tried.refused = "it does not fit: " + str(failed.error).removeprefix(OUT_OF_MEMORY).split("\n")[0]
            return
        longest, timed = (outcome.result for outcome in outcomes)
        tried.peak = longest["memory"]["train_peak"]
        self._measured.append((tried.peak, self._costs(Footprint(**longest["footprint"]), cfg)))
        if tried.peak > self.capacity:
            tried.refused = f"its peak of {format_bytes(tried.peak)} exceeds the memory"
        elif longest["step_rows"] > longest["epoch_rows"]:
            tried.refused = f"its step has {longest['step_rows']} rows, an epoch only {longest['epoch_rows']}"
        else:
            self._add(tried, timed)

    def _time(self, fitting: Sequence[Tried]) -> None:
        """Times sizes once more, in one launch."""
        outcomes = self.launched(*((tried, "timed", self.steps + 1) for tried in fitting)) if fitting else []
        for tried, outcome in zip(fitting, outcomes, strict=True):
            if outcome.error is not None:
                raise RunError(f"a micro-batch of {tried.size.micro_batch}, which fitted before: {outcome.error}")
            self._add(tried, outcome.result)

    def _add(self, tried: Tried, timed: dict[str, Any]) -> None:
        """Adds the steps of a round but for the first, which starts kernels and allocators."""
        tried.seconds.append(timed["seconds"][1:])
        tried.rows = timed["rows"][1:]
        say(f"{tried.size.micro_batch}: {median(timed['seconds'][1:]):.3g} s per step")

    def launched(self, *works: tuple[Tried, str, int]) -> list[Outcome]:
        """Runs steps of sizes (`longest` or `timed`) in one launch; what they write is removed afterwards."""
        with TemporaryDirectory(prefix="batch-find-") as name:
            folder, trials = Path(name), []
            for number, (tried, work, steps) in enumerate(works):
                more = [*tried.size.overrides, f"train.max_steps={steps}", f"output_dir={folder}/run-{number}"]
                job = self.request.job | {"overrides": [*self.request.overrides, *more]}
                trials.append(Trial(f"batch_find_{work}", job, folder / f"{number}.json"))
            launch = self.request.launch
            return run_trials(trials, folder / "batch_find.log", launch.processes, launch.file, launch.environ)


def best_of(tried: Sequence[Tried]) -> Tried:
    """Returns the smallest size that is nearly as fast as every larger one that fits; see `GAIN`."""
    fitting = [each for each in tried if each.fits]
    for place, each in enumerate(fitting):
        if all(larger.gain(each) <= 1 + GAIN for larger in fitting[place + 1 :]):
            return each
    raise RunError(f"no micro-batch fits: with {tried[0].size.micro_batch}, {tried[0].refused}")


SPEED = "Speed of each micro-batch"
MOST_SPREAD = 0.25
"""From this difference between the rounds on, other programs have disturbed the measurement."""


@dataclass(frozen=True, kw_only=True)
class MicroBatches(Report):
    """What was found; sizes are in `unit`."""

    FILE = "batch_find"
    best: int
    largest: int
    configured: int
    spread: float  # by what part the slower rounds took longer
    faster: float | None  # how many times as fast as the configured size the best one is; None if that was not timed
    overrides: Sequence[str]
    overrides_of_largest: Sequence[str]
    sizes: Sequence[Mapping[str, Any]]
    unit: str
    scale_lr: str | None
    memory: int
    steps: int
    processes: int
    config: str
    command: str

    def page(self) -> Page:
        """Returns the best and the largest size, and what is known of each."""
        how = (
            "Each size trained two steps on the longest rows, which gave its peak of memory, and "
            f"{self.steps} steps of the run's own rows in each of two rounds, the second in the opposite order; a step "
            "counts with the faster one. Rows per second are those of all processes, the median over steps. Gain: per "
            "doubling, over the size before. Estimate: that of toolkit plan, scaled by the peaks measured at smaller "
            f"sizes. Each of {self.processes} processes may use {format_bytes(self.memory)}."
        )
        figure = Figure(SPEED, self._drawing(), file="batch_find.svg")
        sections = [Section("Result", self._result()), Section("Sizes", [figure, self._sizes(), Text(how)])]
        return Page(f"Micro-batches for {self.config}", "The largest that fits, and the fastest.", sections)

    def on_terminal(self) -> list[Block]:
        """Returns the sizes that were tried, and the result."""
        return [self._sizes(), *self._result()]

    def _result(self) -> list[Block]:
        overrides = "\n".join(["Overrides of the best:", *(f"  {override}" for override in self.overrides)])
        return [Text(" ".join(self.verdict())), Code(overrides)]

    def verdict(self) -> list[str]:
        """Returns what was found, as sentences."""
        said = [f"Best: {self.best} {self.unit}; no larger one is {GAIN:.0%} faster for each doubling."]
        if self.faster is not None and self.best != self.configured:
            said.append(f"It is {self.faster:.2f} times as fast as the configured {self.configured} {self.unit}.")
        said.append(f"Largest: {self.largest} {self.unit}; {self._limit()}.")
        if self.spread > MOST_SPREAD:
            said.append(f"The two rounds differ by up to {self.spread:.0%}: repeat this on a quiet machine.")
        return said

    def _limit(self) -> str:
        """Returns what keeps the largest size from being larger."""
        for each in self.sizes:
            if each["refused"] and each["micro_batch"] > self.largest:
                return f"with {each['micro_batch']}, {each['refused'].partition(':')[0]}"
        return "the whole step at once" if self.scale_lr is None else "no larger one was tried"

    def _sizes(self) -> Table:
        marks = {self.best: "best", self.largest: "largest"}
        rows = [
            [
                each["micro_batch"], each["rows_of_a_step"], bytes_cell(each["estimate"]), bytes_cell(each["peak"]),
                each["seconds"], each["rows_per_second"],
                None if (gain := each["gain_per_doubling"]) is None else Cell(f"{gain:+.0%}", gain),
                each["refused"] or marks.get(each["micro_batch"], ""),
            ]
            for each in self.sizes
        ]  # fmt: skip
        header = [self.unit, "rows/step", "estimate", "peak", "s/step", "rows/s", "gain", ""]
        return Table(header, rows, caption="Sizes that were tried")

    def _drawing(self) -> Drawing:
        fitting = [each for each in self.sizes if each["fits"]]
        points = [each["micro_batch"] for each in fitting], [each["rows_per_second"] for each in fitting]
        best = [self.best] * 2, [0.0, max(points[1])]
        return line_chart(
            {"measured": points, "best": best}, title=SPEED, x_label=f"{self.unit} of a micro-batch",
            y_label="rows per second", zero=True, log_x=True,
        )  # fmt: skip


def report_of(tried: Sequence[Tried], configured: int, **facts: Any) -> MicroBatches:
    """Returns the report on sizes, in increasing order, of which at least one fits; `facts` are its other fields."""
    fitting = [each for each in tried if each.fits]
    best, largest = best_of(tried), fitting[-1]
    own = next((each for each in fitting if each.size.micro_batch == configured), None)
    return MicroBatches(
        best=best.size.micro_batch, largest=largest.size.micro_batch, configured=configured,
        spread=max(each.spread for each in fitting),
        faster=float(np.median(best.rates / own.rates)) if own else None,
        overrides=best.size.overrides, overrides_of_largest=largest.size.overrides,
        sizes=[_facts(each, before) for each, before in zip(tried, [None, *tried], strict=False)],
        **facts,
    )  # fmt: skip


def _facts(each: Tried, before: Tried | None) -> dict[str, Any]:
    size = each.size
    return {
        "micro_batch": size.micro_batch, "rows_of_a_step": size.window, "estimate": each.estimate, "peak": each.peak,
        "fits": each.fits, "refused": each.refused, "overrides": size.overrides,
        "rounds": each.seconds,
        "seconds": float(np.median(np.min(each.seconds, axis=0))) if each.fits else None,
        "rows_per_second": float(np.median(each.rates)) if each.fits else None,
        "gain_per_doubling": each.gain(before) - 1 if each.fits and before is not None and before.fits else None,
    }  # fmt: skip


GROWTH = 8
"""Largest window that a rule for the rate tries, as a multiple of the configured one."""
OF_LIBRARIES = 512 * 2**20
"""Bytes of each process that are not a step's: the context of a GPU, or the libraries on a CPU."""
SHARE = 0.9
"""Share of this machine's free memory that processes on a CPU may use; beyond it, the system might end others."""


def find(
    request: Request, memory: str | None, scale_lr: str | None, reference_rows: int | None, steps: int
) -> MicroBatches:
    """Tries micro-batches, each with timed `steps` in each round.

    `memory` is that of each process (None: what is free); `scale_lr` a key of `SCALES` (None: no larger windows), for a
    rate meant for steps of `reference_rows`. Raises ConfigError if the settings are invalid; InputError if an argument
    has no effect, or the model cannot be simulated; RunError if training fails, or no micro-batch fits.
    """
    if scale_lr is None and reference_rows:
        raise InputError("--reference-rows: has no effect without --scale-lr")
    if scale_lr is not None and PRESETS[request.cfg.train.optim].relative_step:
        optim = request.cfg.train.optim
        raise InputError(f"--scale-lr: {optim} computes its own learning rate, so there is none to scale")
    tried = request.override(FEW_STEPS, unfrozen_at_once(request.cfg))
    train, processes = tried.cfg.train, request.launch.processes
    capacity = parse_bytes(memory, "--memory") if memory else _free(processes)
    request.make_output()
    subject = subject_of(tried.cfg, tried.task)
    window = window_of(tried.cfg)
    ranks = step_rows(tried.cfg, processes) // window
    reference = reference_rows / ranks if reference_rows else window
    sizes = sizes_of(tried.cfg, subject.longest, GROWTH * window, reference, scale_lr)
    return report_of(
        Search(subject, tried, capacity, steps).run(sizes),
        train.max_tokens_per_batch or train.micro_batch,
        unit="rows" if train.max_tokens_per_batch is None else "tokens", scale_lr=scale_lr, memory=capacity,
        steps=steps, processes=processes, config=str(request.config), command=request.command,
    )  # fmt: skip


def _free(processes: int) -> int:
    """Returns the bytes that are free for a step of each process."""
    if torch.cuda.is_available():
        free = min(torch.cuda.mem_get_info(device)[0] for device in range(torch.cuda.device_count()))
    else:
        free = int(SHARE * available_memory()) // processes
    return max(0, free - OF_LIBRARIES)
