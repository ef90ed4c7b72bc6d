"""A search from its start to its report: the folder, the page, and words for the terminal."""

from __future__ import annotations

import shlex
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, ClassVar

from toolkit.api.run import best_metric
from toolkit.base.console import PLAIN_WIDTH, counted, format_duration, format_value, say, shorten
from toolkit.base.errors import ConfigError, InputError
from toolkit.base.files import read_json, write_json
from toolkit.checkpoint.lock import OutputLock
from toolkit.config.messages import show as shown_value
from toolkit.document.blocks import Block, Cell, Code, Figure, Folded, Gallery, Highlights, Page, Section, Table, Text
from toolkit.lab.search import pictures, population
from toolkit.lab.search.space import METHODS, POPULATION, check_method, grid_of, overrides_of, read_space
from toolkit.lab.search.study import Book, Search, load_study, name_of, require_optuna, result_of
from toolkit.lab.search.study import counted as of_state
from toolkit.lab.search.trials import best_of, require_gpus, run
from toolkit.lab.search.winner import same, score, settings_of
from toolkit.lab.tool import Report, Request

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial


FLATTERS = (
    "The best of many scores on the same rows flatters itself: it was chosen for its luck with these rows too. Only "
    "rows by which nothing was chosen say what to expect."
)
ONE_SEED = (
    "The interval is that of the evaluated rows (bootstrap, 95 %). It does not include how much runs differ by their "
    "seed, which toolkit compare with --seeds measures."
)
TRIALS = 20
MOST_ROWS = 20
"""Trials that the terminal shows: the best ones."""
STATES = {
    "finished": "trained to the end",
    "pruned": "ended early, because others were better at the same evaluation",
    "diverged": "the training loss rose, or was not finite",
    "failed": "ended with an error",
    "infeasible": "settings that exclude each other; not trained",
    "repeated": "the settings of an earlier trial; not trained again",
    "running": "not over",
}
"""How a trial can have ended, in the order of the page."""


@dataclass(frozen=True)
class SearchReport(Report):
    """The trials of a search, the best one, and its score on rows that no choice depended on."""

    FILE: ClassVar[str] = "search"

    recipe: str
    config: str
    overrides: Sequence[str]
    space: Mapping[str, Mapping[str, Any]]
    method: str
    metric: Mapping[str, Any]  # its `name`, and whether `greater_is_better`
    num_processes: int
    asked: int
    parallel: int
    storage: str | None
    command: Sequence[str]
    method_help: str
    trials: Sequence[Mapping[str, Any]]
    counts: Mapping[str, int]  # number of trials by state
    best: Mapping[str, Any] | None
    winner: Mapping[str, Any] | None  # the scores of the best trial, once it was scored
    importance: Mapping[str, Any]
    cost: Mapping[str, float]

    @property
    def metric_name(self) -> str:
        """The name of the metric without its prefix."""
        return str(self.metric["name"]).removeprefix("eval_")

    def counted(self) -> str:
        """Returns the numbers of trials by state, in words."""
        return ", ".join(f"{self.counts[state]} {state}" for state in STATES if self.counts.get(state))

    def page(self) -> Page:
        """Returns the page: the best trial, charts, all trials, and what they cost."""
        drawn = list(_pictures(self))
        faults = [row for row in self.trials if row["reason"] and row["state"] != "repeated"]
        lineage = [row for row in self.trials if "history" in row]
        lead = f"{self.method}: {self.method_help}. Trials: {self.counted() or 'none'}."
        return Page(f"Search for {self.config}", lead, [
            Section("Best", list(_best(self))),
            Section("Pictures", [Gallery(drawn), *_importance(self)] if drawn else []),
            Section("Trials", list(_trials(self))),
            Section("What happened to trials", list(_faults(faults)) if faults else []),
            Section("Population", [_lineage(lineage)] if lineage else []),
            Section("Cost", [_cost(self)]),
            Section("Space", [_space(self)]),
        ])  # fmt: skip

    def on_terminal(self) -> Iterator[Block]:
        """Yields the best trials and what can be said of the best one."""
        sign = -1 if self.metric["greater_is_better"] else 1
        rows = sorted(self.trials, key=lambda row: (row["value"] is None, sign * (row["value"] or 0.0), row["number"]))
        cells = [
            [row["number"], row["state"], row["value"], ", ".join(map(_short, row["overrides"])), _time(row)]
            for row in rows[:MOST_ROWS]
        ]
        yield Table(["trial", "state", self.metric_name, "settings", "time"], cells)
        more = f"and {len(rows) - MOST_ROWS} more; " if len(rows) > MOST_ROWS else ""
        yield Text(f"{more}{self.counted() or 'no trials yet'} of {self.asked} asked")
        yield Text(" ".join(verdict(self)))
        if self.best is not None:
            yield Code("\n".join(f"  {override}" for override in self.best["overrides"]))


