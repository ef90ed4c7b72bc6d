"""Commands that use a finished run on rows: predict, evaluate, calibrate.

On any number of processes: `toolkit predict --processes N`, or with a launcher, as in
`accelerate launch -m toolkit predict RUN --input FILE`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from toolkit.base.errors import InputError
from toolkit.base.files import expanded, file_sha256, write_json
from toolkit.base.outputs import output_file, output_folder
from toolkit.base.run_folder import RunFolder
from toolkit.commands import options
from toolkit.commands.options import open_trained

TOP_K = 10
"""Documents of a ranking."""


def add_predict(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the inputs and the output file."""
    options.add_run(parser, bad_rows="skip; their reasons are in the column error")
    given = parser.add_mutually_exclusive_group(required=True)
    about = "rows, a folder of files, or one file; may be repeated"
    given.add_argument("--input", metavar="FILE", action="append", help=about)
    about = "a text, or for several columns COLUMN=TEXT or a JSON object; may be repeated"
    given.add_argument("--input-text", metavar="TEXT", action="append", help=about)
    named = "INPUT.predictions and the input's format beside it, else .csv; the terminal for texts and single files"
    options.add_output(parser, named)
    parser.add_argument("--score", action="store_true",
                        help="score given texts and answers: perplexity and loss (language models)")  # fmt: skip
    parser.add_argument("--threshold", type=options.fraction, metavar="P", help="add the column unsure: score below P")
    parser.add_argument("--all-scores", action="store_true", help="add a column with the score of every class")
    options.add(parser, "--corpus", default_text="none; the answers are embeddings")
    options.add_count(parser, "--top-k", f"with --corpus, documents per row (default: {TOP_K})", metavar="K")
    options.add(parser, "--processes", default_text="1, or as started by a launcher")
    precision = "precision of the forward pass (default: as the run)"
    parser.add_argument("--mixed-precision", choices=("no", "bf16"), help=precision)


def run_predict(arguments: argparse.Namespace) -> None:
    """Writes the rows of the inputs with their predictions, in order, or shows those of single inputs."""
    from toolkit.base.console import say
    from toolkit.base.processes import is_first_rank
    from toolkit.deploy.predict import AnswerOptions, answer, file_inputs, text_input
    from toolkit.deploy.trained import decoded_with, read_settings

    output = _output(arguments)
    if output is None and (arguments.processes or 1) > 1:
        raise InputError("--processes: answers on the terminal come from one process; remove it, or add --output")
    contents = AnswerOptions(arguments.threshold, arguments.all_scores, labelled=arguments.score)
    contents.check(read_settings(expanded(arguments.run), arguments.recipe, overrides=arguments.overrides)[1])
    if arguments.top_k is not None and arguments.corpus is None:
        raise InputError("--top-k: has no effect without --corpus; remove it")
    options.start_processes(arguments)
    run = open_trained(arguments)
    if arguments.corpus is not None:
        from toolkit.deploy.search import read_corpus

        contents = replace(contents, ranking=read_corpus(run, arguments.corpus).rankings(arguments.top_k or TOP_K))
    if arguments.input:
        inputs = file_inputs(run, arguments.input, arguments.score)
    else:
        inputs = [text_input(run, arguments.input_text, arguments.score)]
    with options.interruptible("rows"):
        answer(run, inputs, output, contents, arguments.bad_rows != "error", _identity(arguments))
    if output is None or not is_first_rank():
        return
    beside, changed = output.with_name(f"{output.name}.settings.json"), decoded_with(arguments.overrides)
    beside.unlink(missing_ok=True)  # of the answers that were there before
    if changed:
        write_json(beside, {"run": str(expanded(arguments.run).absolute()), "overrides": changed})
        say(f"the changed settings are in {beside}")


