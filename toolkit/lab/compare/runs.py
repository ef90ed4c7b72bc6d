"""The runs of a comparison: which there are, how they run in turn and are shown, and which model is kept."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeGuard

import psutil
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text as RichText

from toolkit.api.batch import Batch
from toolkit.api.run import FitResult, Run, overall_scores
from toolkit.api.training import Callback
from toolkit.base.console import format_duration, rich_console, shorten
from toolkit.base.errors import RunError
from toolkit.base.files import read_json
from toolkit.base.run_folder import RunFolder
from toolkit.config.keys import written
from toolkit.distributed.collectives import data_sum, objects_of_all, on_main
from toolkit.distributed.exchange import EXCHANGED_BYTES, EXCHANGES
from toolkit.lab.compare.statistics import PER_CLASS
from toolkit.lab.compare.variants import LOGGED, Checked, Variant
from toolkit.lab.jobs import jobs
from toolkit.lab.jobs.training import trained
from toolkit.metrics.score import Score
from toolkit.report.results import summary_figures
from toolkit.report.subsets import resampled
from toolkit.tracking.jsonl import read_metrics


@dataclass(frozen=True)
class Comparison:
    """The variants to run, and how."""

    recipe: Path  # the recipe's file
    config: Path  # the YAML file
    overrides: Sequence[str]  # overrides for all variants
    checked: Checked  # the variants
    launch: jobs.Launch  # how processes are started
    seeds: Sequence[int]  # each variant runs once with each of these seeds
    draws: int  # number of bootstrap sets for the intervals of metrics
    code: str  # digest of the toolkit's and the recipe's code
    folder: Path  # output folder
    metric: Score  # the main metric, with its prefix
    keep_best: bool = False  # whether to keep the model of the best run
    # estimates of the variants by name, if they are parallel strategies
    estimates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass
class Repeat:
    """The run of a variant with one seed, and its state; `seconds` is the time of its process."""

    variant: Variant
    seed: int
    state: Literal["waiting", "running", "done", "kept", "failed", "skipped"] = "waiting"
    seconds: float = 0.0
    reason: str = ""
    measured: dict[str, Any] | None = None

    def score(self, metric: Score) -> float | None:
        """Returns the value of a metric; None if the run has none."""
        return None if self.measured is None else self.measured["figures"].get(metric.name)


def repeats_of(comparison: Comparison, failures: bool = False) -> list[Repeat]:
    """Returns all runs in order; failed ones wait to be tried again unless `failures`."""
    repeats = [Repeat(variant, seed) for seed in comparison.seeds for variant in comparison.checked.variants]
    for repeat in repeats:
        if repeat.variant.name in comparison.checked.refused:
            repeat.state, repeat.reason = "skipped", "; ".join(comparison.checked.refused[repeat.variant.name])
        else:
            _load_finished(comparison, repeat, failures)
    return repeats


def command_of(comparison: Comparison, variant: Variant) -> str:
    """Returns the command that trains a variant by itself."""
    start, launch = ["toolkit", "train"], comparison.launch
    processes = variant.technique.processes if variant.technique else launch.processes
    run = [str(comparison.recipe), "--config", str(comparison.config)]
    if launch.file is not None:
        start = ["accelerate", "launch", "--config_file", str(launch.file), "--num_processes", str(processes)]
    elif processes > 1:
        run += ["--processes", str(processes)]
    return shlex.join([*start, *run, *comparison.overrides, *variant.overrides])


def folder_of(comparison: Comparison, repeat: Repeat) -> Path:
    """Returns the folder of a run, which is named after its job; see `toolkit.lab.jobs.jobs.job_name`."""
    name = jobs.job_name(f"seed-{repeat.seed}", job_of(comparison, repeat))
    return comparison.folder / "runs" / repeat.variant.slug / name


def trained_run(comparison: Comparison, repeat: Repeat) -> RunFolder:
    """Returns the output folder of the training of a run."""
    return RunFolder(folder_of(comparison, repeat) / "run")


def job_of(comparison: Comparison, repeat: Repeat) -> dict[str, Any]:
    """Returns the job of a run: everything that its results depend on."""
    cfg = comparison.checked.configs[repeat.variant.name]
    own = [*repeat.variant.overrides, f"seed={repeat.seed}"]
    overrides = [*comparison.overrides, *written(LOGGED), *jobs.without_checkpoints(cfg), *own]
    job = jobs.training_job(comparison.recipe, comparison.config, overrides, cfg, comparison.launch, comparison.code)
    return job | {"draws": comparison.draws}


def _load_finished(comparison: Comparison, repeat: Repeat, failures: bool) -> None:
    folder = folder_of(comparison, repeat)
    if (measured := jobs.measured_in(folder)) is not None:
        repeat.measured, repeat.state = measured, "kept"
    elif failures and (reason := jobs.failure_in(folder)) is not None:
        repeat.state, repeat.reason = "failed", reason


def best_run(repeats: Sequence[Repeat], metric: Score) -> Repeat | None:
    """Returns the best run of the variant with the best mean among the most complete; the first wins a tie."""
    scores: dict[str, list[tuple[float, Repeat]]] = {}
    sign = 1 if metric.greater_is_better else -1
    for repeat in repeats:
        if (score := repeat.score(metric)) is not None:
            scores.setdefault(repeat.variant.name, []).append((sign * score, repeat))
    if not scores:
        return None
    most = max(map(len, scores.values()))
    complete = [runs for runs in scores.values() if len(runs) == most]
    winner = max(complete, key=lambda runs: fmean(score for score, _ in runs))
    return max(winner, key=lambda run: run[0])[1]


def keep_best(comparison: Comparison, repeats: Sequence[Repeat]) -> Repeat | None:
    """Deletes the models of all runs but the best one, which is returned; does nothing without `--keep-best`."""
    if not comparison.keep_best:
        return None
    best = best_run(repeats, comparison.metric)
    for repeat in repeats:
        if repeat is not best and repeat.state in ("done", "kept", "failed"):
            jobs.remove_model(trained_run(comparison, repeat))
    return best


def run_repeats(comparison: Comparison, repeats: Sequence[Repeat], changed: Callable[[], None]) -> None:
    """Runs everything that is waiting, updates the states of `repeats`, and calls `changed` after each update."""
    failed: dict[str, str] = {}
    succeeded = {repeat.variant.name for repeat in repeats if repeat.state == "kept"}
    for repeat in repeats:
        name = repeat.variant.name
        if repeat.state != "waiting":
            continue
        if name in failed and name not in succeeded:  # other seeds would most likely fail too
            repeat.state, repeat.reason = "failed", failed[name]
            jobs.note_failure(folder_of(comparison, repeat), failed[name])
        else:
            repeat.state = "running"
            changed()
            began = time.monotonic()
            run_once(comparison, repeat)
            repeat.seconds = time.monotonic() - began
            # At most one model of each variant is on disk.
            keep_best(comparison, [each for each in repeats if each.variant is repeat.variant])
            if repeat.reason:
                failed[name] = repeat.reason
            else:
                succeeded.add(name)
        changed()


def run_once(comparison: Comparison, repeat: Repeat) -> None:
    """Trains and measures one run; its state says how it ended."""
    folder, job = folder_of(comparison, repeat), job_of(comparison, repeat)
    further = {"keep_model": comparison.keep_best}
    error = jobs.run_job("compare", job, folder, comparison.launch, further, lambda: {"load": load_average()})
    if error is not None:
        repeat.state, repeat.reason = "failed", error
        return
    repeat.measured, repeat.state = jobs.measured_in(folder), "done"


MARKS = {"waiting": ".", "running": "running", "kept": "done before", "failed": "failed", "skipped": "-"}
MAX_SEEDS = 4
"""Maximum number of seeds with a column each; for more seeds, a column shows the number of finished runs."""


def run_and_show(comparison: Comparison, repeats: Sequence[Repeat], load: float | None) -> None:
    """Runs what is waiting; shows it as a live table on a terminal, otherwise as a line per run."""
    console = rich_console()
    if warning := busy_at_start(load, os.cpu_count() or 1):
        console.print(RichText(warning))
    if sys.stdout.isatty():
        with Live(_progress(comparison, repeats), console=console, auto_refresh=False) as live:
            run_repeats(comparison, repeats, lambda: live.update(_progress(comparison, repeats), refresh=True))
        return
    told = {id(repeat) for repeat in repeats if repeat.state != "waiting"}
    kept = sum(repeat.state == "kept" for repeat in repeats)
    print(f"{len(repeats) - len(told)} runs to do, {kept} done before", flush=True)

    def tell() -> None:
        for repeat in repeats:
            if id(repeat) not in told and repeat.state not in ("waiting", "running"):
                told.add(id(repeat))
                place = f"[{len(told)}/{len(repeats)}] {repeat.variant.name}, seed {repeat.seed}"
                console.print(RichText(f"{place}: {_mark(repeat)}{f': {repeat.reason}' if repeat.reason else ''}"))

    run_repeats(comparison, repeats, tell)


def keep_and_show(comparison: Comparison, repeats: Sequence[Repeat]) -> Repeat | None:
    """Keeps the model of the best run with `--keep-best`, training it again if need be, and returns the run."""
    best = keep_best(comparison, repeats)
    if best is not None and not trained_run(comparison, best).model.is_dir():
        what = f"{best.variant.name}, seed {best.seed}"
        print(f"the best run, {what}, is trained again: an earlier comparison did not keep its model", flush=True)
        run_once(comparison, best)
        if best.state == "failed":
            raise RunError(f"the best run, {what}, failed when it was trained again: {best.reason}")
    return best


def _progress(comparison: Comparison, repeats: Sequence[Repeat]) -> RichTable:
    shown = RichTable(box=None, pad_edge=False)
    shown.add_column("variant", overflow="fold")
    seeds = list(comparison.seeds)
    for seed in seeds[:MAX_SEEDS]:
        shown.add_column(f"seed {seed}", justify="right")
    if len(seeds) > MAX_SEEDS:
        shown.add_column("all", justify="right")
    for variant in comparison.checked.variants:
        own = {repeat.seed: repeat for repeat in repeats if repeat.variant.name == variant.name}
        cells = [_mark(own[seed]) for seed in seeds[:MAX_SEEDS]]
        if len(seeds) > MAX_SEEDS:
            cells.append(f"{sum(repeat.state in ('done', 'kept') for repeat in own.values())}/{len(seeds)}")
        shown.add_row(RichText(shorten(variant.name, 60)), *cells)
    return shown


def _mark(repeat: Repeat) -> str:
    return format_duration(repeat.seconds) if repeat.state == "done" else MARKS[repeat.state]


class Meter(Callback):
    """Records seconds, seconds of a processor so far, items, and real and all positions of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.processor: list[float] = []
        self.real: list[int] = []
        self.positions: list[int] = []
        self.items: list[float] = []

    def after_step(self, record: Mapping[str, float]) -> None:
        """Records a step."""
        counts = [count_positions(batch) for batch in self.training.window]
        self.seconds.append(record["seconds"])
        self.processor.append(time.process_time())
        self.items.append(record["num_items"])
        self.real.append(sum(real for real, _ in counts))
        self.positions.append(sum(total for _, total in counts))


