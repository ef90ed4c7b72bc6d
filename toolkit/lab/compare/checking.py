"""Checks every variant before any of them runs, and keeps the number of rows per step the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from toolkit.api.task import Task
from toolkit.base.errors import ConfigError
from toolkit.checks.run import refuse_wrong_launch
from toolkit.config import flatten
from toolkit.config.sections import Config
from toolkit.lab.compare.variants import Variant
from toolkit.lab.jobs.strategies import ACCUMULATION, BATCH, window_settings
from toolkit.lab.launch import Launch, batch_and_accumulation, step_rows

QUIET = (
    "checkpoint.resume=none",
    "checkpoint.push_to_hub=false",
    "checkpoint.hub_model_id=null",
    "checkpoint.hub_private_repo=null",
    "checkpoint.hub_revision=null",
    "tracking.report_to=[]",
    "tracking.run_name=null",
    "tracking.project=finetune-toolkit",
    "tracking.histogram_steps=null",
    "tracking.logging_steps=1",
)
"""Overrides for every variant: it starts from the beginning, logs each step and reports nowhere else."""


@dataclass(frozen=True)
class Checked:
    """Variants that can run, and the reasons why others cannot.

    Args:
        variants: all variants, in order.
        configs: configurations of the variants that can run, by name.
        refused: problems of the variants that cannot run, by name.
        planned: configurations of the variants that would need more processes, by name; they are in `refused` too.
    """

    variants: Sequence[Variant]
    configs: Mapping[str, Config]
    refused: Mapping[str, Sequence[str]]
    planned: Mapping[str, Config] = field(default_factory=dict)

    def refuse(self) -> None:
        """Raises the problems of all variants; a problem of several variants is listed once.

        Raises:
            ConfigError: if a variant cannot run; names the variants.
        """
        problems: dict[str, list[str]] = {}
        for name, messages in self.refused.items():
            for message in messages:
                problems.setdefault(message, []).append(name)
        if problems:
            raise ConfigError([f"{self._where(names)}{message}" for message, names in problems.items()])

    def _where(self, names: Sequence[str]) -> str:
        if len(names) == len(self.variants):
            return ""
        return f"variant {names[0]}: " if len(names) == 1 else f"{len(names)} of {len(self.variants)} variants: "


def check_variants(
    task_type: type[Task],
    file: str,
    overrides: Sequence[str],
    variants: Sequence[Variant],
    launch: Launch,
    keep_window: bool = False,
) -> Checked:
    """Loads the configuration of every variant, and checks it as far as possible without running it.

    If a variant changes the rows at once but not the accumulation, its accumulation is set such that a step has as many
    rows as the baseline's.

    Args:
        task_type: the recipe's task.
        file: the YAML file.
        overrides: overrides for all variants.
        variants: the variants, the baseline first.
        launch: how processes are started.
        keep_window: whether variants that change the accumulation keep the baseline's rows per step, too, with another
            batch size.
    """

    def load(variant: Variant) -> Config:
        settings = [*overrides, *QUIET, *variant.overrides]
        cfg = launch.load(task_type, file, settings)
        refuse_wrong_launch(cfg, task_type, variant.technique.processes if variant.technique else launch.processes)
        return cfg

    done: list[Variant] = []
    configs: dict[str, Config] = {}
    planned: dict[str, Config] = {}
    refused: dict[str, Sequence[str]] = {}
    baseline: Config | None = None
    for variant in _with_unique_names(variants):
        try:
            variant, cfg = _fitted(variant, load, baseline, launch.processes, keep_window)
            baseline = baseline or cfg
            if twin := next((name for name, other in configs.items() if flatten(other) == flatten(cfg)), None):
                raise ConfigError([f"has the same settings as the variant {twin}"])
            if variant.technique is not None and variant.technique.processes > launch.processes:
                planned[variant.name] = cfg
                raise ConfigError([f"needs {variant.technique.processes} processes; this row is an estimate"])
            configs[variant.name] = cfg
        except ConfigError as error:
            refused[variant.name] = error.problems
        done.append(variant)
    return Checked(done, configs, refused, planned)


def _fitted(
    variant: Variant, load: Callable[[Variant], Config], baseline: Config | None, processes: int, keep_window: bool
) -> tuple[Variant, Config]:
    """Returns a variant with the settings that keep the baseline's rows per step, and its configuration.

    Raises:
        ConfigError: if that is not possible, or its configuration is invalid.
    """
    if variant.technique is not None:
        variant = _divided(variant, baseline, processes)
        return variant, load(variant)
    cfg = load(variant)
    if baseline is None:
        return variant, cfg
    fixed = _kept_window(cfg, variant, step_rows(baseline, processes), processes, keep_window)
    if fixed:
        variant = replace(variant, fixed=fixed)
        cfg = load(variant)
    return variant, cfg


def _divided(variant: Variant, baseline: Config | None, processes: int) -> Variant:
    """Returns the variant of a technique such that its steps have as many rows as the baseline's.

    Raises:
        ConfigError: if that is not possible, or the technique is not supported.
    """
    technique = variant.technique
    assert technique is not None
    if technique.refused:
        raise ConfigError([technique.refused])
    if baseline is None:
        return variant
    return replace(variant, fixed=window_settings(baseline, technique, step_rows(baseline, processes)))


def _with_unique_names(variants: Sequence[Variant]) -> list[Variant]:
    """Names variants by their full keys if keys without their sections are ambiguous."""
    names = Counter(variant.name for variant in variants)
    return [
        variant if names[variant.name] == 1 else replace(variant, name=", ".join(variant.overrides))
        for variant in variants
    ]


def _kept_window(cfg: Config, variant: Variant, rows: int, processes: int, keep_window: bool) -> dict[str, str]:
    """Returns the setting that gives a step `rows` rows: the accumulation or, if the variant sets that, the batch size.

    Empty if a step has them, or if the variant sets the accumulation and `keep_window` is false.

    Raises:
        ConfigError: if that is not possible.
    """
    received = step_rows(cfg, processes)
    if received == rows or (ACCUMULATION in variant.settings and not keep_window):
        return {}
    batch, accumulation = batch_and_accumulation(cfg)
    if ACCUMULATION in variant.settings and BATCH in variant.settings:
        raise ConfigError([
            f"--keep-window: {BATCH} {batch} and {ACCUMULATION} {accumulation} give {received} rows per step, the "
            f"baseline has {rows}; switch only one of the two, so that the other can be adjusted"
        ])  # fmt: skip
    if ACCUMULATION in variant.settings:
        switched, adjusted, least = ACCUMULATION, BATCH, received // batch
    else:
        switched, adjusted, least = BATCH, ACCUMULATION, received // accumulation
    if rows % least:
        raise ConfigError([
            f"{switched}: {least} rows do not divide the {rows} of the baseline's step; set it to a divisor, or set "
            f"{adjusted} as well"
        ])  # fmt: skip
    return {adjusted: str(rows // least)}
