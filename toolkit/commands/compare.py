"""Commands that train several times: compare, search, cross-validate, baseline."""

from __future__ import annotations

import argparse
import re

from toolkit.base.errors import InputError, RunError
from toolkit.base.files import expanded
from toolkit.commands import options
from toolkit.lab.compare.variants import MODES, QUESTIONS
from toolkit.lab.search.space import METHODS


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Adds the settings to compare and the number of runs."""
    options.add_recipe(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    text = "a setting and its values, the baseline first; A+other.key=C changes another setting as well"
    what.add_argument("--switch", action="append", metavar="KEY=A,B", help=text)
    what.add_argument("--preset", choices=QUESTIONS, help="; ".join(f"{k}: {q.help}" for k, q in QUESTIONS.items()))
    text = "product, every combination of the switches; or one-at-a-time, or cumulative"
    options.add(parser, "--mode", default_text=text, default="product", type=options.one_of(*MODES))
    options.add_count(parser, "--seeds", "runs of each variant, in turn", 3)
    options.add(parser, "--steps", default_text="as configured")
    options.add_launch(parser)
    options.add_count(parser, "--draws", "bootstrap samples for the intervals of metrics", 200, least=0)
    window = "keep the baseline's rows per step in all variants, by adjusting the accumulation or the batch size"
    parser.add_argument("--keep-window", action="store_true", help=window)
    parser.add_argument("--metric", metavar="NAME", help="main metric (default: the one that selects the best model)")
    parser.add_argument("--keep-best", action="store_true", help="keep the model of the best variant")
    parser.add_argument("--skip-refused", action="store_true", help="skip variants that cannot run")
    parser.add_argument(
        "--part", type=_part, metavar="I/N",
        help="run only every Nth run, from the Ith, beside other commands with the other parts, on equal machines; the "
        "last one writes the comparison",
    )  # fmt: skip
    options.add_output(parser, "OUTPUT_DIR-compare", folder=True)


def _part(text: str) -> tuple[int, int]:
    """Argparse `type` for parts."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"received {text}, must be a part such as 1/4")
    return int(match[1]), int(match[2])


def run_compare(arguments: argparse.Namespace) -> None:
    """Runs the remaining variants and writes the comparison."""
    least = QUESTIONS[arguments.preset].processes if arguments.preset else 1
    processes = arguments.processes or (least if arguments.launch is None else None)
    request = options.request(arguments, "compare", processes=processes, least=least)
    from toolkit.lab.compare.report import compare

    with options.interruptible("runs"):
        report = compare(request, arguments)
    if report is None:
        return
    report.publish(request.output)
    if not any("figures" in variant for variant in report.found["variants"]):
        raise RunError("every variant failed; the reasons are listed above")


_TIME = re.compile(r"(\d+):([0-5]\d):([0-5]\d)")


def add_search(parser: argparse.ArgumentParser) -> None:
    """Adds the space, the method and the number of trials."""
    options.add(parser, "recipe", nargs="?")
    options.add(parser, "overrides")
    options.add(parser, "--config")
    parser.add_argument("--space", metavar="FILE", help="YAML file of the settings to search: a list of values or a "
                        "range {low: 1e-5, high: 1e-3, log: true} for each dotted key")  # fmt: skip
    methods = "; ".join(f"{name}: {each.help}" for name, each in METHODS.items())
    parser.add_argument("--method", choices=tuple(METHODS), default="tpe", help=f"{methods} (default: tpe)")
    trials = "number of trials; members of the population for pbt and pbt-tpe (default: 20, grid: all)"
    options.add_count(parser, "--trials", trials)
    options.add_count(parser, "--parallel", "trials at the same time, each on GPUs of its own", 1, metavar="K")
    at_the_end = "none; at its end trials stop with a checkpoint, and the same command resumes them"
    options.add(parser, "--time", type=_seconds, default_text=at_the_end)
    parser.add_argument("--storage", metavar="URL",
                        help="database of the study, for searches without a common disk (default: a file in the output "
                        "folder)")  # fmt: skip
    options.add_launch(parser)
    options.add_output(parser, "OUTPUT_DIR-search", folder=True)
    parser.add_argument("--show", metavar="DIR", help="show the search in this folder, which may be running")


def _seconds(text: str) -> int:
    """Argparse `type` for times."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"received {text}, must be a time such as 01:30:00 (hours:minutes:seconds)")
    hours, minutes, seconds = map(int, match.groups())
    return 3600 * hours + 60 * minutes + seconds


def run_search(arguments: argparse.Namespace) -> None:
    """Runs the remaining trials, scores the winner and writes the search; or shows one."""
    if arguments.show is not None:
        from toolkit.lab.search.report import searched

        searched(expanded(arguments.show), arguments.storage).show()
        return
    for name, option in (("recipe", "RECIPE"), ("config", "--config FILE"), ("space", "--space FILE")):
        if getattr(arguments, name) is None:
            raise InputError(f"{option} is required (or --show DIR)")
    request = options.request(arguments, "search")
    from toolkit.lab.search.report import search

    with options.interruptible("trials"):
        report = search(
            request, expanded(arguments.space), arguments.method, arguments.trials, arguments.parallel, arguments.time,
            arguments.storage,
        )  # fmt: skip
    report.publish(request.output)


FOLDS = 5


def add_cross_validate(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the number of folds."""
    options.add_recipe(parser)
    options.add_count(parser, "--folds", "number of folds, and of trainings", FOLDS, least=2)
    parser.add_argument("--keep-models", action="store_true", help="keep the model of each fold")
    options.add_launch(parser)
    options.add_output(parser, "OUTPUT_DIR-cross-validate", folder=True)


def run_cross_validate(arguments: argparse.Namespace) -> None:
    """Trains what is not finished, and writes the scores over all folds.

    Raises InputError if an override sets the folds.
    """
    for key in ("data.folds", "data.fold"):
        if any(override.startswith(f"{key}=") for override in arguments.overrides):
            raise InputError(f"{key}: the command sets it; use --folds instead")
    request = options.request(arguments, "cross-validate")
    from toolkit.lab.cross_validate import cross_validate

    with options.interruptible("folds"):
        cross_validate(request, arguments.folds, arguments.keep_models).publish(request.output)


def add_baseline(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, and whether its model is scored."""
    options.add_recipe(parser)
    parser.add_argument("--no-model", action="store_true", help="without the model, for instance because it is large")
    options.add_output(parser, "OUTPUT_DIR-baseline", folder=True)


def run_baseline(arguments: argparse.Namespace) -> None:
    """Scores the baselines, prints and writes them."""
    request = options.request(arguments, "baseline")
    from toolkit.lab.baseline import score

    score(request, with_model=not arguments.no_model).publish(request.output)
