"""Predict new rows with a finished run: `toolkit predict RUN --data FILE [--output FILE]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.commands import _options, _trained_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the rows and where predictions go."""
    _trained_run.add_arguments(parser)
    _options.add(parser, "--data", required=True)
    _options.add(parser, "--output", default_text="the name of the --data file + .predictions.jsonl")


def work(arguments: argparse.Namespace) -> None:
    """Writes one JSON line per row, in row order."""
    from toolkit.base.console import print_lines, say
    from toolkit.deploy.trained import read_rows
    from toolkit.distributed.collectives import on_main
    from toolkit.report.results import write_predictions
    from toolkit.report.text import described

    source = Path(arguments.data)
    output = _options.output_file(arguments.output or source.with_name(f"{source.name}.predictions.jsonl"))
    run = _trained_run.open_trained(arguments)
    bad = output.with_name(f"{output.stem}.bad_rows.jsonl")
    data = read_rows(run, arguments.data, labelled=False, report=bad)
    predictions = run.predictions(data)
    records = on_main(run.accelerator, lambda: write_predictions(run.task.decode(predictions, data), output))
    print_lines("The first predictions", [described(run.task.describe(record)) for record in records])
    say(f"{len(data.rows)} predictions are in {output}", blank_line_before=True)
