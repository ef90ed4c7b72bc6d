"""The page of a search, as sections that are written as Markdown and as HTML, and its words for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolkit.base.console import counted, format_duration, format_value, shorten
from toolkit.document.blocks import Block, Cell, Code, Figure, Folded, Gallery, Highlights, Section, Table, Text
from toolkit.lab.search import pictures
from toolkit.lab.search.winner import same

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
