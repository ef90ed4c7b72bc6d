"""Commands that train several times: compare, search, cross-validate, baseline."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import TYPE_CHECKING, Any

from toolkit.base.cli_errors import EXIT_INTERRUPT
from toolkit.base.errors import ConfigError, InputError, RunError
from toolkit.base.files import expanded
from toolkit.base.outputs import output_folder
from toolkit.commands import options
from toolkit.commands.options import Command, at_least
from toolkit.lab.compare.variants import MODES, QUESTIONS, Variant, combine, of_question, read_switch
from toolkit.lab.search.space import METHODS

if TYPE_CHECKING:
    from toolkit.api.task import Task
    from toolkit.config import Loaded
    from toolkit.lab.compare.runs import Comparison
    from toolkit.lab.compare.variants import Checked
    from toolkit.lab.cross_validate import Fold, Validation
    from toolkit.lab.search.study import Search


PATIENCE = 60.0
"""Seconds that the last part of a comparison waits for another that writes it at the same time."""


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Adds the settings to compare and the number of runs."""
    options.add_recipe(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--switch", action="append", metavar="KEY=A,B",
        help="a setting and its values, the baseline first; A+other.key=C changes another setting as well",
    )  # fmt: skip
    what.add_argument("--preset", choices=QUESTIONS, help="; ".join(f"{k}: {q.help}" for k, q in QUESTIONS.items()))
    text = "product, every combination of the switches; or one-at-a-time, or cumulative"
    options.add(parser, "--mode", default_text=text, default="product", type=options.one_of(*MODES))
    parser.add_argument(
        "--seeds", type=at_least(1), default=3, metavar="N", help="runs of each variant, in turn (default: 3)"
    )
    options.add(parser, "--steps", default_text="as configured")
    options.add_launch(parser)
    parser.add_argument(
        "--draws",
        type=at_least(0),
        default=200,
        metavar="N",
        help="bootstrap samples for the intervals of metrics (default: 200)",
    )
    parser.add_argument(
        "--keep-window",
        action="store_true",
        help="keep the baseline's rows per step in all variants, by adjusting the accumulation or the batch size",
    )
    parser.add_argument("--metric", metavar="NAME", help="main metric (default: the one that selects the best model)")
    parser.add_argument("--keep-best", action="store_true", help="keep the model of the best variant")
    parser.add_argument("--skip-refused", action="store_true", help="skip variants that cannot run")
    parser.add_argument(
        "--part", type=_part, metavar="I/N",
        help="run only every Nth run, from the Ith, beside other commands with the other parts, on equal machines; the "
        "last one writes the comparison",
    )  # fmt: skip
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-compare")