def search(
    request: Request,
    space: Path,
    method: str,
    trials: int | None,
    parallel: int = 1,
    seconds: int | None = None,
    storage: str | None = None,
) -> SearchReport:
    """Runs the remaining trials of a search, `parallel` at a time, and scores the winner.

    The file `space` has the settings to search. Without `trials`, their number is the method's. After `seconds`, trials
    stop with a checkpoint. The study is in `storage`, the URL of a database, or else in a file in the output folder.

    Raises:
        ConfigError: if settings or the space are invalid.
        InputError: if arguments are invalid, or the output folder holds something else.
        RunError: if no trial can be trained, or the winner cannot be scored.
    """
    began = time.monotonic()
    require_optuna()
    request = replace(request, cfg=request.load(), output=request.output.absolute())
    dimensions = read_space(space, request.task_type, str(request.config), request.overrides)
    check_method(method, dimensions, request.cfg, storage)
    data = request.cfg.data
    if data.validation_split == 0 and data.validation_file is None and data.dataset_name is None:
        raise ConfigError(["data.validation_split: a search compares trials on validation rows, and there are none; "
                           "set data.validation_file or data.validation_split"])  # fmt: skip
    require_gpus(parallel, request.launch.processes)
    count = trials or (len(grid_of(dimensions)) if method == "grid" else TRIALS)
    if method in POPULATION and count < population.LEAST:
        raise InputError("--trials: a population needs at least 2 members")
    deadline = None if seconds is None else time.time() + seconds
    metric = best_metric(request.cfg, request.task)
    asked = Search(request, dimensions, method, metric, count, parallel, deadline, storage)
    known = claim(asked)
    book = Book(asked, known["owner"])
    winner = _run(asked, book)
    return report_of(known, book.study, winner, time.monotonic() - began)


def _run(asked: Search, book: Book) -> dict[str, Any] | None:
    """Runs what is left, and returns what is known of the winner."""
    from filelock import FileLock

    def told(number: int, result: dict[str, Any]) -> None:
        params = result.get("settings") or book.trials()[number].params
        tell(number, result, overrides_of(params), asked.metric.name)

    book.open()
    if asked.method in POPULATION:
        with OutputLock(asked.folder):
            population.run(asked, book, told)
    else:
        run(asked, book, told)
    if any(each.state.name == "RUNNING" for each in book.trials()):
        say("some trials are not over: they run elsewhere, or the time is over")
        return winner_of(asked.folder)
    with FileLock(asked.folder / "score.lock"):
        found = score(asked, book)
        if found is not None:
            write_json(asked.folder / WINNER, found)
    return found


def searched(folder: Path, storage: str | None) -> SearchReport:
    """Returns what is known of the search in a folder, which may be running.

    Raises InputError if the folder holds no search.
    """
    known = read(folder)
    if known is None:
        raise InputError(f"--show: {folder.absolute()} is not the folder of a search")
    return report_of(known, load_study(folder, known["name"], storage), winner_of(folder), 0.0)


