"""Compare settings: `toolkit compare RECIPE --config FILE --switch KEY=A,B ... [KEY=VALUE ...]`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import is_dataclass
from functools import reduce
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from toolkit.base.cli_errors import EXIT_INTERRUPT
from toolkit.base.errors import InputError, RunError
from toolkit.base.files import expanded
from toolkit.commands import _recipe_config, options
from toolkit.commands.options import at_least
from toolkit.lab.compare.variants import MODES, QUESTIONS, Variant, combine, of_question, read_switch

if TYPE_CHECKING:
    from toolkit.api.task import Task
    from toolkit.config import Loaded
    from toolkit.lab.compare.runs import Comparison
    from toolkit.lab.compare.variants import Checked

PATIENCE = 60.0
"""Seconds that the last part of a comparison waits for another that writes it at the same time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the settings to compare and the number of runs."""
    _recipe_config.add_recipe(parser)
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


def work(arguments: argparse.Namespace) -> None:
    """Runs the remaining variants and writes the comparison.

    Raises:
        ConfigError: if settings of variants are invalid.
        InputError: if arguments are invalid.
        RunError: if every variant failed.
    """
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
    print(f"\n{facts['seconds']:.0f} s; written to {comparison.folder}/comparison.html, .md and .json")
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
    task_type, loaded = _recipe_config.load(arguments)
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
