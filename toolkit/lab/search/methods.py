"""How points are drawn, and when a trial ends early; samplers and pruners are those of Optuna."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.base.errors import ConfigError, InputError
from toolkit.config.sections import Config
from toolkit.lab.search.space import Dimension

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

REDUCTION = 3
"""One of this many trials goes on beyond each rung of successive halving."""
MUTABLE = ("train.learning_rate", "train.head_learning_rate", "train.weight_decay", "train.max_grad_norm")
"""Settings that may change in the middle of a run: neither the optimizer's state nor the model depends on them."""


def _random(seed: int) -> BaseSampler:
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed)


def _tpe(seed: int) -> BaseSampler:
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed)


def _gp(seed: int) -> BaseSampler:
    from optuna.samplers import GPSampler

    return GPSampler(seed=seed)


def _cmaes(seed: int) -> BaseSampler:
    from optuna.samplers import CmaEsSampler

    return CmaEsSampler(seed=seed, warn_independent_sampling=False)


def _no_pruner(evaluations: int) -> BasePruner:
    from optuna.pruners import NopPruner

    return NopPruner()


def _halving(evaluations: int) -> BasePruner:
    from optuna.pruners import SuccessiveHalvingPruner

    return SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION)


def _hyperband(evaluations: int) -> BasePruner:
    from optuna.pruners import HyperbandPruner

    return HyperbandPruner(min_resource=1, max_resource=evaluations, reduction_factor=REDUCTION)


@dataclass(frozen=True)
class Method:
    """A method of search.

    Args:
        help: what it does.
        sampler: returns the sampler of a point from a seed.
        pruner: returns the pruner of a trial from the number of its evaluations.
        prunes: whether trials end early, at evaluations.
    """

    help: str
    sampler: Callable[[int], BaseSampler] = _random
    pruner: Callable[[int], BasePruner] = _no_pruner
    prunes: bool = False


METHODS = {
    "grid": Method("every combination of the values"),
    "random": Method("points at random"),
    "tpe": Method("a tree-structured Parzen estimator (Bergstra et al. 2011)", _tpe),
    "gp": Method("Bayesian optimization with a Gaussian process", _gp),
    "cmaes": Method("the evolution strategy CMA-ES (Hansen 2016)", _cmaes),
    "asha": Method("asynchronous successive halving (Li et al. 2020), points as tpe", _tpe, _halving, prunes=True),
    "hyperband": Method("Hyperband (Li et al. 2018), points as tpe", _tpe, _hyperband, prunes=True),
    "pbt": Method("population based training (Jaderberg et al. 2017)"),
}
"""The methods by the name that `--method` takes."""


def refuse_misfit(name: str, space: Sequence[Dimension], cfg: Config, storage: str | None) -> None:
    """Refuses a method that does not fit the space or the run.

    Raises:
        ConfigError: with all problems.
    """
    problems = []
    if (METHODS[name].prunes or name == "pbt") and cfg.eval.eval_steps is None:
        problems.append(f"eval.eval_steps: {name} compares trials at their evaluations, and there is one at the end "
                        "only; set it, for instance to epoch or 0.1")  # fmt: skip
    if METHODS[name].prunes and any(each.key == "eval.eval_steps" for each in space):
        problems.append(f"eval.eval_steps: {name} compares trials at their evaluations, so all need the same; remove "
                        "it from the space")  # fmt: skip
    if name == "cmaes":
        problems += [f"{each.key}: cmaes needs ranges, and this is a list; use tpe or gp" for each in space
                     if each.choices]  # fmt: skip
        if len(space) < 2:
            problems.append("cmaes needs at least two settings; use tpe or gp")
    if name == "pbt":
        train = cfg.train
        ends = {"early_stopping_patience": train.early_stopping_patience, "max_time": train.max_time,
                "target_metric": train.target_metric}  # fmt: skip
        problems += [f"train.{key}: would end one member of a population, which train together to the end; remove it"
                     for key, value in ends.items() if value]  # fmt: skip
        problems += [f"{each.key}: cannot change in the middle of a run, as pbt does; it can change "
                     f"{', '.join(MUTABLE)}" for each in space if each.key not in MUTABLE]  # fmt: skip
    if problems:
        raise ConfigError(problems)
    if name == "pbt" and storage is not None:
        raise InputError("--storage: the members of a population copy each other's checkpoints, so pbt runs in its "
                         "output folder; remove it")  # fmt: skip


def facts(name: str) -> dict[str, Any]:
    """Returns the name and the description of a method."""
    return {"method": name, "method_help": METHODS[name].help}
