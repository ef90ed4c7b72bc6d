"""Trains one variant and measures it: `python -m toolkit.lab.compare.worker JOB.json`."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.base.errors import ToolkitError
from toolkit.base.exits import ENDED_ELSEWHERE, leave_group, unexpected
from toolkit.base.processes import die_with_parent, end_process
from toolkit.recipe import load_settings, load_task_type

FAILED = "error.txt"
MEASURED = "measurement.json"


def main(job: str) -> None:
    """Trains as the job says; what was measured, or the error, goes into the job's folder."""
    work = json.loads(Path(job).read_text(encoding="utf-8"))
    folder = Path(work["folder"])
    try:
        _measure(work)
    except Exception as error:
        ours = isinstance(error, ToolkitError)
        text = str(error) if ours else unexpected(error)
        print(text, file=sys.stderr)
        if text != ENDED_ELSEWHERE:
            with suppress(FileExistsError), (folder / FAILED).open("x", encoding="utf-8") as file:  # the first counts
                file.write(text if ours else f"{type(error).__name__}: {error}")
        end_process(error.exit_code if isinstance(error, ToolkitError) else 1)


def _measure(work: dict[str, Any]) -> None:
    from toolkit.distributed.collectives import all_sum, on_main
    from toolkit.engine import fit
    from toolkit.lab.compare.meter import Meter
    from toolkit.run import prepared_run

    task_type = load_task_type(work["recipe"])
    cfg = load_settings(task_type, work["config"], work["overrides"]).config
    meter = Meter()
    with prepared_run(cfg, task_type(cfg), Path(work["recipe"]), meter) as job:
        result = fit(job)
        real, positions = (all_sum(job.accelerator, *map(float, counts)) for counts in (meter.real, meter.positions))
        on_main(job.accelerator, _write, work, job, result, meter, real, positions)
    leave_group()


def _write(work: dict[str, Any], job: Any, result: Any, meter: Any, real: list[float], positions: list[float]) -> None:
    """Writes what was measured, last of all: a folder that has it is finished."""
    from dataclasses import asdict

    from toolkit.base.files import write_json
    from toolkit.distributed.flat import EXCHANGED_BYTES, EXCHANGES
    from toolkit.lab.compare.bootstrap import resampled
    from toolkit.report.results import summary_figures
    from toolkit.tracking.jsonl import read_metrics

    name, greater = job.best.name, job.best.greater_is_better
    values: list[float] = []
    evaluation, metric = result.evaluations.get("validation"), name.removeprefix("eval_")
    if evaluation is not None and metric != "loss":
        data = job.data.evals["validation"]
        values = resampled(job.task, evaluation.predictions, data, metric, work["draws"])
    history = read_metrics(job.output_dir / "metrics.jsonl")
    facts = json.loads((job.output_dir / "run.json").read_text(encoding="utf-8"))
    measured = {
        "metric": {"name": name, "greater_is_better": greater, "draws": values},
        "figures": summary_figures(job, result),
        "memory": asdict(result.memory) | {"rest": result.memory.rest},
        "steps": {"seconds": meter.seconds, "real": real, "positions": positions, "items": meter.items},
        "exchange": {"collectives": result.further.get(EXCHANGES, 0), "bytes": result.further.get(EXCHANGED_BYTES, 0)},
        "loss": [[line["step"], line["loss"]] for line in history if line.get("loss") is not None],
        "device": str(job.accelerator.device.type),
        "hardware": facts["hardware"],
        "versions": facts["versions"],
    }
    write_json(Path(work["folder"]) / MEASURED, measured)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    die_with_parent()
    main(sys.argv[1])
