"""Train on every fold of the rows: `toolkit cross-validate RECIPE --config FILE --folds N [section.key=value ...]`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.cli_errors import EXIT_INTERRUPT
from toolkit.base.errors import InputError
from toolkit.base.files import expanded
from toolkit.commands import _recipe_config, options
from toolkit.commands.options import at_least

if TYPE_CHECKING:
    from toolkit.lab.cross_validate import Fold, Validation

FOLDS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe and the number of folds."""
    _recipe_config.add_recipe(parser)
    parser.add_argument("--folds", type=at_least(2), default=FOLDS, metavar="N",
                        help=f"number of folds, and of trainings (default: {FOLDS})")  # fmt: skip
    parser.add_argument("--keep-models", action="store_true", help="keep the model of each fold")
    options.add_launch(parser)
    options.add(parser, "--output-dir", default_text="OUTPUT_DIR-cross-validate")


def work(arguments: argparse.Namespace) -> None:
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
    task_type, loaded = _recipe_config.load(arguments)
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
    from toolkit.base.console import format_value, say
    from toolkit.lab.cross_validate import trained_folds

    folds = []
    for fold in trained_folds(validation):
        folds.append(fold)
        score = fold.measured["scores"].get(metric)
        value = f"{metric} {format_value(score['value'])}" if score else "no validation score"
        how = "done before" if fold.kept else f"{fold.measured['seconds']:.0f} s"
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