def _part(text: str) -> tuple[int, int]:
    """Argparse `type` for parts."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"received {text}, must be a part such as 1/4")
    return int(match[1]), int(match[2])


def run_compare(arguments: argparse.Namespace) -> None:
    """Runs the remaining variants and writes the comparison.

    Raises:
        ConfigError: if settings of variants are invalid.
        InputError: if arguments are invalid.
        RunError: if every variant failed.
    """
    from toolkit.base.console import format_duration

    comparison = _comparison(arguments)
    from toolkit.checkpoint.output_folder import OutputLock
    from toolkit.lab.compare import page, report, runs
    from toolkit.lab.compare.runs import load_average, repeats_of

    comparison.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        if arguments.part is not None and not _run_part(comparison, *arguments.part):
            return
        with OutputLock(comparison.folder, patience_seconds=0 if arguments.part is None else PATIENCE):
            repeats = repeats_of(comparison, failures=arguments.part is not None)
            load = load_average() if any(each.state == "waiting" for each in repeats) else None
            runs.run_and_show(comparison, repeats, load)
            best = runs.keep_and_show(comparison, repeats)
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C; rerun the same command to continue with the remaining runs", file=sys.stderr)
        sys.exit(EXIT_INTERRUPT)
    facts = {
        "command": ["toolkit", *sys.argv[1:]],
        "preset": arguments.preset,
        "mode": None if arguments.preset else arguments.mode,
        "seconds": round(time.monotonic() - began, 1),
        "load_at_start": load,
    }
    found = report.build(comparison, repeats, facts, best)
    page.write(found, comparison.folder)
    page.show_result(found)
    print(f"\n{format_duration(facts['seconds'])}; written to {comparison.folder}/comparison.html, .md and .json")
    if not any("figures" in variant for variant in found["variants"]):
        raise RunError("every variant failed; the reasons are listed above")


def _run_part(comparison: Comparison, part: int, parts: int) -> bool:
    """Runs a part of the comparison, and returns whether all of it is finished.

    Raises:
        InputError: if the comparison is to keep a model, which depends on all runs.
    """
    from toolkit.base.console import counted
    from toolkit.checkpoint.output_folder import OutputLock
    from toolkit.lab.compare import runs
    from toolkit.lab.compare.runs import repeats_of

    if comparison.keep_best:
        raise InputError("--keep-best: depends on all runs; use it in a command without --part, after the parts")
    own = comparison.folder / "parts" / f"{part}-of-{parts}"
    own.mkdir(parents=True, exist_ok=True)
    with OutputLock(own):
        mine = repeats_of(comparison)[part - 1 :: parts]
        runs.run_and_show(comparison, mine, None)
    left = sum(repeat.state == "waiting" for repeat in repeats_of(comparison, failures=True))
    failed = sum(repeat.state == "failed" for repeat in mine)
    if not left:
        return True
    print(f"not finished: {counted(left, 'run')} of the comparison ({failed} of this part failed)")
    if mine and failed == len(mine):
        raise RunError("every run of this part failed; the reasons are listed above")
    return False


def _comparison(arguments: argparse.Namespace) -> Comparison:
    """Checks the arguments and returns the comparison to run."""
    task_type, loaded = options.load(arguments)
    question = QUESTIONS[arguments.preset] if arguments.preset else None
    from toolkit.api.run import best_metric, metric_named
    from toolkit.base.console import quiet_libraries
    from toolkit.data.row_cache import code_fingerprint
    from toolkit.lab.compare.report import estimates
    from toolkit.lab.compare.runs import Comparison
    from toolkit.lab.compare.variants import check_variants
    from toolkit.lab.jobs.jobs import Launch

    quiet_libraries()
    least = question.processes if question else 1
    default = least if arguments.launch is None else None
    launch = Launch.of(arguments.launch, arguments.processes or default)
    launch.check(least)
    cfg = loaded.config
    task = task_type(cfg)
    metric = metric_named(arguments.metric, task, "--metric") if arguments.metric else best_metric(cfg, task)
    if question is None:
        variants = _switched(arguments, task_type, loaded)
    else:
        variants = of_question(question, cfg, launch.processes)
    overrides = [*arguments.overrides, *([f"train.max_steps={arguments.steps}"] if arguments.steps else [])]
    checked = check_variants(task_type, arguments.config, overrides, variants, launch, arguments.keep_window)
    _refuse(checked, lenient=arguments.skip_refused or question is not None)
    return Comparison(
        recipe=Path(arguments.recipe),
        config=Path(arguments.config),
        overrides=overrides,
        checked=checked,
        launch=launch,
        seeds=range(cfg.seed, cfg.seed + arguments.seeds),
        draws=arguments.draws,
        code=code_fingerprint(task),
        metric=metric,
        keep_best=arguments.keep_best,
        folder=expanded(arguments.output_dir or f"{cfg.output_dir.rstrip('/')}-compare"),
        estimates=estimates(task_type, checked) if any(variant.technique for variant in variants) else {},
    )


def _switched(arguments: argparse.Namespace, task_type: type[Task], loaded: Loaded) -> list[Variant]:
    from toolkit.config.keys import field_types, section_types, to_yaml

    keys = [key for key, kind in field_types(section_types(task_type.Options)).items() if not is_dataclass(kind)]
    values = {".".join(key): reduce(getattr, key, loaded.config) for key in keys}
    configured = {key: value if isinstance(value, str) else to_yaml(value) for key, value in values.items()}
    variants = combine([read_switch(text, configured) for text in arguments.switch], arguments.mode)
    if len(variants) == 1:
        raise InputError("--switch: nothing to compare; add a second value")
    return variants


def _refuse(checked: Checked, lenient: bool) -> None:
    """Reports variants that cannot run before any run starts; raises unless they may be skipped."""
    if not lenient or checked.variants[0].name in checked.refused or len(checked.configs) < 2:
        checked.refuse()
    for name, problems in checked.refused.items():
        print(fill(f"skipped: variant {name}: {'; '.join(problems)}", 80, break_long_words=False))


TRIALS = 20
_TIME = re.compile(r"(\d+):([0-5]\d):([0-5]\d)")


def add_search(parser: argparse.ArgumentParser) -> None:
    """Adds the space, the method and the number of trials."""
    options.add(parser, "recipe", nargs="?")
    options.add(parser, "overrides")
    options.add(parser, "--config")
    parser.add_argument("--space", metavar="FILE", help="YAML file of the settings to search: a list of values or a "
                        "range {low: 1e-5, high: 1e-3, log: true} for each dotted key")  # fmt: skip
    parser.add_argument(
        "--method",
        choices=tuple(METHODS),
        default="tpe",
        help=f"{'; '.join(f'{name}: {each.help}' for name, each in METHODS.items())} (default: tpe)",
    )
    parser.add_argument(
        "--trials",
        type=at_least(1),
        metavar="N",
        help=f"number of trials; members of the population for pbt (default: {TRIALS}, grid: all)",
    )
    parser.add_argument(
        "--parallel",
        type=at_least(1),
        default=1,
        metavar="K",
        help="trials at the same time, each on GPUs of its own (default: 1)",
    )
    at_the_end = "none; at its end trials stop with a checkpoint, and the same command goes on with them"
    options.add(parser, "--time", type=_seconds, default_text=at_the_end)
    parser.add_argument("--storage", metavar="URL",
                        help="database of the study, for searches without a common disk (default: a file in the output "
                        "folder)")  # fmt: skip
    options.add_launch(parser)
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-search")
    parser.add_argument("--show", metavar="DIR", help="show the search in this folder, which may be running")


def _seconds(text: str) -> int:
    """Argparse `type` for times."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"received {text}, must be a time such as 01:30:00 (hours:minutes:seconds)")
    hours, minutes, seconds = map(int, match.groups())
    return 3600 * hours + 60 * minutes + seconds