def report_of(known: Mapping[str, Any], study: Study, winner: Mapping[str, Any] | None, seconds: float) -> SearchReport:
    """Returns the report of what a folder says of its search, the study, the winner, and the time of this session."""
    found = study.get_trials(deepcopy=False)
    best = best_of(found, known["metric"]["greater_is_better"])
    rows = [row(each) for each in found if each.state.name != "WAITING" and result_of(each)["state"] != "abandoned"]
    return SearchReport(
        **{key: value for key, value in known.items() if key not in ("identity", "owner", "name")},
        method_help=METHODS[known["method"]].help,
        trials=rows,
        counts=dict(Counter(each["state"] for each in rows)),
        best=None if best is None else row(best),
        winner=None if winner is None else dict(winner),
        importance=importance(study, of_state(found)),
        cost={
            "seconds": round(sum(each["seconds"] for each in rows), 1),
            "steps": sum(each["steps"] for each in rows),
            "session_seconds": round(seconds, 1),
        },
    )


def verdict(found: SearchReport) -> list[str]:
    """Returns what can be said of the best trial, as sentences."""
    best, winner, metric = found.best, found.winner, found.metric_name
    if best is None:
        return ["No trial has come to its end."]
    of = sum(row["value"] is not None for row in found.trials)
    said = [f"Trial {best['number']} has the best {metric} on the validation rows: {format_value(best['value'])}, "
            f"the best of {of}."]  # fmt: skip
    if "history" in best:
        said.append("Its settings are those at the end of a schedule, which the table of the population shows.")
    if winner is None:
        return said
    sets = winner["sets"]
    if "test" in sets:
        said.append(f"On {sets['test']['rows']:,} test rows, which it was not chosen by: {_valued(sets['test'])}.")
    else:
        said.append("There are no test rows (data.test_file, data.test_split), so its score on other rows is unknown.")
    said += list(_against(found, winner))
    if len(winner["scored"]) > 1 + (winner["baseline"] in winner["scored"] and winner["baseline"] != winner["trial"]):
        said.append(f"The test rows have been used for trials {', '.join(map(str, winner['scored']))}: each further "
                    "winner makes them a little less new.")  # fmt: skip
    return said


def _against(found: SearchReport, winner: Mapping[str, Any]) -> Iterator[str]:
    """Yields how the winner compares with the configured settings."""
    metric = found.metric_name
    if winner["baseline"] is None:
        if found.method not in POPULATION:
            yield "The configured settings are not among the trials that came to their end, so nothing is compared."
        return
    if winner["baseline"] == winner["trial"]:
        yield "These are the configured settings: no other trial is better."
        return
    for name, scores in winner["sets"].items():
        change = scores.get("difference")
        if change is None:
            continue
        words = f"{metric} {change['value']:+.4g} against the configured settings (trial {winner['baseline']}) on the "
        words += f"{name} rows"
        if change["low"] is not None:
            words += f", interval {change['low']:+.3g} to {change['high']:+.3g}"
        told = {True: ": they cannot be told apart", False: "", None: ": one run of few rows cannot tell them apart"}
        yield f"{words}{told[same(change)]}."


def _valued(scores: Mapping[str, Any]) -> str:
    if scores["value"] is None:
        return "no value"
    interval = "" if scores["low"] is None else f" ({format_value(scores['low'])} to {format_value(scores['high'])})"
    return f"{format_value(scores['value'])}{interval}"


def _best(found: SearchReport) -> Iterator[Block]:
    best, winner = found.best, found.winner
    if best is not None:
        figures = [("validation", format_value(best["value"]))]
        if winner is not None and "test" in winner["sets"]:
            figures.append(("test", _valued(winner["sets"]["test"])))
        yield Highlights([*figures, ("trial", str(best["number"]))])
    for sentence in verdict(found):
        yield Text(sentence)
    if best is not None:
        yield Code("\n".join(best["overrides"]))
    if winner is not None:
        yield Text(f"{FLATTERS} {ONE_SEED}")
        yield Text("Its model is kept:")
        yield Code(f"toolkit predict {shlex.quote(winner['run'])} --input FILE", "bash")


def _pictures(found: SearchReport) -> Iterator[Figure]:
    metric, greater = found.metric_name, found.metric["greater_is_better"]
    valued = [row for row in found.trials if row["value"] is not None]
    if len(valued) < 2:
        return
    yield Figure("Value of each trial", pictures.values(valued, metric, greater), file="values.svg")
    ended = [row for row in valued if row["state"] != "diverged"] or valued
    drawn = pictures.coordinates(ended, found.space, metric, greater)
    yield Figure("Parallel coordinates", drawn, file="coordinates.svg")
    if several := [row for row in found.trials if len(row["evaluations"]) > 1]:
        best = found.best
        chart = pictures.curves(several, None if best is None else best["number"], metric)
        yield Figure("Evaluations", chart, file="evaluations.svg")
    if found.importance["values"]:
        yield Figure("Importance", pictures.importances(found.importance["values"]), file="importance.svg")


