"""Trains and measures one variant of a comparison; called in a separate process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from toolkit.api.run import overall_scores
from toolkit.base.files import read_json
from toolkit.base.run_folder import RunFolder
from toolkit.distributed.collectives import data_sum, objects_of_all, on_main
from toolkit.distributed.exchange import EXCHANGED_BYTES, EXCHANGES
from toolkit.lab.compare.bootstrap import resampled
from toolkit.lab.compare.meter import Meter
from toolkit.lab.jobs.training import trained
from toolkit.report.results import summary_figures
from toolkit.tracking.jsonl import read_metrics

if TYPE_CHECKING:
    from toolkit.api.run import FitResult, Run
    from toolkit.system.memory import MemoryUse


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trains, and returns the measurements.

    Args:
        job: as for `toolkit.lab.jobs.training.trained`, with `draws`, the number of bootstrap sets for the intervals of
            metrics.
    """
    meter = Meter()
    with trained(job, meter) as (run, result):
        real, positions = (
            data_sum(run.accelerator, run.mesh, *map(float, counts)) for counts in (meter.real, meter.positions)
        )
        steps = {"seconds": meter.seconds, "real": real, "positions": positions, "items": meter.items}
        ranks = objects_of_all({"memory": _memory(result.memory), "exchange": _exchange(result)})
        return on_main(run.accelerator, _measurement, run, result, steps, ranks, job["draws"])


def _memory(memory: MemoryUse) -> dict[str, int]:
    return asdict(memory) | {"rest": memory.rest}


def _exchange(result: FitResult) -> dict[str, float]:
    names = {"collectives": EXCHANGES, "bytes": EXCHANGED_BYTES}
    # What DeepSpeed sends is not known.
    return {name: result.further[key] for name, key in names.items() if key in result.further}


def _measurement(
    run: Run, result: FitResult, steps: dict[str, Any], ranks: list[dict[str, Any]], draws: int
) -> dict[str, Any]:
    evaluation = result.evaluations.get("validation")
    scores = [score for score in overall_scores(run.task) if evaluation and score.name in evaluation.metrics]
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
