"""What only the task, the installed libraries and the machine can tell of a configuration, asked before any load."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toolkit.api.run import best_metric
from toolkit.api.supports import SupportsEnsembling, class_column
from toolkit.api.task import Task
from toolkit.base.errors import ConfigError
from toolkit.checks.machine import check_machine
from toolkit.checks.trainer import check_engine
from toolkit.config.sections import Config
from toolkit.models.adapter_checks import check_adapters
from toolkit.models.hub import check_hub
from toolkit.optim.optimizers import check_optim_args
from toolkit.optim.schedules import check_schedule
from toolkit.tracking.tracker import check_trackers


def check_run(cfg: Config, task: Task) -> None:
    """Checks a valid configuration against what is here.

    Raises:
        ConfigError: with everything that is wrong.
    """
    checks: tuple[Callable[[], object], ...] = (
        partial(best_metric, cfg, task),
        partial(_check_task, cfg, task),
        partial(check_optim_args, cfg.train),
        partial(check_schedule, cfg.train),
        partial(check_trackers, cfg.tracking),
        partial(check_engine, cfg),
        partial(check_hub, cfg.checkpoint),
        partial(check_adapters, cfg.model),
        partial(check_machine, cfg),
    )
    problems: list[str] = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def _check_task(cfg: Config, task: Task) -> None:
    problems = []
    if cfg.train.train_sampling_strategy == "balanced" and class_column(task) is None:
        problems.append("train.train_sampling_strategy: received 'balanced', but the rows have no classes here")
    if cfg.train.snapshot_ensemble and not isinstance(task, SupportsEnsembling):
        problems.append("train.snapshot_ensemble: received true, but this task's predictions have no mean")
    if problems:
        raise ConfigError(problems)
