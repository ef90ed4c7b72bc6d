"""Population based training (Jaderberg et al. 2017, arXiv 1711.09846) over exact checkpoints.

All members train to the next evaluation. Then the worst ones copy the checkpoint of one of the best (exploit), and
change its settings (explore), until the end of the run: a little, or to what a model of all gains so far expects to
gain the most, as in PB2 (Parker-Holder et al. 2020, arXiv 2002.02518), here a tree-structured Parzen estimator.
"""

from __future__ import annotations

import math
import random
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING, Any

from toolkit.base.console import format_value, say
from toolkit.base.errors import RunError
from toolkit.base.files import finite, read_json, write_json
from toolkit.lab.search import trials
from toolkit.lab.search.space import Dimension, Point, overrides_of
from toolkit.lab.search.study import Book, Result, Search, counted
from toolkit.lab.search.trials import Threads, Told, replace_run

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

QUANTILE = 4
"""One of this many members is replaced after an evaluation, by as many of the best."""
FACTORS = (0.8, 1.2)
"""Factors by which a number changes."""
RESAMPLED = 0.25
"""Probability that a value is drawn anew instead."""
LEAST = 2
"""Fewest members of a population."""
MEMBER = "member.json"
"""File of a member's progress."""


class Member:
    """A member of a population, which starts with its trial's point; what is known of it is in a file of its folder."""

    def __init__(self, search: Search, trial: Trial) -> None:
        self.search, self.trial, self.number = search, trial, trial.number
        self.folder = search.folder_of(trial.number)
        self.point: Point = dict(trial.params)
        self.values: list[float | None] = []
        """Its value at each evaluation; None if it had failed by then."""
        self.history: list[dict[str, Any]] = [{"step": 0, "parent": None, "settings": dict(trial.params)}]
        self.explored = 0
        """Number of evaluations after which its replacement was decided."""
        self.before: float | None = None
        """Value with which its training to the next evaluation begins, of its parent if it was replaced."""
        self.seconds = 0.0
        self.result: Result | None = None
        with suppress(OSError, ValueError):
            for name, value in read_json(self.folder / MEMBER).items():
                setattr(self, name, value)

    def keep(self) -> None:
        """Writes its progress."""
        names = ("point", "values", "history", "explored", "before", "seconds", "result")
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / MEMBER, finite({name: getattr(self, name) for name in names}))

    @property
    def last(self) -> float | None:
        """Its last value."""
        return self.values[-1] if self.values else None

    def advance(self, slot: int) -> Result:
        """Trains to the next evaluation, or to the end."""
        number = len(self.values) + 1
        job = trials.job_of(self.search, overrides_of(self.point), self.folder / "run") | {"segment": number}
        part = self.folder / f"part-{number:03d}"
        part.mkdir(parents=True, exist_ok=True)
        return trials.train(self.search, job, part, slot)


def run(search: Search, book: Book, told: Told) -> None:
    """Runs a population of `search.trials` members to its end, or until the time is over; calls `told` for each.

    Raises RunError if all members have failed.
    """
    members = [Member(search, trial) for trial in _all(book)]
    generation = 0
    while True:
        generation += 1
        _train_all(search, [each for each in members if each.result is None and len(each.values) < generation])
        if any(each.result is None and len(each.values) < generation for each in members):
            return  # the time is over
        if all(each.last is None for each in members):
            reason = (members[-1].result or {}).get("reason", "no reason is known")
            raise RunError(f"all {len(members)} members of the population failed; the last one: {reason}")
        if any(len(each.values) == generation and (each.result or {}).get("state") == "finished" for each in members):
            break  # a search that was killed later repeats the generations before without training
        _next_generation(search, book, members, generation)
    best, *_ = ranked(members, search.metric.greater_is_better)
    for each in members:
        _end(book, each, told)
        if each is not best:
            trials.lighten(each.folder)


def _all(book: Book) -> list[Trial]:
    """Returns the trials of all members; draws those that are missing."""
    from optuna.trial import Trial

    book.orphans()  # gives up those that a killed search has left without a point
    known: Sequence[FrozenTrial] = [each for each in counted(book.trials()) if each.params]
    found = [Trial(book.study, each._trial_id) for each in known]
    while (trial := book.ask()) is not None:
        found.append(trial)
    return found


def _train_all(search: Search, members: Sequence[Member]) -> None:
    """Trains members to their next evaluation."""
    threads, waiting = Threads(search.parallel), list(members)
    by_number = {each.number: each for each in members}
    with threads.saved_at_end():
        while waiting or threads.running:
            while waiting and threads.has_room and not (search.deadline and time.time() > search.deadline):
                member = waiting.pop(0)
                threads.start(member.number, member.advance)
            if not threads.running:
                return
            number, result = threads.next()
            if result["state"] != "stopped":
                _note(by_number[number], result)


def _note(member: Member, result: Result) -> None:
    """Records how a member reached an evaluation."""
    member.values.append(result.get("value") if result["state"] in ("segment", "finished") else None)
    member.seconds = round(member.seconds + result["seconds"], 1)
    part, value = member.history[-1], member.last
    part |= {"to": result.get("steps"), "value": value}
    if member.before is not None and value is not None:
        part["gains"] = part.get("gains", {}) | {str(len(member.values)): value - member.before}
    member.before = value
    if result["state"] != "segment":
        member.result = {**result, "seconds": member.seconds}
    member.keep()


