"""Commands that use a finished run on rows: predict, evaluate.

On any number of processes: `accelerate launch -m toolkit predict RUN --input FILE`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.api.batch import EvalData
from toolkit.base.files import expanded
from toolkit.base.outputs import output_file
from toolkit.base.run_folder import RunFolder
from toolkit.commands import options
from toolkit.commands.options import Command, open_trained

if TYPE_CHECKING:
    from toolkit.deploy.predict import AnswerOptions, Input
    from toolkit.deploy.trained import TrainedRun


SHOWN = 3
"""Number of predictions, and of unusable rows, that are shown."""


def add_predict(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the inputs and the output file."""
    options.add_run(parser, bad_rows="skip; their reasons are in the column error")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--input", metavar="FILE", action="append", help="rows, a folder of files, or one file; may be repeated"
    )
    given.add_argument(
        "--input-text",
        metavar="TEXT",
        action="append",
        help="a text, or COLUMN=TEXT for several columns; may be repeated",
    )
    named = "INPUT.predictions and the input's format beside it, else .csv; the terminal for texts and single files"
    options.add(parser, "--output", default_text=named)
    parser.add_argument("--threshold", type=options.fraction, metavar="P", help="add the column unsure: score below P")
    parser.add_argument("--all-scores", action="store_true", help="add a column with the score of every class")


def run_predict(arguments: argparse.Namespace) -> None:
    """Writes the rows of the inputs with their predictions, in order, or shows those of single inputs.

    Raises:
        DataError: if an input or its rows cannot be used.
        InputError: if the run cannot be opened, or the output file cannot be written or is an input.
    """
    from toolkit.deploy.predict import AnswerOptions, file_inputs, text_input
    from toolkit.deploy.trained import read_settings

    output = _output(arguments)
    options = AnswerOptions(arguments.threshold, arguments.all_scores)
    options.check(read_settings(expanded(arguments.run), arguments.recipe)[1])
    run = open_trained(arguments)
    inputs = file_inputs(run, arguments.input) if arguments.input else [text_input(run, arguments.input_text)]
    if arguments.bad_rows == "error" or output is None:
        _refuse_bad_rows(inputs)
    if output is None:
        _show(run, inputs, options)
    else:
        _write(run, inputs, output, options)


def _output(arguments: argparse.Namespace) -> Path | None:
    """Returns the file to write; None for the terminal."""
    from toolkit.base.errors import InputError
    from toolkit.data.media.files import COLUMN_OF
    from toolkit.data.writers import WRITERS, check_format

    files = [Path(file) for file in arguments.input or []]
    if arguments.output:
        output = Path(arguments.output)
    elif all(file.suffix.lower() in COLUMN_OF for file in files):
        return None
    elif len(files) > 1:
        raise InputError(
            "--output: the answers to several inputs are written to one file; name it, for instance answers.csv"
        )
    else:
        name = files[0].name.partition("#")[0].partition("{")[0].rstrip("./")
        suffix = Path(name).suffix.lower()
        known = suffix in WRITERS
        stem = Path(name).stem if suffix else name
        output = files[0].with_name(f"{stem}.predictions{suffix if known else '.csv'}")
    check_format(output)
    output = output_file(output)
    options.refuse_input(output, arguments.input or [])
    return output


def _refuse_bad_rows(inputs: list[Input]) -> None:
    from toolkit.data.table import apply_policy

    apply_policy({each.name: each.table for each in inputs}, "error")


def _show(run: TrainedRun, inputs: list[Input], options: AnswerOptions) -> None:
    """Shows every row with its answer on the terminal."""
    from toolkit.base.console import format_value, say, shorten
    from toolkit.data.writers import flat
    from toolkit.deploy.predict import Answers, joined

    data = joined(run, inputs)
    answers = Answers(run.task, inputs, Path("terminal.csv"), options)
    predictions = run.predictions(data)
    if not run.accelerator.is_main_process:
        return
    table = answers.table(run.task.decode(predictions, data))
    for row in table.rows():
        say("")
        for name in table.columns:
            value = row[name]
            text = format_value(value) if isinstance(value, float) else flat(value)
            if text:
                say(f"{name}: {shorten(text) if name in answers.given else text}")


def _write(run: TrainedRun, inputs: list[Input], output: Path, options: AnswerOptions) -> None:
    """Writes every row with its answer, and shows the first ones."""
    from itertools import islice

    from toolkit.base.console import counted, print_lines, say
    from toolkit.data.table import listing
    from toolkit.data.writers import write_table
    from toolkit.deploy.predict import Answers, joined
    from toolkit.distributed.collectives import on_main
    from toolkit.report.scores import described

    data = joined(run, inputs)
    answers = Answers(run.task, inputs, output, options)
    predictions = run.predictions(data)

    def write() -> list[str]:
        records = run.task.decode(predictions, data)
        write_table(output, answers.table(records))
        return [described(run.task.describe(record)) for record in islice(records, SHOWN)]

    print_lines("The first predictions", on_main(run.accelerator, write))
    bad = [(each.name, row) for each in inputs for row in each.table.bad]
    total = len(data.rows) + len(bad)
    if bad:
        say(f"{len(bad)} of {total} rows have no prediction, see the column `error`:", blank_line_before=True)
        say(listing(bad[:SHOWN]))
    say(f"the predictions of {counted(total, 'row')} are in {output}", blank_line_before=True)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the rows and the output file."""
    options.add_run(parser)
    options.add(parser, "--data", required=True)
    options.add(parser, "--output", default_text="none; the metrics as JSON")


def _rows(data: EvalData) -> str:
    """Returns how many rows were evaluated, and how many were not."""
    from toolkit.base.console import counted

    count, skipped = len(data.rows), data.num_skipped
    return counted(count, "row") + (
        f", {skipped} skipped as unusable ({skipped / (count + skipped):.1%})" if skipped else ""
    )


def run_evaluate(arguments: argparse.Namespace) -> None:
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

    output = output_file(arguments.output) if arguments.output else None
    bad = output.with_suffix(".bad_rows.jsonl") if output else RunFolder(expanded(arguments.run)).bad_rows_evaluate
    for file, what in ((output, "--output"), (bad, "--data: the list of unusable rows")):
        if file:
            options.refuse_input(file, [arguments.data], what)
    run = open_trained(arguments, skips_rows=True)
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


COMMANDS = {
    "predict": Command(add_predict, run_predict),
    "evaluate": Command(add_evaluate, run_evaluate),
}
