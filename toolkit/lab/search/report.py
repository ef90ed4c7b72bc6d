"""The results of a search as a folder, a page, and words for the terminal."""

from __future__ import annotations

import shlex
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich.table import Table as RichTable
from rich.text import Text as RichText

from toolkit.base.console import counted, format_duration, format_value, rich_console, shorten
from toolkit.base.errors import InputError
from toolkit.base.files import read_json, write_json
from toolkit.config.messages import show as shown_value
from toolkit.document.blocks import Block, Cell, Code, Figure, Folded, Gallery, Highlights, Page, Section, Table, Text
from toolkit.lab.search import pictures
from toolkit.lab.search.space import facts, overrides_of
from toolkit.lab.search.study import Search, name_of, result_of
from toolkit.lab.search.study import counted as of_state
from toolkit.lab.search.trials import best_of
from toolkit.lab.search.winner import same, settings_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial


Found = Mapping[str, Any]
"""Contents of `search.json`."""
FLATTERS = (
    "The best of many scores on the same rows flatters itself: it was chosen for its luck with these rows too. Only "
    "rows by which nothing was chosen say what to expect."
)
ONE_SEED = (
    "The interval is that of the evaluated rows (bootstrap, 95 %). It does not include how much runs differ by their "
    "seed, which toolkit compare with --seeds measures."
)
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


def title_and_lead(found: Found) -> tuple[str, str]:
    """Returns the title, and a sentence on how was searched."""
    counts = found["counts"]
    said = ", ".join(f"{counts[state]} {state}" for state in STATES if counts.get(state))
    return f"Search for {found['config']}", f"{found['method']}: {found['method_help']}. Trials: {said or 'none'}."


def sections(found: Found) -> list[Section]:
    """Returns the sections of the page."""
    parts = [Section("Best", list(_best(found)))]
    drawn = list(_pictures(found))
    if drawn:
        parts.append(Section("Pictures", [Gallery(drawn), *_importance(found)]))
    parts.append(Section("Trials", list(_trials(found))))
    if faults := [row for row in found["trials"] if row["reason"] and row["state"] != "repeated"]:
        parts.append(Section("What happened to trials", list(_faults(faults))))
    if lineage := [row for row in found["trials"] if "history" in row]:
        parts.append(Section("Population", [_lineage(lineage)]))
    parts.append(Section("Cost", [_cost(found)]))
    parts.append(Section("Space and command", [_space(found), Code(shlex.join(found["command"]), "bash")]))
    return parts


def metric_of(found: Found) -> str:
    """Returns the name of the metric without its prefix."""
    return str(found["metric"]["name"]).removeprefix("eval_")


def verdict(found: Found) -> list[str]:
    """Returns what can be said of the best trial, as sentences."""
    best, winner, metric = found["best"], found["winner"], metric_of(found)
    if best is None:
        return ["No trial has come to its end."]
    of = sum(row["value"] is not None for row in found["trials"])
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
    said += list(_against(found))
    if len(winner["scored"]) > 1 + (winner["baseline"] in winner["scored"] and winner["baseline"] != winner["trial"]):
        said.append(f"The test rows have been used for trials {', '.join(map(str, winner['scored']))}: each further "
                    "winner makes them a little less new.")  # fmt: skip
    return said


def _against(found: Found) -> Iterator[str]:
    """Yields how the winner compares with the configured settings."""
    winner, metric = found["winner"], metric_of(found)
    if winner["baseline"] is None:
        if found["method"] != "pbt":
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


def _best(found: Found) -> Iterator[Block]:
    best, winner = found["best"], found["winner"]
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


