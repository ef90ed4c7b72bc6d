"""Trains classifiers of texts and of images step by step, and writes the pages and notebooks of both.

python docs/worked_example.py [--run [text] [images] [cifar10]]

`--run` measures the walk-throughs of worked_walks.py that are named, or all that have figures. Pages and notebooks are
written from the figures of the last measurement (docs/worked_example.json and docs/worked_example_images.json).
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import worked_notebook
from worked_walks import METRIC, WALKS, Part, Step, Walk

from toolkit.catalog.entries import CATALOG
from toolkit.config.keys import to_yaml
from toolkit.document import render
from toolkit.document.charts import line_chart
from toolkit.document.svg import sheet
from toolkit.lab.compare import pictures
from toolkit.lab.compare.page import SAME, interval, marked, notes, shown
from toolkit.lab.compare.statistics import difference, summarise
from toolkit.lab.compare.variants import combine, read_switch
from toolkit.lab.jobs.jobs import MEASURED

HERE = Path(__file__).resolve().parent
PICTURES = HERE / "images"
RECIPE = "recipes/reviews.py"
THREADS = 1
KEPT = ("recipe", "config", "overrides", "metric", "hardware", "versions", "seeds", "num_processes", "variants")
"""The parts of comparison.json that a page uses."""

Found = Mapping[str, Any]
Change = Mapping[str, Any]
"""A change of a figure: `value`, `low` and `high` of a ratio (memory, time) or difference (metric), and `pairs`."""


def page_file(walk: Walk) -> Path:
    """Returns the page of a walk-through."""
    return HERE / f"{walk.file}.md"


def figures_file(walk: Walk) -> Path:
    """Returns the file of its figures."""
    return HERE / f"{walk.file}.json"


def notebook_file(walk: Walk) -> Path:
    """Returns its notebook."""
    return HERE / f"{walk.file}.ipynb"


def output(walk: Walk, part: str = "") -> Path:
    """Returns the folder of one of its commands."""
    return Path("outputs") / walk.file.replace("_", "-") / part


def finder_command(walk: Walk) -> list[str]:
    """Returns the command of the range test."""
    return ["lr-find", RECIPE, "--config", walk.config, "--output", str(output(walk, "rates")), *walk.finder]


def compare_command(walk: Walk, part: Part, rates: Mapping[str, str]) -> list[str]:
    """Returns the one command that measures a part."""
    switches = [word for switch in _switches(part, rates) for word in ("--switch", switch)]
    options = ["--seeds", str(walk.seeds), "--output", str(output(walk, part.folder))]
    plain = _with(part.plain, rates)
    return ["compare", RECIPE, "--config", walk.config, "--mode", "cumulative", *switches, *options, *plain]


def pretraining_command(walk: Walk, rates: Mapping[str, str]) -> list[str]:
    """Returns the command that trains the model to transfer from."""
    return ["train", RECIPE, "--config", walk.config, *_with(walk.pretraining, rates)]


def _switches(part: Part, rates: Mapping[str, str]) -> list[str]:
    return _with(part.switches, rates)


def _with(settings: Sequence[str], rates: Mapping[str, str]) -> list[str]:
    """Returns settings with the rates that were found in place of their names."""
    found = list(settings)
    for name, rate in rates.items():
        found = [setting.replace(f"{{{name}}}", rate) for setting in found]
    return found


def rates_of(found: Found) -> dict[str, str]:
    """Returns the rates that the range test suggests, by name of the schedule; empty without one."""
    choices = found.get("finder", {}).get("overrides", {})
    return {name: choices[name][0].partition("=")[2] for name in choices if name in ("plain", "one_cycle")}


def measured(walk: Walk) -> dict[str, Any]:
    """Runs all commands of a walk-through anew, and returns what its page needs."""
    shutil.rmtree(output(walk), ignore_errors=True)
    found: dict[str, Any] = {}
    if walk.finder:
        _toolkit(finder_command(walk))
        test = json.loads((output(walk, "rates") / "lr_find.json").read_text(encoding="utf-8"))
        found["finder"] = {name: test[name] for name in ("overrides", "curve", "smoothed", "steps", "rows_per_step")}
    rates = rates_of(found)
    found = {**_compared(walk, walk.main, rates), **found}
    if walk.transfer:
        _toolkit(pretraining_command(walk, rates))
        found["transfer"] = _compared(walk, walk.transfer, rates)
    return found


def _toolkit(arguments: Sequence[str]) -> None:
    # With one thread, other programs disturb times the least, and machines can be compared.
    environ = os.environ | {"OMP_NUM_THREADS": str(THREADS)}
    subprocess.run([sys.executable, "-m", "toolkit", *arguments], check=True, env=environ)


def _compared(walk: Walk, part: Part, rates: Mapping[str, str]) -> dict[str, Any]:
    _toolkit(compare_command(walk, part, rates))
    found = json.loads((output(walk, part.folder) / "comparison.json").read_text(encoding="utf-8"))
    if failed := [variant["name"] for variant in found["variants"] if "figures" not in variant]:
        sys.exit(f"not measured: {', '.join(failed)}")
    return collected(walk, part, rates, found)


def collected(walk: Walk, part: Part, rates: Mapping[str, str], found: Found) -> dict[str, Any]:
    """Returns what the page needs of a comparison, with the figures of each run and the change of each step.

    `clock` says which times are meant: see `CLOCKS`. `seeds` of a variant are its figures by seed; `step` compares them
    with those of the variant before it, and `total` of the result compares the last variant with the first.
    """
    clock = "wall" if found["hardware"]["gpus"] else "processor"  # which only waits for GPUs
    kept: dict[str, Any] = {name: found[name] for name in KEPT} | {"clock": clock}
    kept["hardware"] = {name: found["hardware"][name] for name in ("machine", "cpus", "threads", "gpus")}
    switches = [read_switch(switch, {}) for switch in _switches(part, rates)]
    slugs = [variant.slug for variant in combine(switches, "cumulative")]
    runs = [_runs(walk, part, slug, each, clock) for slug, each in zip(slugs, found["variants"], strict=True)]
    titles = ["baseline", *(f"+ {change.title.lower()}" for change in part.changes)]
    for number, (variant, each) in enumerate(zip(kept["variants"], runs, strict=True)):
        if clock == "processor":
            del variant["load"]  # hardly disturbs these times
        for curve in (variant["loss"], *variant["losses"]):
            curve[:] = [[step, float(f"{loss:.4g}")] for step, loss in curve]  # as exact as a chart
        summary = summarise(list(each.values()))
        variant["title"], variant["spread"] = titles[number], summary["spread"]
        variant["figures"] |= {name: asdict(figure) for name, figure in summary["figures"].items()}
        trained = [run["figures"]["train_seconds"] for run in each.values()]
        variant["figures"]["train_seconds"] = {
            "value": statistics.median(trained), "low": min(trained), "high": max(trained)
        }  # fmt: skip
        names = (*walk.names, "steps")
        variant["seeds"] = {seed: {name: run["figures"][name] for name in names} for seed, run in each.items()}
        if number:
            variant["step"] = _changes(walk, each, runs[number - 1])
    return {**kept, "total": _changes(walk, runs[-1], runs[0])}


def _runs(walk: Walk, part: Part, slug: str, variant: Found, clock: str) -> dict[int, dict[str, Any]]:
    """Returns the measurements of a variant's runs by seed, with times of a clock."""
    found = {}
    for seed, score in variant["metrics"][METRIC]["values"].items():
        # A folder may also hold runs of earlier versions of the code.
        files = (output(walk, part.folder) / "runs" / slug).glob(f"seed-{seed}-*/{MEASURED}")
        newest = max(files, key=lambda file: file.stat().st_mtime)
        run = json.loads(newest.read_text(encoding="utf-8"))
        assert run["figures"][METRIC] == score, newest
        used = run["steps"]["processor"] if clock == "processor" else list(accumulate(run["steps"]["seconds"]))
        # The first step has no beginning; like others, it is not counted, because it warms up.
        run["steps"]["seconds"] = [0.0, *(after - before for before, after in pairwise(used))]
        figures = summarise([run])["figures"]
        run["figures"] |= {name: figures[name].value for name in ("train_peak", "step_seconds")}
        run["figures"]["train_seconds"] = used[-1] - used[0]
        found[int(seed)] = run
    return found