def _importance(found: SearchReport) -> Iterator[Block]:
    known = found.importance
    if known["values"]:
        yield Text(f"Importance by {known['method']}: a forest of regression trees learns the values of "
                   f"{known['trials']} trials, and says which part of their variance over the space each setting "
                   "explains alone. With few trials it is rough.")  # fmt: skip


def _trials(found: SearchReport) -> Iterator[Block]:
    keys = list(found.space)
    best = found.best
    rows = []
    for row in found.trials:
        chosen = best is not None and row["number"] == best["number"]
        own = [row["params"].get(key) for key in keys]
        rows.append([
            Cell(f"{row['number']}{' (best)' if chosen else ''}", row["number"]), row["state"], row["value"], *own,
            row["steps"] or None, _time(row),
        ])  # fmt: skip
    header = ["trial", "state", found.metric_name, *keys, "steps", "time"]
    yield Table(header, rows, sortable=True, stacked=True)
    shown = [state for state in STATES if found.counts.get(state)]
    yield Table(["state", "trials", "meaning"], [[s, found.counts[s], STATES[s]] for s in shown])
    over = sum(row["state"] not in ("infeasible", "running") for row in found.trials)
    if found.asked and (short := found.asked - over) > 0:
        yield Text(f"{counted(short, 'trial')} of {found.asked} are left; the same command continues with them.")


def _time(row: Mapping[str, Any]) -> Cell | None:
    return Cell(format_duration(row["seconds"]), row["seconds"]) if row["seconds"] else None


def _faults(rows: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    table = [[row["number"], row["state"], shorten(row["reason"].split("\n")[0], 300)] for row in rows]
    yield Table(["trial", "state", "why"], table, stacked=True)
    for row in rows:
        if "\n" in row["reason"]:
            yield Folded(f"trial {row['number']}", [Code(row["reason"])])


def _lineage(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = [
        [row["number"], part["step"], part.get("to"), part["parent"], part.get("value"), *part["settings"].values()]
        for row in rows
        for part in row["history"]
    ]
    keys = list(rows[0]["history"][0]["settings"])
    caption = "the settings of each member between two steps; one that copied another member continued from there"
    return Table(["member", "from step", "to step", "copied", "value", *keys], table, stacked=True, caption=caption)


def _cost(found: SearchReport) -> Table:
    cost = found.cost
    rows = [
        ["time of all trials", format_duration(cost["seconds"])],
        ["steps of all trials", f"{cost['steps']:,}"],
        ["time of this session", format_duration(cost["session_seconds"])],
        ["trials at the same time", str(found.parallel)],
    ]
    return Table(["what", "value"], rows)


def _space(found: SearchReport) -> Table:
    rows = []
    for key, each in found.space.items():
        words = ", ".join(each["choices"]) or f"{each['low']:g} to {each['high']:g}"
        words += ", by its logarithm" if each["log"] else f", in steps of {each['step']:g}" if each["step"] else ""
        rows.append([key, words])
    return Table(["setting", "values"], rows)


STUDY = "study.json"
"""File of what a folder says of its search."""
WINNER = "winner.json"
"""File of what is known of the winner."""
SHOWN = 8
"""Number of differences that an error lists."""


def claim(search: Search) -> dict[str, Any]:
    """Makes the output folder that of the search, unless it is already, and returns the contents of its `study.json`.

    Raises InputError if it is another search's, or holds something else.
    """
    folder, identity = search.folder, search.identity()
    known = read(folder)
    if known is None:
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise InputError(f"--output: {folder.absolute()} is not empty and is no search; use another folder")
        try:
            (folder / "trials").mkdir(parents=True)
        except OSError as error:
            raise InputError(f"--output: cannot make the folder {folder.absolute()}: {error.strerror}") from error
        known = {"identity": identity, "owner": uuid.uuid4().hex, "name": name_of(identity)}
    if known["identity"] != identity:
        before, now = known["identity"], identity
        keys = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)]
        listed = [
            f"  - {key}: it has {shown_value(before.get(key))}, now {shown_value(now.get(key))}" for key in keys[:SHOWN]
        ]
        more = [f"  - and {len(keys) - SHOWN} more"] if len(keys) > SHOWN else []
        raise InputError("\n".join([f"--output: {folder} holds a search with other settings:", *listed, *more,
                                    "Restore them, or use another folder"]))  # fmt: skip
    known |= _described(search) | {"command": shlex.split(search.request.command)}
    write_json(folder / STUDY, known)
    return known


