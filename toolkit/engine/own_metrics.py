"""Metrics of the user's own: functions by their dotted names, and modules of the library `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import isfinite
from typing import Any

from toolkit.api.batch import Record
from toolkit.api.task import Task
from toolkit.base.errors import ConfigError, InputError
from toolkit.base.files import expanded
from toolkit.base.package import import_object
from toolkit.config.messages import did_you_mean
from toolkit.config.sections import Config
from toolkit.metrics.score import short_name

Metric = Callable[[Sequence[Any], Sequence[Any]], float | Mapping[str, float]]
"""Takes predictions and references, one of each per row, and returns a number or several by name."""


@cache
def load_metric(name: str) -> Metric:
    """Returns a metric: the function of a dotted name, or a module of `evaluate`, a local folder or an id.

    Raises InputError if there is none, or it cannot be imported.
    """
    try:
        if "." not in name or expanded(name).exists():
            import evaluate

            module = evaluate.load(str(expanded(name)) if expanded(name).exists() else name)
            return lambda predictions, references: module.compute(predictions=predictions, references=references) or {}
        found = import_object(name)
    except Exception as error:  # importing somebody's module can raise anything
        raise InputError(
            f"eval.metrics: cannot use {name!r}: {type(error).__name__}: {error}. Modules and folders are found "
            "from the current folder, modules also beside the recipe"
        ) from error
    if not callable(found):
        raise InputError(f"eval.metrics: {name} is no function")
    return found


def own_scores(cfg: Config, task: Task, records: Iterable[Record], known: Iterable[str]) -> dict[str, float]:
    """Returns finite scores by name, `<metric>` or `<metric>_<name>`; `known` are names that are taken.

    Raises InputError if a metric fails, and ConfigError if one that a setting names is not among all these.
    """
    if not cfg.eval.metrics:
        return {}
    pairs = [(record["prediction"], record[task.reference]) for record in records]
    predictions, references = [one for one, _ in pairs], [other for _, other in pairs]
    values: dict[str, Any] = {}
    for name in cfg.eval.metrics:
        short, metric = short_name(name), load_metric(name)
        try:
            try:
                found = metric(predictions, references)
            except (ValueError, TypeError):  # evaluate's classification modules take whole numbers only
                ids = {label: place for place, label in enumerate(task.state.get("labels") or ())}
                found = metric([ids[each] for each in predictions], [ids[each] for each in references])
        except Exception as error:
            raise InputError(f"eval.metrics: {name} failed: {type(error).__name__}: {error}") from error
        several = found if isinstance(found, Mapping) else {short: found}
        values |= {each if each == short else f"{short}_{each}": value for each, value in several.items()}
    if wrong := [each for each, value in values.items() if not (isinstance(value, float | int) and isfinite(value))]:
        raise InputError(f"eval.metrics: {', '.join(wrong)}: expected finite numbers, received {values[wrong[0]]!r}")
    scores = {f"own_{name}" if name in known else name: float(value) for name, value in values.items()}
    settings = [("train.target_metric", each) for each in cfg.train.target_metric]
    settings.append(("eval.metric_for_best_model", cfg.eval.metric_for_best_model or "loss"))
    there = [*known, "loss", *scores]
    if lost := [f"{key}: received {name!r}, the evaluation has {', '.join(there)}{did_you_mean(name, there)}"
                for key, name in settings if name.removeprefix("eval_") not in there]:  # fmt: skip
        raise ConfigError(lost)
    return scores
