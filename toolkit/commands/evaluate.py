"""Evaluate a finished run: `toolkit evaluate RUN --data FILE`.

On any number of processes: `accelerate launch -m toolkit evaluate RUN --data FILE`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.api.batch import EvalData
from toolkit.base.files import expanded
from toolkit.base.run_folder import RunFolder
from toolkit.commands import _trained_run, options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the rows and the output file."""
    _trained_run.add_run(parser)
    options.add(parser, "--data", required=True)
    options.add(parser, "--output", default_text="none; the metrics as JSON")


def _rows(data: EvalData) -> str:
    """Returns how many rows were evaluated, and how many were not."""
    from toolkit.base.console import counted

    count, skipped = len(data.rows), data.num_skipped
    return counted(count, "row") + (
        f", {skipped} skipped as unusable ({skipped / (count + skipped):.1%})" if skipped else ""
    )


def work(arguments: argparse.Namespace) -> None:
    """Prints the metrics of the run's model on a file, with intervals and baselines.

    Raises:
        DataError: if the file or its rows cannot be used.
        InputError: if the run cannot be opened, or the output file cannot be written or is the input.
    """
    from toolkit.base.console import print_table, say
    from toolkit.base.files import write_json
    from toolkit.deploy.trained import read_rows
    from toolkit.distributed.collectives import on_main
    from toolkit.report.scores import Scores, quality_of

    output = options.output_file(arguments.output) if arguments.output else None
    bad = output.with_suffix(".bad_rows.jsonl") if output else RunFolder(expanded(arguments.run)).bad_rows_evaluate
    for file, what in ((output, "--output"), (bad, "--data: the list of unusable rows")):
        if file:
            options.refuse_input(file, [arguments.data], what)
    run = _trained_run.open_trained(arguments, skips_rows=True)
    data = read_rows(run, arguments.data, labelled=True, report=bad)
    evaluation = run.evaluation(data)
    quality = on_main(run.accelerator, quality_of, run.task, evaluation, data)
    scores = Scores(run.task, {"validation": evaluation.metrics}, {"validation": quality})
    title = f"{Path(arguments.run).name} on {Path(arguments.data).name}: {_rows(data)}"
    print_table(title, scores.lines())
    for hint in scores.hints:
        say(hint)
    if output:
        metrics = {f"eval_{name}": value for name, value in evaluation.metrics.items()} | scores.figures
        on_main(run.accelerator, write_json, output, metrics)
        say(f"also written to {output}")