def _described(search: Search) -> dict[str, Any]:
    """Returns the fields of a report that do not follow from the trials."""
    request = search.request
    return {
        "recipe": str(request.recipe),
        "config": str(request.config),
        "overrides": list(request.overrides),
        "space": search.identity()["space"],
        "method": search.method,
        "metric": {"name": search.metric.name, "greater_is_better": search.metric.greater_is_better},
        "num_processes": request.launch.processes,
        "asked": search.trials,
        "parallel": search.parallel,
        "storage": "the database of --storage" if search.storage is not None else None,
    }


def read(folder: Path) -> dict[str, Any] | None:
    """Returns what a folder says of its search; None if it is that of none."""
    with suppress(OSError, ValueError):
        found = read_json(folder / STUDY)
        if isinstance(found, dict) and {"identity", "owner", "name"} <= found.keys():
            return found
    return None


def winner_of(folder: Path) -> dict[str, Any] | None:
    """Returns what is known of the winner, or None if none was scored."""
    with suppress(OSError, ValueError):
        return dict(read_json(folder / WINNER))
    return None


FEWEST = 4
"""Fewest trials from which an importance is computed."""
SEED = 20


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
        "evaluations": result.get("evaluations") or [list(pair) for pair in sorted(trial.intermediate_values.items())],
        "seconds": float(result.get("seconds", 0.0)),
        "steps": int(result.get("steps") or 0),
        "metrics": {key: value for key, value in result.get("metrics", {}).items() if key.startswith("eval_")},
        **({"history": result["history"]} if "history" in result else {}),
    }


def importance(study: Study, trained: Sequence[FrozenTrial]) -> dict[str, Any]:
    """Returns how much each setting explains of the values of complete trials, by fANOVA (Hutter et al. 2014).

    A forest of regression trees learns the values of the points; the importance of a setting is its part of the
    variance of the forest's predictions over the space. There are no `values` for `FEWEST` trials or equal ones.
    """
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    complete = [each for each in trained if each.state.name == "COMPLETE" and result_of(each)["state"] != "repeated"]
    found: dict[str, float] = {}
    if len(complete) > FEWEST and len({each.values[0] for each in complete}) > 1:
        with warnings.catch_warnings(action="ignore"):  # of settings that have one value in all trials
            shares = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=SEED))
        found = {key: float(share) for key, share in shares.items()}
    return {"method": "fANOVA (Hutter et al. 2014)", "trials": len(complete), "values": found}


def tell(number: int, result: Mapping[str, Any], overrides: Sequence[str], metric: str) -> None:
    """Prints a line about a trial that is over."""
    value = "" if result.get("value") is None else f" {metric.removeprefix('eval_')} {format_value(result['value'])}"
    head = f"trial {number}: {result['state']}{value}, {format_duration(result.get('seconds', 0.0))}"
    settings = ", ".join(_short(override) for override in overrides)
    say(fill(f"{head}; {settings}", PLAIN_WIDTH, subsequent_indent="  "))
    if result.get("reason"):
        reason = shorten(result["reason"].split("\n")[0], 300)
        say(fill(reason, PLAIN_WIDTH, initial_indent="  ", subsequent_indent="  "))


def _short(override: str) -> str:
    """Returns an override without its section, and a number with four digits."""
    key, _, text = override.partition("=")
    try:
        text = format_value(float(text))
    except ValueError:
        text = shorten(text, 40)
    return f"{key.rpartition('.')[2]}={text}"
