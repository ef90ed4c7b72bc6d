"""Search settings: `toolkit search RECIPE --config FILE --space FILE [--method M] [KEY=VALUE ...]`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.cli_errors import EXIT_INTERRUPT
from toolkit.base.errors import ConfigError, InputError
from toolkit.base.files import expanded
from toolkit.commands import _recipe_config, options
from toolkit.commands.options import at_least
from toolkit.lab.search.space import METHODS

if TYPE_CHECKING:
    from toolkit.lab.search.study import Search

TRIALS = 20
_TIME = re.compile(r"(\d+):([0-5]\d):([0-5]\d)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def work(arguments: argparse.Namespace) -> None:
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
    task_type, loaded = _recipe_config.load(arguments)
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