def _changes(walk: Walk, after: Mapping[int, Any], before: Mapping[int, Any]) -> dict[str, Any]:
    """Compares runs seed by seed: ratios of memory and time, the difference of the metric, all with 95 % intervals."""
    found = {METRIC: _paired(after, before, METRIC)}
    for name in (name for name in walk.names if name != METRIC):
        change = _paired(_logarithms(after, name), _logarithms(before, name), name)
        found[name] = {key: value if key == "pairs" else math.exp(value) for key, value in change.items()}
    return found


def _paired(after: Mapping[int, Any], before: Mapping[int, Any], name: str) -> dict[str, Any]:
    found = difference(after, before, name)
    assert found is not None  # every seed ran
    return asdict(found)


def _logarithms(runs: Mapping[int, Any], name: str) -> dict[int, Any]:
    """Returns the logarithms of a figure in the form of measurements, without draws: a difference is then a ratio."""
    return {
        seed: {"figures": {name: math.log(run["figures"][name])}, "metrics": {name: {"draws": []}}}
        for seed, run in runs.items()
    }


def rendered(walk: Walk, found: Found) -> tuple[str, dict[str, str]]:
    """Returns the page for the collected figures, and its charts by file name."""
    notebook = notebook_file(walk).name
    parts = [
        *_introduction(walk, found),
        f"The same as a notebook: [{notebook}]({notebook}).",
        _block(*_commands(walk, found)),
        _table(walk, found),
        *_result(walk, found),
        "## Step by step",
        "Each step is compared with the one before it, seed by seed: memory and time by their ratio, accuracy by its "
        f"difference, with 95 % intervals. `{SAME}` marks a change that could be chance; without any effect, one in "
        "twenty is not marked.",
    ]
    steps = zip(walk.main.changes, pairwise(found["variants"]), strict=True)
    for number, (change, (before, after)) in enumerate(steps):
        curve = [f"![{CURVE}](images/{walk.file}_rates.svg)"] if walk.finder and not number else []
        parts += [f"### {change.title}", change.why, *curve, _effect(walk, change, before, after)]
    if walk.transfer:
        transfer = found["transfer"]
        parts += ["## Transfer", walk.transfer_lead, _block(*_transfer_commands(walk, found)), _table(walk, transfer)]
        for change, pair in zip(walk.transfer.changes, pairwise(transfer["variants"]), strict=True):
            parts += [f"### {change.title}", change.why, _effect(walk, change, *pair)]
    parts += ["## Each run", _each_run(walk, found)]
    titled = [variant | {"name": variant["title"]} for variant in found["variants"]]
    drawn = pictures.draw(titled, range(1, len(titled) + 1), found["metric"])
    if walk.finder:
        test = found["finder"]
        line = ([rate for rate, _ in test["curve"]], test["smoothed"])
        drawn["rates"] = line_chart({"loss, smoothed": line}, title=CURVE, x_label="learning rate", y_label="loss",
                                    log_x=True)  # fmt: skip
    return "\n\n".join(parts) + "\n", {f"{walk.file}_{key}.svg": sheet([drawing]) for key, drawing in drawn.items()}