def ranked(members: Sequence[Member], greater_is_better: bool) -> list[Member]:
    """Returns members from the best to the worst, equal ones in their order; those that failed are last."""

    def place(member: Member) -> tuple[bool, float, int]:
        value = member.last
        if value is None or math.isnan(value):
            return True, 0.0, member.number
        return False, -value if greater_is_better else value, member.number

    return sorted(members, key=place)


def replacements(members: Sequence[Member], greater_is_better: bool, seed: int) -> list[tuple[Member, Member]]:
    """Returns the members to replace after an evaluation, each with its new parent, drawn from the best."""
    order = ranked(members, greater_is_better)
    alive = [each for each in order if each.last is not None]
    count = min(max(1, len(members) // QUANTILE), len(members) // 2)
    best = alive[:count]
    lost = [each for each in order if each.last is None]
    worst = [each for each in order[len(order) - count :] if each not in best and each not in lost]
    drawn = random.Random(seed)
    return [(child, drawn.choice(best)) for child in sorted([*worst, *lost], key=lambda each: each.number)]


def _next_generation(search: Search, book: Book, members: Sequence[Member], generation: int) -> None:
    """Replaces the worst members; after a kill at any moment, the next call completes it, as parents are unchanged."""
    seed = zlib.crc32(f"{search.cfg.seed} {generation}".encode())
    chosen = {child.number: parent for child, parent in replacements(members, search.metric.greater_is_better, seed)}
    for member in members:
        if member.explored >= generation:
            continue
        if (parent := chosen.get(member.number)) is not None:
            own = random.Random(seed + member.number)
            point = explored(search.space, parent.point, own)
            if search.method == "pbt-tpe":
                histories = [each.history for each in members]
                point = expected_best(search.space, histories, search.metric.greater_is_better, own.getrandbits(32))
            point = point if book.allows(point) else dict(parent.point)
            step = replace_run(member.folder / "run", parent.folder / "run", parent.point, point)
            member.point, member.result, member.before = point, None, parent.last
            member.history.append({"step": step, "parent": parent.number, "settings": point})
        member.explored = generation
        member.keep()
    best = ranked(members, search.metric.greater_is_better)[0]
    value = "none" if best.last is None else format_value(best.last)
    say(
        f"evaluation {generation}: best {search.metric.name} {value} (member {best.number}); replaced: "
        f"{', '.join(f'{child} by {parent.number}' for child, parent in chosen.items())}"
    )


def explored(space: Sequence[Dimension], point: Point, drawn: random.Random) -> Point:
    """Returns a point near another one: each number times 0.8 or 1.2, each choice the next one, or drawn anew."""
    found: Point = {}
    for each in space:
        value, anew = point[each.key], drawn.random() < RESAMPLED
        if each.choices:
            place = each.choices.index(value) + drawn.choice((-1, 1))
            near = each.choices[min(max(place, 0), len(each.choices) - 1)]
            found[each.key] = drawn.choice(each.choices) if anew else near
            continue
        if anew:
            low, high = (math.log(each.low), math.log(each.high)) if each.log else (each.low, each.high)
            number = drawn.uniform(low, high)
            number = math.exp(number) if each.log else number
        else:
            number = value * drawn.choice(FACTORS)
        number = min(max(number, each.low), each.high)
        if each.step is not None or each.whole:
            step = each.step or 1
            number = each.low + round((number - each.low) / step) * step
        found[each.key] = int(number) if each.whole else float(number)
    return found


def expected_best(
    space: Sequence[Dimension], histories: Sequence[Sequence[Mapping[str, Any]]], greater_is_better: bool, seed: int
) -> Point:
    """Returns the point that should gain the most, from the settings and gains in the histories of all members."""
    import optuna

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(n_startup_trials=1, seed=seed))
    distributions, gains = (
        {each.key: each.distribution() for each in space},
        defaultdict[str, list[tuple[Any, float]]](list),
    )
    for part in (part for history in histories for part in history):
        for evaluation, gain in part.get("gains", {}).items():
            gains[evaluation].append((part["settings"], gain if greater_is_better else -gain))
    for found in gains.values():  # early gains are larger, so those of an evaluation are compared with each other
        middle = median(gain for _, gain in found)
        for point, gain in found:
            study.add_trial(optuna.trial.create_trial(params=point, distributions=distributions, value=gain - middle))
    return dict(study.ask(distributions).params)


def _end(book: Book, member: Member, told: Told) -> None:
    """Reports to the study how a member ended, once."""
    frozen = next(each for each in book.trials() if each.number == member.number)
    if frozen.state.is_finished():
        return
    result = dict(member.result or {"state": "failed", "reason": "no reason is known"})
    result |= {"history": member.history, "settings": member.point}
    known = frozen.intermediate_values
    for number, value in enumerate(member.values, start=1):
        if value is not None and number not in known:
            member.trial.report(value, number)
    book.tell(member.trial, result)
    told(member.number, result)