def _pictures(found: Found) -> Iterator[Figure]:
    metric, greater = metric_of(found), found["metric"]["greater_is_better"]
    valued = [row for row in found["trials"] if row["value"] is not None]
    if len(valued) < 2:
        return
    yield Figure("Value of each trial", pictures.values(valued, metric, greater), file="values.svg")
    ended = [row for row in valued if row["state"] != "diverged"] or valued
    drawn = pictures.coordinates(ended, found["space"], metric, greater)
    yield Figure("Parallel coordinates", drawn, file="coordinates.svg")
    several = [row for row in found["trials"] if len(row["evaluations"]) > 1]
    if several:
        best = found["best"]
        chart = pictures.curves(several, None if best is None else best["number"], metric)
        yield Figure("Evaluations", chart, file="evaluations.svg")
    if found["importance"]["values"]:
        yield Figure("Importance", pictures.importances(found["importance"]["values"]), file="importance.svg")


def _importance(found: Found) -> Iterator[Block]:
    known = found["importance"]
    if known["values"]:
        yield Text(f"Importance by {known['method']}: a forest of regression trees learns the values of "
                   f"{known['trials']} trials, and says which part of their variance over the space each setting "
                   "explains alone. With few trials it is rough.")  # fmt: skip


def _trials(found: Found) -> Iterator[Block]:
    keys = list(found["space"])
    best = found["best"]
    rows = []
    for row in found["trials"]:
        chosen = best is not None and row["number"] == best["number"]
        own = [row["params"].get(key) for key in keys]
        rows.append([
            Cell(f"{row['number']}{' (best)' if chosen else ''}", row["number"]), row["state"], row["value"], *own,
            row["steps"] or None, Cell(format_duration(row["seconds"]), row["seconds"]) if row["seconds"] else None,
        ])  # fmt: skip
    header = ["trial", "state", metric_of(found), *keys, "steps", "time"]
    yield Table(header, rows, sortable=True, stacked=True)
    shown = [state for state in STATES if found["counts"].get(state)]
    yield Table(["state", "trials", "meaning"], [[s, found["counts"][s], STATES[s]] for s in shown])
    if found["asked"] and (short := found["asked"] - _over(found)) > 0:
        yield Text(f"{counted(short, 'trial')} of {found['asked']} are left; the same command goes on with them.")


def _over(found: Found) -> int:
    return sum(row["state"] not in ("infeasible", "running") for row in found["trials"])


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
    caption = "the settings of each member between two steps; one that copied another member went on from there"
    return Table(["member", "from step", "to step", "copied", "value", *keys], table, stacked=True, caption=caption)


def _cost(found: Found) -> Table:
    cost = found["cost"]
    rows = [
        ["time of all trials", format_duration(cost["seconds"])],
        ["steps of all trials", f"{cost['steps']:,}"],
        ["time of this session", format_duration(cost["session_seconds"])],
        ["trials at the same time", str(found["parallel"])],
    ]
    return Table(["what", "value"], rows)


def _space(found: Found) -> Table:
    rows = []
    for key, each in found["space"].items():
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


def claim(search: Search, command: Sequence[str]) -> dict[str, Any]:
    """Makes the folder that of the search, and returns what it says; a folder of the same search goes on.

    Args:
        search: the search.
        command: the command line.

    Raises:
        InputError: if it is another search's, or holds something else.
    """
    folder, identity = search.folder, search.identity()
    known = read(folder)
    if known is None:
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise InputError(f"--output-dir: {folder.absolute()} is not empty and is no search; use another folder")
        try:
            (folder / "trials").mkdir(parents=True)
        except OSError as error:
            raise InputError(f"--output-dir: cannot make the folder {folder.absolute()}: {error.strerror}") from error
        known = {"identity": identity, "owner": uuid.uuid4().hex, "name": name_of(identity)}
    if known["identity"] != identity:
        before, now = known["identity"], identity
        keys = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)]
        listed = [
            f"  - {key}: it has {shown_value(before.get(key))}, now {shown_value(now.get(key))}" for key in keys[:SHOWN]
        ]
        more = [f"  - and {len(keys) - SHOWN} more"] if len(keys) > SHOWN else []
        raise InputError("\n".join([f"--output-dir: {folder} holds a search with other settings:", *listed, *more,
                                    "Restore them, or use another folder"]))  # fmt: skip
    known |= _described(search) | {"command": list(command)}
    write_json(folder / STUDY, known)
    return known