CLOCKS = {
    "processor": " Times are those of the processor, which other programs on the machine disturb less: of a step, and "
    "of all from the first step to the last, with evaluations and checkpoints.",
    "wall": " The time of a training is that of its steps.",
}
CURVE = "Loss at each learning rate of the range test"


def _block(*lines: str) -> str:
    return render.fenced("\n".join([f"export OMP_NUM_THREADS={THREADS}", *lines]), "bash")


def _commands(walk: Walk, found: Found) -> list[str]:
    """Returns the commands that measure the main part."""
    first = [f"toolkit {shlex.join(finder_command(walk))}"] if walk.finder else []
    compare = shlex.join(compare_command(walk, walk.main, rates_of(found)))
    return [f"toolkit data get {walk.dataset}", *first, f"toolkit {compare}"]


def _transfer_commands(walk: Walk, found: Found) -> list[str]:
    if walk.transfer is None:
        return []
    rates = rates_of(found)
    commands = (pretraining_command(walk, rates), compare_command(walk, walk.transfer, rates))
    return [f"toolkit {shlex.join(each)}" for each in commands]


def _table(walk: Walk, found: Found) -> str:
    """Returns the figures of each training, with their intervals."""
    rows = [
        [number, variant["title"].capitalize() if number == 1 else variant["title"],
         *(f"{_shown(key, figure['value'])} ({interval(_kind(key), figure)})"
           for key in walk.names if (figure := variant["figures"][key]))]
        for number, variant in enumerate(found["variants"], start=1)
    ]  # fmt: skip
    return render.table(["", "training", *walk.names.values()], rows)