def count_positions(batch: Batch) -> tuple[int, int]:
    """Counts real and all positions by the masks, or rows without masks; rows with negative ids are padding."""
    placeholder = batch["row_ids"] < 0
    masks = [mask for name, mask in batch["inputs"].items() if name.endswith("attention_mask") and mask.dim() == 2]
    if not masks:
        return int((~placeholder).sum()), len(placeholder)
    return sum(int(mask[~placeholder].sum()) for mask in masks), sum(mask.numel() for mask in masks)


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains the job of `toolkit.lab.jobs.training.trained`, and returns the measurements.

    Its `draws` is the number of bootstrap sets for the intervals of metrics.
    """
    meter = Meter()
    with trained(job, meter) as (run, result):
        steps = {"seconds": meter.seconds, "processor": meter.processor, "items": meter.items}
        for name, counts in (("real", meter.real), ("positions", meter.positions)):
            steps[name] = data_sum(run.accelerator, run.mesh, *map(float, counts))
        names = {"collectives": EXCHANGES, "bytes": EXCHANGED_BYTES}
        # What DeepSpeed sends is not known.
        sent = {name: result.further[key] for name, key in names.items() if key in result.further}
        # The parts that are shown make up the peak, so the rest includes the copy of a checkpoint.
        memory = asdict(result.memory) | {"rest": result.memory.rest + result.memory.checkpoint_copy}
        if counted := result.further.get("counted_peak_bytes"):
            peak = counted[run.accelerator.process_index]
            memory |= {"train_peak": peak, "rest": max(0, memory["rest"] + peak - memory["train_peak"])}
        ranks = objects_of_all({"memory": memory, "exchange": sent})
        return on_main(run.accelerator, _measurement, run, result, steps, ranks, job["draws"])


def _measurement(
    run: Run, result: FitResult, steps: dict[str, Any], ranks: list[dict[str, Any]], draws: int
) -> dict[str, Any]:
    evaluation = result.evaluations.get("validation")
    known = [*overall_scores(run.task), *(s for s in run.task.scores if f"eval_{s.name}".startswith(PER_CLASS))]
    scores = [score for score in known if evaluation and score.name in evaluation.metrics]
    drawn = resampled(run.task, evaluation.predictions, run.data.evals["validation"], draws) if evaluation else []
    files = RunFolder(run.output_dir)
    history = read_metrics(files.metrics)
    facts = read_json(files.facts)
    return {
        "metrics": {
            f"eval_{score.name}": {
                "greater_is_better": score.greater_is_better,
                "draws": [metrics[score.name] for metrics in drawn if score.name in metrics],  # the loss is in none
            }
            for score in scores
        },
        "train_rows": facts["num_rows"]["train"],
        "figures": result.figures or summary_figures(run, result),
        "memory": ranks[0]["memory"],
        "ranks": [rank["memory"] for rank in ranks],
        "steps": steps,
        "exchange": {name: fmean(rank["exchange"][name] for rank in ranks) for name in ranks[0]["exchange"]},
        "loss": [[line["step"], line["loss"]] for line in history if line.get("loss") is not None],
        "device": str(run.accelerator.device.type),
        "hardware": facts["hardware"],
        "versions": facts["versions"],
        "energy_source": facts["energy_source"],
    }


MARGIN = 0.5
"""Load above the number of CPUs that is not called busy: a run uses all CPUs, and the comparison itself needs a bit."""


def load_average() -> float:
    """Returns the number of processes that used or waited for a CPU, on average over the last minute."""
    return psutil.getloadavg()[0]


def is_busy(load: float | None, cpus: int) -> TypeGuard[float]:
    """Returns whether more processes want to run than there are CPUs; false if the load is unknown."""
    return load is not None and load > cpus + MARGIN


def busy_at_start(load: float | None, cpus: int) -> str | None:
    """Returns a warning if the machine is busy before the first run."""
    if not is_busy(load, cpus):
        return None
    return (
        f"The machine is busy: its load average is {load:.1f} with {cpus} CPUs. Step times will be unreliable; stop "
        "other programs first."
    )
