"""The winner of a search: its model, and its score on rows that no choice depended on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolkit.base.console import say
from toolkit.base.errors import RunError
from toolkit.base.files import read_json, write_json
from toolkit.lab.search import trials
from toolkit.lab.search.space import POPULATION, overrides_of
from toolkit.lab.search.study import OWNER, Book, Search, result_of
from toolkit.lab.search.trials import baseline_of, best_of
from toolkit.metrics.intervals import percentiles

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

SCORE = "score.json"
"""File of a trial's scores, once it was scored on the test rows."""
DRAWS = 500
"""Sets of rows for the interval of a score."""
MIN_DRAWS = 50


def settings_of(trial: FrozenTrial) -> dict[str, Any]:
    """Returns the settings that a trial ended with; those of a population change."""
    return dict(result_of(trial).get("settings") or trial.params)


def score(search: Search, book: Book) -> dict[str, Any] | None:
    """Scores the winner, and the configured settings if they were trained; None if no trial finished.

    Raises RunError if the winner cannot be scored.
    """
    found = book.trials()
    best = best_of(found, search.metric.greater_is_better)
    if best is None:
        return None
    if not _is_here(search, book, best):
        say(f"trial {best.number}, the best one, was trained in another folder: the same command there scores it")
        return None
    baseline = baseline_of(book, found) if search.method not in POPULATION else None
    if baseline is not None and not _is_here(search, book, baseline):
        baseline = None
    scores = _scores_of(search, best, keep_model=True)
    other = None
    if baseline is not None and baseline.number != best.number:
        other = _scores_of(search, baseline, keep_model=False)
    return {
        "trial": best.number,
        "overrides": overrides_of(settings_of(best)),
        "run": str(search.folder_of(best.number) / "run"),
        "sets": {name: _described(name, scores, other) for name in scores},
        "baseline": None if baseline is None else baseline.number,
        "scored": sorted(int(file.parent.name) for file in search.folder.glob(f"trials/*/{SCORE}")),
    }


def _is_here(search: Search, book: Book, trial: FrozenTrial) -> bool:
    """Returns whether a trial is in this folder; with a database, a search in another folder may have trained it."""
    return trial.user_attrs.get(OWNER, book.owner) == book.owner or (search.folder_of(trial.number) / SCORE).exists()


def _scores_of(search: Search, trial: FrozenTrial, keep_model: bool) -> dict[str, Any]:
    """Returns the scores of a trial, computed once; raises RunError if that fails."""
    folder = search.folder_of(trial.number)
    file = folder / SCORE
    if file.exists():
        return dict(read_json(file))
    job = trials.job_of(search, overrides_of(settings_of(trial)), folder / "run")
    job |= {"keep_model": keep_model, "draws": DRAWS}
    outcome = trials.start("search_score", job, search, folder, 0)
    if outcome.error is not None:
        raise RunError(f"trial {trial.number} cannot be scored: {outcome.error}")
    write_json(file, outcome.result)
    return dict(outcome.result)


def _described(name: str, scores: dict[str, Any], other: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the scores on a set of rows without their draws."""
    own = scores[name]
    low, high = interval(own["draws"])
    found = {"value": own["value"], "low": low, "high": high, "rows": own["rows"]}
    if other is None or name not in other:
        return found
    there = other[name]
    low, high = interval(differences(own["draws"], there["draws"]))
    change = {"value": own["value"] - there["value"], "low": low, "high": high}
    return found | {"baseline": there["value"], "difference": change}


def differences(one: Sequence[float | None], other: Sequence[float | None]) -> list[float]:
    """Returns the differences of values for the same drawn rows; those of undefined values are NaN."""
    pairs = zip(one, other, strict=False)
    return [math.nan if left is None or right is None else left - right for left, right in pairs]


def interval(draws: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of bootstrap values; None if there are too few."""
    return percentiles([value for value in draws if value is not None], MIN_DRAWS) or (None, None)


def same(difference: dict[str, Any] | None) -> bool | None:
    """Returns whether a difference could be chance; None if that is unknown."""
    if difference is None or difference["low"] is None:
        return None
    return bool(difference["low"] <= 0 <= difference["high"])