def _each_run(walk: Walk, found: Found) -> str:
    names = {"steps": "steps", **walk.names} if "clock" in found else walk.names
    rows = [
        [number, seed, *(_shown(key, figures[key]) for key in names)]
        for number, variant in enumerate(found["variants"], start=1)
        for seed, figures in variant["seeds"].items()
    ]
    return render.table(["training", "seed", *names.values()], rows)


def _kind(name: str) -> str:
    """Returns the figure of a comparison that has the same unit."""
    return "step_seconds" if name == "train_seconds" else name


def _shown(name: str, value: float) -> str:
    return shown(_kind(name), value)


def notebook(walk: Walk, found: Found) -> str:
    """Returns the notebook for the collected figures."""
    of_one_thread = [line.replace("toolkit ", f"OMP_NUM_THREADS={THREADS} toolkit ", 1)
                     for line in (*_commands(walk, found)[1:], *_transfer_commands(walk, found))]  # fmt: skip
    return worked_notebook.rendered(
        walk, found, _introduction(walk, found), _result(walk, found), [_commands(walk, found)[0], *of_one_thread]
    )


def _introduction(walk: Walk, found: Found) -> list[str]:
    return [f"# {walk.title}", _lead(walk, found), *([] if found.get("clock") == "processor" else notes(found))]


def _result(walk: Walk, found: Found) -> list[str]:
    """Returns what all changes did, and the charts."""
    charts = (f"![{title}](images/{walk.file}_{name}.svg)" for name, title in pictures.TITLES.items())
    return [_conclusion(walk, found), *charts]


def _lead(walk: Walk, found: Found) -> str:
    """Returns what is trained, on what, and how it was measured."""
    data = CATALOG[walk.dataset].summary.split(":")[0]
    name = next(name for name, each in WALKS.items() if each is walk)
    clock = CLOCKS.get(found.get("clock"), "")
    return (
        f"{walk.lead.format(data=data, config=found['config'])} Each change is made on top of the previous ones. All "
        f"figures come from `toolkit compare` ([how to read them](compare.md)) with {len(found['seeds'])} seeds and "
        f"{found['hardware']['threads']} CPU thread; intervals are in brackets.{clock} `make worked-example "
        f"WALK={name}` repeats all measurements and writes this page."
    )


def _conclusion(walk: Walk, found: Found) -> str:
    """Returns what all changes do together, and which of them help and cost something."""
    names = walk.names
    pairs = zip(walk.main.changes, found["variants"][1:], strict=True)
    changes = [(change, variant["step"]) for change, variant in pairs]
    helping = [_named(walk, change, each) for change, step in changes if (each := _improved(change, step))]
    costly = [
        _named(walk, change, each)
        for change, step in changes
        if (each := {name: step[name] for name in names if _effect_of(name, step[name]) < 0})
    ]
    total = ", ".join(f"{names[name]} {_written(name, found['total'][name])}" for name in names)
    chance = [change.title.lower() for change, step in changes if not _improved(change, step)]
    together = " and ".join(filter(None, (", ".join(chance[:-1]), *chance[-1:])))
    unclear = f" {together.capitalize()} may not help: repeat with more seeds to know." if chance else ""
    costs = f" Costs: {'; '.join(costly)}." if costly else " None of them makes another figure worse."
    return (
        f"All changes together: {total}. Changes that improve what they are meant to by more than chance explains: "
        f"{'; '.join(helping) or 'none'}.{unclear}{costs}"
    )


