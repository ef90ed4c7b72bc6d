"""`toolkit evaluate`: the metrics of a finished run on another labelled file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.api.batch import EvalData
from toolkit.base.console import counted, print_table, say, warn
from toolkit.base.files import write_json
from toolkit.data.readers.raw import Reading
from toolkit.data.table import apply_policy, exclusions, load_table, skipped, write_bad_rows
from toolkit.deploy.trained import TrainedRun
from toolkit.distributed.collectives import on_main
from toolkit.report.scores import Scores, quality_of
from toolkit.system.rank_order import local_main_first


def evaluate_file(
    run: TrainedRun, name: str, file: str, bad_rows: Path, output: Path | None, changed: Sequence[str] = ()
) -> None:
    """Prints the metrics of a run's model on a file, with intervals and baselines, and writes them as JSON.

    `changed` are the overrides with which answers are made, written with the metrics. Skipped rows are written to
    `bad_rows`. Raises DataError if the file or its rows cannot be used.
    """
    data = _read(run, file, bad_rows)
    evaluation = run.evaluation(data)
    quality = on_main(run.accelerator, quality_of, run.task, evaluation, data)
    scores = Scores(run.task, {"validation": evaluation.metrics}, {"validation": quality})
    count, left = len(data.rows), data.num_skipped
    unusable = f", {left} skipped as unusable ({left / (count + left):.1%})" if left else ""
    print_table(f"{name} on {Path(file).name}: {counted(count, 'row')}{unusable}", scores.lines())
    for hint in scores.hints:
        say(hint)
    if output:
        metrics = {f"eval_{name}": value for name, value in evaluation.metrics.items()} | scores.figures
        on_main(run.accelerator, write_json, output, {**metrics, **({"overrides": [*changed]} if changed else {})})
        say(f"also written to {output}")


def _read(run: TrainedRun, file: str, bad_rows: Path) -> EvalData:
    """Reads, checks and preprocesses labelled rows; the first process of each node reads, the others use its cache."""
    accelerator, data = run.accelerator, run.cfg.data
    with local_main_first(accelerator):
        table = load_table(file, run.task, data.columns, labelled=True, reading=Reading.of(data))
    bad = apply_policy({"input": table}, data.bad_rows, data.max_bad_rows)["input"]
    if accelerator.is_main_process and bad:
        write_bad_rows({"input": table}, bad_rows)
        warn(f"{skipped(table)}. They are skipped; {bad_rows} lists them.")
    with local_main_first(accelerator):
        found = run.preprocessed(table.head(data.max_eval_samples).rows, labelled=True, num_skipped=bad)
    for each in (*exclusions(table), *run.omissions(table.source, found)):
        say(f"{each}.")
    return found