def _identity(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns what answers follow from beside the rows: the run's files and the options."""
    from toolkit.data.sources import fingerprint

    names = ("overrides", "per_device_eval_batch_size", "score", "threshold", "all_scores", "top_k", "mixed_precision")
    corpus = arguments.corpus and fingerprint(arguments.corpus)
    return {
        "model": file_sha256(RunFolder(expanded(arguments.run)).facts),  # which has the checksums of its files
        "set of options": [corpus, *(getattr(arguments, name) for name in names)],
    }


def _output(arguments: argparse.Namespace) -> Path | None:
    """Returns the file to write; None for the terminal."""
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
    options.reject_input_as_output(expanded(output), arguments.input or [])
    return output_file(output, arguments.overwrite)


def add_mine(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the rows, the documents and how negatives are chosen."""
    options.add_run(parser)
    options.add(parser, "--data", required=True)
    options.add(parser, "--corpus", default_text="those of --data")
    options.add_output(parser, "none; .jsonl, .parquet, .csv", required=True)
    options.add_count(parser, "--depth", "most documents to look at per row", 50)
    options.add_count(parser, "--negatives", "most negatives per row", 5)
    gap = "by how much a negative's score must be below that of the row's own document (default: any score)"
    parser.add_argument("--gap", type=float, metavar="G", help=gap)
    parser.add_argument("--pairs", action="store_true", help="write pairs with the label 1 or 0, for a reranker")


def run_mine(arguments: argparse.Namespace) -> None:
    """Writes rows with the most similar documents that do not answer them."""
    from toolkit.data.writers import check_format
    from toolkit.deploy.search import Mining, mine

    output = Path(arguments.output)
    check_format(output)
    options.reject_input_as_output(expanded(output), [*filter(None, (arguments.data, arguments.corpus))])
    output = output_file(output, arguments.overwrite)
    mining = Mining(arguments.depth, arguments.negatives, arguments.gap, arguments.pairs)
    mine(open_trained(arguments, skips_rows=True), arguments.data, arguments.corpus, output, mining)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the rows and the output file."""
    options.add_run(parser)
    options.add(parser, "--data", required=True)
    parser.add_argument("--against", metavar="OLD", help="output folder of another run: exit code 1 if RUN is worse")
    parser.add_argument("--margin", type=options.number_from(0), metavar="M",
                        help="with --against, the loss of the score that is allowed (default: 0.01)")  # fmt: skip
    parser.add_argument("--slices", metavar="COLUMN,COLUMN", help="show (or compare) scores by these columns' values")
    served = "compare answers with those of a server like OpenAI's: exit code 1 if they differ"
    parser.add_argument("--endpoint", metavar="URL", help=served)
    parser.add_argument("--endpoint-model", metavar="NAME", help="the server's model (default: its only one)")
    options.add_output(parser, "none; the metrics as JSON. With --against, the folder of the page: RUN-against-OLD")


def run_evaluate(arguments: argparse.Namespace) -> None:
    """Prints the metrics of the run's model on a file, with intervals and baselines, or compares them with a run's.

    Raises SystemExit with exit code 1 if the run is worse than the one it is compared with.
    """
    columns = list(dict.fromkeys(arguments.slices.split(","))) if arguments.slices else []
    if arguments.endpoint is not None and (columns or arguments.against is not None):
        raise InputError("--endpoint: compares answers; remove --slices and --against")
    if arguments.against is not None:
        if not _compare(arguments, columns):
            sys.exit(1)
        return
    if arguments.margin is not None:
        raise InputError("--margin: has no effect without --against; remove it")
    if arguments.endpoint_model is not None and arguments.endpoint is None:
        raise InputError("--endpoint-model: has no effect without --endpoint; remove it")
    from toolkit.deploy.evaluate import evaluate_file, read_labelled
    from toolkit.deploy.trained import decoded_with

    output = expanded(arguments.output) if arguments.output else None
    bad = output.with_suffix(".bad_rows.jsonl") if output else RunFolder(expanded(arguments.run)).bad_rows_evaluate
    options.reject_input_as_output(bad, [arguments.data], "--data: the list of unusable rows")
    output = output_file(output, arguments.overwrite) if output else None
    if arguments.endpoint is not None:
        from toolkit.deploy.endpoint import Endpoint, compare_with, require_greedy
        from toolkit.system.launcher import require_no_launcher

        require_no_launcher("evaluate --endpoint")
        endpoint = Endpoint(arguments.endpoint, arguments.endpoint_model)
        run = open_trained(arguments, skips_rows=True)
        require_greedy(run)
        if not compare_with(run, endpoint, read_labelled(run, arguments.data, bad), output):
            sys.exit(1)
        return
    run, changed = open_trained(arguments, skips_rows=True), decoded_with(arguments.overrides)
    evaluate_file(run, Path(arguments.run).name, arguments.data, bad, output, changed, columns)


def _compare(arguments: argparse.Namespace, columns: Sequence[str]) -> bool:
    """Compares the run with `--against`, and returns whether it passed."""
    from toolkit.deploy.evaluate import MARGIN, gate, require_comparable
    from toolkit.deploy.trained import read_settings

    runs = (arguments.against, arguments.run)
    if expanded(runs[0]).absolute() == expanded(runs[1]).absolute():
        raise InputError("--against: is RUN itself; name another run")
    if arguments.overwrite:
        raise InputError("--overwrite: has no effect with --against, whose page replaces its former one; remove it")
    require_comparable(columns, *(read_settings(expanded(run), arguments.recipe)[1] for run in runs))
    beside = f"{expanded(runs[1]).absolute()}-against-{expanded(runs[0]).absolute().name}"
    output = output_folder(arguments.output or beside, make=False, again=True)
    each = {run: argparse.Namespace(**{**vars(arguments), "run": run}) for run in runs}
    opened = {run: partial(open_trained, given, skips_rows=True) for run, given in each.items()}
    margin, bad = arguments.margin, RunFolder(expanded(runs[1])).bad_rows_evaluate
    return gate(opened, arguments.data, bad, columns, MARGIN if margin is None else margin, output)


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the rows and the promise."""
    options.add_run(parser, bad_rows=None)
    options.add(parser, "--data", default_text="the run's validation rows, and its test rows to check")
    rule = parser.add_mutually_exclusive_group()
    precision = "least share of right answers among those that are decided; of several labels, of each"
    rule.add_argument("--precision", type=options.fraction, metavar="P", help=precision)
    rule.add_argument("--recall", type=options.fraction, metavar="P", help="least share of each label's rows to find")
    rule.add_argument("--best-f1", action="store_true", help="the threshold of each label with the largest F1")
    confidence = "probability that the promise is kept on new rows (default: 0.95)"
    parser.add_argument("--confidence", type=options.fraction, default=0.95, metavar="P", help=confidence)
    sets = "share of rows whose set of classes, or interval of a number (default: 0.9), contains the truth"
    parser.add_argument("--sets", type=options.fraction, metavar="P", help=sets)


def run_calibrate(arguments: argparse.Namespace) -> None:
    """Fits and checks how the run decides, and stores it in the run's folder."""
    from toolkit.deploy.calibrate import calibrate_run, require_rules
    from toolkit.deploy.trained import read_settings
    from toolkit.system.launcher import require_no_launcher
    from toolkit.tasks.heads.decisions import RULES, Promise

    require_no_launcher("calibrate")
    for name in ("precision", "recall", "confidence", "sets"):
        if getattr(arguments, name) in (0, 1):
            raise InputError(f"--{name}: received {getattr(arguments, name):g}, must be between 0 and 1")
    rule = next((name for name in RULES if getattr(arguments, name)), None)
    value = 0.0 if rule in (None, "best_f1") else getattr(arguments, rule)
    promise, folder = Promise(rule, value, arguments.confidence, arguments.sets), expanded(arguments.run)
    task = read_settings(folder, arguments.recipe, overrides=arguments.overrides, calibrated=False)[1]
    require_rules(task, promise)
    calibrate_run(open_trained(arguments, calibrated=False), folder, arguments.data, promise)