def run_search(arguments: argparse.Namespace) -> None:
    """Runs the remaining trials, scores the winner and writes the search; or shows one.

    Raises:
        ConfigError: if settings or the space are invalid.
        InputError: if arguments are invalid.
        RunError: if no trial can be trained, or the winner cannot be scored.
    """
    if arguments.show is not None:
        _show(arguments)
        return
    if missing := [name for name in ("recipe", "config", "space") if getattr(arguments, name) is None]:
        names = {"recipe": "RECIPE", "config": "--config FILE", "space": "--space FILE"}
        raise InputError(f"{names[missing[0]]} is required (or --show DIR)")
    began = time.monotonic()
    search = _search(arguments)
    from toolkit.lab.search import report
    from toolkit.lab.search.study import Book
    from toolkit.lab.search.trials import own_settings

    known = report.claim(search, arguments.command)
    book = Book(search, known["owner"], own_settings(search.base))
    try:
        winner = _run(search, book)
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C; the same command goes on with the remaining trials", file=sys.stderr)
        sys.exit(EXIT_INTERRUPT)
    found = report.build(report.shown_facts(known), book.study, winner, time.monotonic() - began)
    report.write(found, search.folder)
    report.show(found)
    print(f"\nwritten to {search.folder}/search.html, .md and .json")


def _run(search: Search, book: Any) -> dict[str, Any] | None:
    """Runs what is left, and returns what is known of the winner."""
    from filelock import FileLock

    from toolkit.base.files import write_json
    from toolkit.checkpoint.output_folder import OutputLock
    from toolkit.lab.search import population, report, trials, winner
    from toolkit.lab.search.space import overrides_of

    def told(number: int, result: dict[str, Any]) -> None:
        params = result.get("settings") or book.trials()[number].params
        report.tell(number, result, overrides_of(params), search.metric.name)

    book.open()
    if search.method == "pbt":
        with OutputLock(search.folder):
            population.run(search, book, told)
    else:
        trials.run(search, book, told)
    if any(each.state.name == "RUNNING" for each in book.trials()):
        print("some trials are not over: they run elsewhere, or the time is over", flush=True)
        return report.winner_of(search.folder)
    with FileLock(search.folder / "score.lock"):
        found = winner.score(search, book)
        if found is not None:
            write_json(search.folder / report.WINNER, found)
    return found