def _improved(change: Step, step: Found) -> dict[str, Change]:
    """Returns the figures that a change is meant to improve and does."""
    return {name: step[name] for name in change.aims if _effect_of(name, step[name]) > 0}


def _named(walk: Walk, change: Step, figures: Mapping[str, Change]) -> str:
    """Returns the title of a change with some of the figures that it changes."""
    each = (f"{walk.names[name]} {_written(name, figure)}" for name, figure in figures.items())
    return f"{change.title.lower()} ({', '.join(each)})"


def _same(name: str, change: Change) -> bool:
    """Whether a change could be chance: its interval contains no change."""
    return bool(change["low"] <= (0 if name == METRIC else 1) <= change["high"])


def _effect_of(name: str, change: Change) -> int:
    """Returns 1 for an improvement, -1 for the opposite, and 0 for a change that could be chance."""
    if _same(name, change):
        return 0
    return 1 if (change["value"] > 0 if name == METRIC else change["value"] < 1) else -1


def _written(name: str, change: Change) -> str:
    """Returns a ratio or difference, marked if it could be chance."""
    return marked(f"{change['value']:+.3f}" if name == METRIC else f"x{change['value']:.2f}", _same(name, change))


def _effect(walk: Walk, change: Step, before: Found, after: Found) -> str:
    """Returns what one change did: the settings changed and the effect on each figure."""
    lines = []
    for name, title in walk.names.items():
        old, new = (_shown(name, variant["figures"][name]["value"]) for variant in (before, after))
        figure = after["step"][name]
        ends = (f"{figure[end]:+.3f}" if name == METRIC else f"x{figure[end]:.2f}" for end in ("low", "high"))
        lines.append(f"- {title}: {old} -> {new}, {_written(name, figure)} ({' to '.join(ends)})")
    ran, runs = (
        [seed["steps"] for seed in variant["seeds"].values() if "steps" in seed] for variant in (before, after)
    )
    if ran != runs:
        lines.append(f"- steps by seed: {', '.join(map(str, ran))} -> {', '.join(map(str, runs))}")
    if not _improved(change, after["step"]):
        lines.append(f"\nNo improvement of {' or '.join(walk.names[name] for name in change.aims)} beyond chance.")
    return "\n".join([f"Changed: {', '.join(_changed(before, after))}.", "", *lines])


def _changed(before: Found, after: Found) -> Sequence[str]:
    """Returns the settings in which a variant differs from the one before it."""
    earlier = {key: pair[1] for key, pair in before["differs"].items()}
    back = {key: (value, first) for key, (first, value) in before["differs"].items()}  # to the baseline's value
    return [
        f"`{key}: {to_yaml(value)}`"
        for key, (first, value) in (back | after["differs"]).items()
        # A model is either at a path or made from its configuration: the path says both.
        if not key.startswith("model.from_config.") and earlier.get(key, first) != value
    ]


def main(*arguments: str) -> None:
    """Measures walk-throughs after `--run`; then writes the page, charts and notebook of all that have figures."""
    for name, walk in WALKS.items():
        figures = figures_file(walk)
        if arguments[:1] == ("--run",) and (name in arguments or (len(arguments) == 1 and figures.is_file())):
            text = json.dumps(measured(walk), indent=1) + "\n"
            curves = re.sub(r"\[[\d\s.,e+\[\]-]*\]", lambda numbers: re.sub(r"\s+", "", numbers[0]), text)
            figures.write_text(curves, encoding="utf-8")  # a line for each list of numbers
        if not figures.is_file():
            continue
        found = json.loads(figures.read_text(encoding="utf-8"))
        page, drawn = rendered(walk, found)
        page_file(walk).write_text(page, encoding="utf-8")
        notebook_file(walk).write_text(notebook(walk, found), encoding="utf-8")
        for file, picture in drawn.items():
            (PICTURES / file).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