def _described(search: Search) -> dict[str, Any]:
    """Returns what a page says of a search that its trials do not say."""
    return {
        "recipe": str(search.recipe),
        "config": str(search.config),
        "overrides": list(search.overrides),
        "space": search.identity()["space"],
        "method": search.method,
        "metric": {"name": search.metric.name, "greater_is_better": search.metric.greater_is_better},
        "num_processes": search.launch.processes,
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
        found: dict[str, Any] = read_json(folder / WINNER)
        return found
    return None


def shown_facts(known: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `search.json` says of a search."""
    return {key: value for key, value in known.items() if key not in ("identity", "owner", "name")}


def write(found: Mapping[str, Any], folder: Path) -> None:
    """Writes `search.json`, and the page as HTML and Markdown with its charts."""
    from toolkit.document.render import save_page

    write_json(folder / "search.json", found)
    save_page(folder, "search", Page(*title_and_lead(found), sections(found)))


FEWEST = 4
"""Fewest trials from which an importance is computed."""
SEED = 20


def build(known: Mapping[str, Any], study: Study, winner: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
    """Returns a search as JSON values.

    Args:
        known: what its folder says: see `toolkit.lab.search.report`.
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


WIDTH = 80
MOST_ROWS = 20
"""Trials that the table shows: the best ones."""


def tell(number: int, result: Mapping[str, Any], overrides: Sequence[str], metric: str) -> None:
    """Prints a line about a trial that is over."""
    value = "" if result.get("value") is None else f" {metric.removeprefix('eval_')} {format_value(result['value'])}"
    head = f"trial {number}: {result['state']}{value}, {format_duration(result.get('seconds', 0.0))}"
    settings = ", ".join(_short(override) for override in overrides)
    print(fill(f"{head}; {settings}", WIDTH, subsequent_indent="  "), flush=True)
    if result.get("reason"):
        print(fill(shorten(result["reason"].split("\n")[0], 300), WIDTH, initial_indent="  ", subsequent_indent="  "),
              flush=True)  # fmt: skip


def _short(override: str) -> str:
    """Returns an override without its section, and a number with four digits."""
    key, _, text = override.partition("=")
    try:
        text = format_value(float(text))
    except ValueError:
        text = shorten(text, 40)
    return f"{key.rpartition('.')[2]}={text}"


def show(found: Mapping[str, Any]) -> None:
    """Prints the best trials and what can be said of the best one."""
    console = rich_console()
    console.print()
    sign = -1 if found["metric"]["greater_is_better"] else 1
    rows = sorted(found["trials"], key=lambda row: (row["value"] is None, sign * (row["value"] or 0.0), row["number"]))
    table = RichTable(box=None, pad_edge=False)
    table.add_column("trial", justify="right")
    table.add_column("state")
    table.add_column(metric_of(found), justify="right")
    table.add_column("settings", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    for row in rows[:MOST_ROWS]:
        value = "" if row["value"] is None else format_value(row["value"])
        settings = ", ".join(map(_short, row["overrides"]))
        table.add_row(
            *map(RichText, (str(row["number"]), row["state"], value, settings, format_duration(row["seconds"])))
        )
    console.print(table)
    if len(rows) > MOST_ROWS:
        print(f"and {len(rows) - MOST_ROWS} more")
    counts = ", ".join(f"{found['counts'][state]} {state}" for state in STATES if found["counts"].get(state))
    print(f"\n{counts or 'no trials yet'} of {found['asked']} asked")
    for sentence in verdict(found):
        print(fill(sentence, WIDTH, break_long_words=False))
    if found["best"] is not None:
        print("\n".join(["", *(f"  {override}" for override in found["best"]["overrides"])]))