def _search(arguments: argparse.Namespace) -> Search:
    """Checks the arguments and returns the search."""
    task_type, loaded = options.load(arguments)
    from toolkit.api.run import best_metric
    from toolkit.base.console import quiet_libraries
    from toolkit.lab.jobs.jobs import Launch
    from toolkit.lab.search.space import grid_of, read_space, refuse_misfit
    from toolkit.lab.search.study import Search, require_optuna
    from toolkit.lab.search.trials import refuse_too_many

    require_optuna()
    quiet_libraries()
    cfg = loaded.config
    launch = Launch.of(arguments.launch, arguments.processes)
    launch.check(1)
    space = read_space(expanded(arguments.space), task_type, arguments.config, arguments.overrides)
    refuse_misfit(arguments.method, space, cfg, arguments.storage)
    data = cfg.data
    if data.validation_split == 0 and data.validation_file is None and data.dataset_name is None:
        raise ConfigError(["data.validation_split: a search compares trials on validation rows, and there are none; "
                           "set data.validation_file or data.validation_split"])  # fmt: skip
    refuse_too_many(arguments.parallel, launch.processes)
    grid = len(grid_of(space)) if arguments.method == "grid" else None
    if arguments.method == "pbt" and (arguments.trials or TRIALS) < 2:
        raise InputError("--trials: a population needs at least 2 members")
    return Search(
        recipe=Path(arguments.recipe),
        config=Path(arguments.config),
        overrides=arguments.overrides,
        task_type=task_type,
        base=launch.load(task_type, arguments.config, arguments.overrides),
        space=space,
        method=arguments.method,
        metric=best_metric(cfg, task_type(cfg)),
        launch=launch,
        trials=arguments.trials or grid or TRIALS,
        parallel=arguments.parallel,
        deadline=None if arguments.time is None else time.time() + arguments.time,
        folder=Path(expanded(arguments.output_dir or f"{cfg.output_dir.rstrip('/')}-search")).absolute(),
        storage=arguments.storage,
    )


def _show(arguments: argparse.Namespace) -> None:
    """Shows the search in a folder, and writes nothing."""
    from toolkit.lab.search import report
    from toolkit.lab.search.study import load_study

    place = expanded(arguments.show)
    known = report.read(place)
    if known is None:
        raise InputError(f"--show: {place.absolute()} is not the folder of a search")
    study = load_study(place, known["name"], arguments.storage)
    report.show(report.build(report.shown_facts(known), study, report.winner_of(place), 0.0))


FOLDS = 5


