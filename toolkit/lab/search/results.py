"""Collects what a search found for `search.json`, and what a page of a running one shows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.lab.search.methods import facts
from toolkit.lab.search.running import best_of
from toolkit.lab.search.space import overrides_of
from toolkit.lab.search.study import counted as of_state
from toolkit.lab.search.study import result_of
from toolkit.lab.search.winner import settings_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

FEWEST = 4
"""Fewest trials from which an importance is computed."""
SEED = 20


def build(known: Mapping[str, Any], study: Study, winner: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
    """Returns a search as JSON values.

    Args:
        known: what its folder says: see `toolkit.lab.search.folder`.
        study: its study.
        winner: what `toolkit.lab.search.winner` found, or None.
        seconds: seconds of this session.
    """
    found = study.get_trials(deepcopy=False)
    best = best_of(found, known["metric"]["greater_is_better"])
    rows = [row(each) for each in found if each.state.name != "WAITING" and result_of(each)["state"] != "abandoned"]
    return {
        **known,
        **facts(known["method"]),
        "trials": rows,
        "counts": dict(Counter(each["state"] for each in rows)),
        "best": None if best is None else row(best),
        "winner": None if winner is None else dict(winner),
        "importance": importance(study, of_state(found)),
        "cost": {
            "seconds": round(sum(each["seconds"] for each in rows), 1),
            "steps": sum(each["steps"] for each in rows),
            "session_seconds": round(seconds, 1),
        },
    }


def row(trial: FrozenTrial) -> dict[str, Any]:
    """Returns a trial as JSON values."""
    result = result_of(trial)
    return {
        "number": trial.number,
        "state": result["state"],
        "params": dict(settings_of(trial)),
        "overrides": overrides_of(settings_of(trial)),
        "value": trial.values[0] if trial.state.name == "COMPLETE" else result.get("value"),
        "reason": result.get("reason"),
        "evaluations": result.get("evaluations") or _reported(trial),
        "seconds": float(result.get("seconds", 0.0)),
        "steps": int(result.get("steps") or 0),
        "metrics": {key: value for key, value in result.get("metrics", {}).items() if key.startswith("eval_")},
        **({"history": result["history"]} if "history" in result else {}),
    }


def _reported(trial: FrozenTrial) -> list[list[float]]:
    """Returns number and value of each evaluation that the study knows of."""
    return [[number, value] for number, value in sorted(trial.intermediate_values.items())]


def importance(study: Study, trained: Sequence[FrozenTrial]) -> dict[str, Any]:
    """Returns how much each setting explains of the values of complete trials, by fANOVA (Hutter et al. 2014).

    A forest of regression trees learns the values of the points; the importance of a setting is its part of the
    variance of what the forest predicts over the space.

    Args:
        study: the study.
        trained: its trials that were trained.

    Returns:
        `method`, and `values` by setting, from the largest; empty with `FEWEST` trials or fewer, or if all are equal.
    """
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    complete = [each for each in trained if each.state.name == "COMPLETE" and result_of(each)["state"] != "repeated"]
    found: dict[str, float] = {}
    if len(complete) > FEWEST and len({each.values[0] for each in complete}) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of settings that have one value in all trials
            shares = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=SEED))
        found = {key: float(share) for key, share in shares.items()}
    return {"method": "fANOVA (Hutter et al. 2014)", "trials": len(complete), "values": found}
