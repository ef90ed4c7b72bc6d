"""Estimates of the variants of a comparison of parallel strategies, beside which their measurements are shown."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from toolkit.base.console import LOGGER
from toolkit.base.errors import InputError
from toolkit.footprint.simulate import simulate
from toolkit.lab.compare.checking import Checked
from toolkit.lab.plan.estimates import estimated
from toolkit.lab.plan.subject import resized, subject_of

if TYPE_CHECKING:
    from toolkit.api.task import Task
    from toolkit.footprint.simulate import Footprint


def estimates(task_type: type[Task], checked: Checked) -> dict[str, dict[str, Any]]:
    """Returns the fields of `toolkit.lab.plan.estimates.Estimate` by variant, without those that are refused.

    The estimates are for the longest rows, as `toolkit plan` makes them; empty if a step cannot be simulated.
    """
    found: dict[str, dict[str, Any]] = {}
    footprints: dict[int, Footprint] = {}
    first = next(iter(checked.configs.values()))
    try:
        subject = subject_of(first, task_type(first))
        for variant in checked.variants:
            cfg = checked.configs.get(variant.name) or checked.planned.get(variant.name)
            if cfg is None or variant.technique is None or cfg.parallel.backend == "deepspeed":
                continue  # what DeepSpeed holds in addition is not known here
            variant_of = resized(subject, cfg)
            rows = variant_of.rows
            if rows not in footprints:
                footprints[rows] = simulate(variant_of)
            found[variant.name] = asdict(estimated(footprints[rows], cfg, variant.technique.processes))
    except InputError as error:
        LOGGER.warning("the strategies are not estimated: %s", error)
    return found