def add_cross_validate(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the number of folds."""
    options.add_recipe(parser)
    parser.add_argument("--folds", type=at_least(2), default=FOLDS, metavar="N",
                        help=f"number of folds, and of trainings (default: {FOLDS})")  # fmt: skip
    parser.add_argument("--keep-models", action="store_true", help="keep the model of each fold")
    options.add_launch(parser)
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-cross-validate")


def run_cross_validate(arguments: argparse.Namespace) -> None:
    """Trains what is not finished, and writes the scores over all folds.

    Raises:
        ConfigError: if settings are invalid.
        InputError: if arguments are invalid.
        RunError: if the training of a fold fails.
    """
    validation = _validation(arguments)
    from toolkit.api.run import best_metric
    from toolkit.base.console import say
    from toolkit.checkpoint.output_folder import OutputLock
    from toolkit.document.render import print_table
    from toolkit.lab import cross_validate
    from toolkit.recipe import load_task_type

    cfg = validation.configs[0]
    metric = best_metric(cfg, load_task_type(arguments.recipe)(cfg)).name
    try:
        validation.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output-dir: cannot make the folder {validation.folder}: {error.strerror}") from error
    try:
        with OutputLock(validation.folder):
            found = _found(arguments, validation, _trained(validation, metric), metric)
            cross_validate.write(found, validation.folder)
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C; rerun the same command to continue with the remaining folds", file=sys.stderr)
        sys.exit(EXIT_INTERRUPT)
    say("")
    print_table(cross_validate.summary(found))
    say(f"\nwritten to {validation.folder}/cross_validation.html, .md and .json")


def _validation(arguments: argparse.Namespace) -> Validation:
    """Checks the arguments and the settings of every fold."""
    own = [
        key for key in ("data.folds", "data.fold") if any(text.startswith(f"{key}=") for text in arguments.overrides)
    ]
    if own:
        raise InputError(f"{own[0]}: the command sets it; use --folds instead")
    task_type, loaded = options.load(arguments)
    from toolkit.base.console import quiet_libraries, say
    from toolkit.checks.run import refuse_wrong_launch
    from toolkit.data.row_cache import code_fingerprint
    from toolkit.lab.cross_validate import Validation, fold_settings
    from toolkit.lab.jobs.jobs import Launch

    quiet_libraries()
    launch = Launch.of(arguments.launch, arguments.processes)
    launch.check(1)
    cfg = loaded.config
    configs = [
        launch.load(task_type, arguments.config, fold_settings(arguments.overrides, arguments.folds, fold))
        for fold in range(1, arguments.folds + 1)
    ]
    refuse_wrong_launch(configs[0], task_type, launch.processes)
    if cfg.data.validation_file is not None:
        say(f"{cfg.data.validation_file} is not read: the validation rows are folds of the training rows")
    return Validation(
        recipe=Path(arguments.recipe),
        config=Path(arguments.config),
        overrides=arguments.overrides,
        configs=configs,
        launch=launch,
        code=code_fingerprint(task_type(cfg)),
        folder=expanded(arguments.output_dir or f"{cfg.output_dir.rstrip('/')}-cross-validate"),
        keep_models=arguments.keep_models,
    )


def _trained(validation: Validation, metric: str) -> list[Fold]:
    from toolkit.base.console import format_duration, format_value, say
    from toolkit.lab.cross_validate import trained_folds

    folds = []
    for fold in trained_folds(validation):
        folds.append(fold)
        score = fold.measured["scores"].get(metric)
        value = f"{metric} {format_value(score['value'])}" if score else "no validation score"
        how = "done before" if fold.kept else format_duration(fold.measured["seconds"])
        say(f"fold {fold.number} of {len(validation.configs)}: {value} ({how})")
    return folds


def _found(arguments: argparse.Namespace, validation: Validation, folds: Sequence[Fold], metric: str) -> dict[str, Any]:
    from toolkit.lab.cross_validate import summarised

    return {
        "metric": metric,
        "metrics": summarised(folds),
        "folds": [
            {"fold": fold.number, "folder": str(fold.run.relative_to(validation.folder)), "rows": fold.measured["rows"],
             "seconds": fold.measured["seconds"], "figures": fold.measured["figures"]}
            for fold in folds
        ],
        "seed": validation.configs[0].seed,
        "processes": validation.launch.processes,
        "config": arguments.config,
        "command": shlex.join(arguments.command),
    }  # fmt: skip


def add_baseline(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe, and whether its model is scored."""
    options.add_recipe(parser)
    parser.add_argument("--no-model", action="store_true", help="leave out the model, for instance because it is large")
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-baseline")


def run_baseline(arguments: argparse.Namespace) -> None:
    """Scores the baselines, prints and writes them.

    Raises:
        ConfigError: if a setting is invalid.
        InputError: if arguments are invalid, or there is nothing to score.
        RunError: if the model cannot be evaluated.
    """
    task_type, loaded = options.load(arguments)
    from toolkit.api.run import best_metric
    from toolkit.base.console import quiet_libraries, say
    from toolkit.document.render import print_table
    from toolkit.lab import baseline
    from toolkit.lab.jobs.jobs import Launch

    quiet_libraries()
    cfg = loaded.config
    task = task_type(cfg)
    if arguments.no_model and not task.has("baselines"):
        raise InputError("--no-model: this task has no baseline but its model; remove the option")
    output = output_folder(arguments.output_dir or f"{cfg.output_dir.rstrip('/')}-baseline")
    with TemporaryDirectory(prefix="baseline-") as folder:
        overrides = [*arguments.overrides, *_baseline_overrides(), f"output_dir={folder}/run"]
        Launch.of(None, 1).load(task_type, arguments.config, overrides)
        measured = _baseline_measured(arguments, overrides, Path(folder))
    if not measured["rows"]:
        raise InputError("data: there are no validation or test rows to score")
    found = {
        **measured,
        "metric": best_metric(cfg, task).name,
        "config": arguments.config,
        "command": shlex.join(arguments.command),
    }
    baseline.write(found, output)
    say("")
    print_table(baseline.table(found, baseline.main_names(found)[: baseline.MOST_IN_TERMINAL]))
    say(f"\nwritten to {output}/baseline.html, .md and .json")


def _baseline_overrides() -> list[str]:
    """Returns the overrides with which a run only evaluates, in one process."""
    from toolkit.config.keys import written
    from toolkit.config.train import ParallelConfig
    from toolkit.lab.jobs.training import STEPS_ONLY

    parallel = {f"parallel.{field.name}": field.default for field in fields(ParallelConfig)}
    kept = {key: value for key, value in STEPS_ONLY.items() if key != "eval.metric_for_best_model"}
    return written({**kept, **parallel, "train.max_steps": 1, "train.warmup_steps": 0, "model.unfreeze": {}})


def _baseline_measured(arguments: argparse.Namespace, overrides: list[str], folder: Path) -> dict[str, Any]:
    from toolkit.lab.jobs.jobs import Trial, run_trials

    job = {
        "recipe": str(Path(arguments.recipe).absolute()),
        "config": str(Path(arguments.config).absolute()),
        "overrides": overrides,
        "model": not arguments.no_model,
    }
    (outcome,) = run_trials([Trial("baseline", job, folder / "outcome.json")], folder / "baseline.log")
    if outcome.error is not None:
        raise RunError(outcome.error)
    measured: dict[str, Any] = outcome.result
    return measured


COMMANDS = {
    "baseline": Command(add_baseline, run_baseline),
    "compare": Command(add_compare, run_compare),
    "cross-validate": Command(add_cross_validate, run_cross_validate),
    "search": Command(add_search, run_search),
}
