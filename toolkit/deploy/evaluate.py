"""`toolkit evaluate`: the metrics of a finished run on another labelled file, also against those of another run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.api.batch import EvalData
from toolkit.api.task import Task
from toolkit.base.console import counted, print_table, say, shorten, warn
from toolkit.base.errors import InputError
from toolkit.base.files import write_json
from toolkit.base.outputs import output_folder
from toolkit.data.columns import Beside
from toolkit.data.readers.raw import Reading
from toolkit.data.table import NUMBER, SLICES, apply_policy, exclusions, load_table, skipped, write_bad_rows
from toolkit.deploy.trained import TrainedRun
from toolkit.distributed.collectives import on_main
from toolkit.document.blocks import Page, Section, Table, Text
from toolkit.document.render import print_blocks, save_page
from toolkit.metrics.intervals import FEWEST_EXAMPLES, POWER, Gain, holm
from toolkit.metrics.score import Score
from toolkit.report.scores import Scores, quality_of
from toolkit.report.subsets import INTERVAL_DRAWS, MIN_DRAWS, Subsets, draws, main_score, slice_blocks, slices
from toolkit.system.rank_order import local_main_first


def evaluate_file(
    run: TrainedRun,
    name: str,
    file: str,
    bad_rows: Path,
    output: Path | None,
    changed: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> None:
    """Prints the metrics of a run's model on a file, with intervals and baselines, and writes them as JSON.

    `changed` are the overrides with which answers are made, written with the metrics. Skipped rows are written to
    `bad_rows`. Scores are also printed by the values of `columns`. Raises DataError if the file cannot be used.
    """
    _require_sliceable(run.task, columns)
    data = read_labelled(run, file, bad_rows, columns)
    evaluation = run.evaluation(data)
    quality = on_main(run.accelerator, quality_of, run.task, evaluation, data)
    scores = Scores(run.task, {"validation": evaluation.metrics}, {"validation": quality})
    count, left = len(data.rows), data.num_skipped
    unusable = f", {left} skipped as unusable ({left / (count + left):.1%})" if left else ""
    print_table(f"{name} on {Path(file).name}: {counted(count, 'row')}{unusable}", scores.lines())
    for hint in scores.hints:
        say(hint)
    if columns and run.accelerator.is_main_process:
        print_blocks(slice_blocks(run.cfg, run.task, evaluation.predictions, data, columns))
    if output:
        metrics = {f"eval_{name}": value for name, value in evaluation.metrics.items()} | scores.figures
        on_main(run.accelerator, write_json, output, {**metrics, **({"overrides": [*changed]} if changed else {})})
        say(f"also written to {output}")


def _require_sliceable(task: Task, columns: Sequence[str]) -> None:
    if columns and task.has("regroup"):
        raise InputError("--slices: a block of this task spans several rows; remove the option")


def read_labelled(run: TrainedRun, file: str, bad_rows: Path, columns: Sequence[str] = ()) -> EvalData:
    """Reads, checks and preprocesses labelled rows; the first process of each node reads, the others use its cache."""
    accelerator, data = run.accelerator, run.cfg.data
    with local_main_first(accelerator):
        beside = Beside(slices=tuple(columns))
        table = load_table(file, run.task, data.columns, labelled=True, reading=Reading.of(data), beside=beside)
    bad = apply_policy({"input": table}, data.bad_rows, data.max_bad_rows)["input"]
    if accelerator.is_main_process and bad:
        write_bad_rows({"input": table}, bad_rows)
        warn(f"{skipped(table)}. They are skipped; {bad_rows} lists them.")
    with local_main_first(accelerator):
        found = run.preprocessed(table.head(data.max_eval_samples).rows, labelled=True, num_skipped=bad)
    for each in (*exclusions(table), *run.omissions(table.source, found)):
        say(f"{each}.")
    return found


MARGIN, MOST_FLIPS = 0.01, 20
"""Loss that is allowed by default, and rows that are shown of those that got better, and of those that got worse."""


class Pair:
    """The answers of an old and a new model to the rows that both can use."""

    def __init__(self, score: Score, old: Subsets, new: Subsets) -> None:
        self.sides, self.score, self.sign = (old, new), score, 1 if score.greater_is_better else -1
        ours, theirs = (np.asarray(side.data.rows[NUMBER][:]) for side in self.sides)
        self.numbers, *self.places = np.intersect1d(ours, theirs, return_indices=True)
        self.unmatched = len(ours) + len(theirs) - 2 * len(self.numbers)
        if not len(self.numbers) or (old.regroups and (old.size != new.size or self.unmatched)):
            raise InputError("--against: the two runs cannot use the same rows, or divide them into different blocks")
        if old.regroups:
            self.places = [np.arange(old.size)] * 2
        self.all = np.arange(len(self.places[0]))
        errors = [[each.task.error(each.records[row]) for row in rows if each.records] for each, rows in self._both()]
        self.errors = np.array([[(error or (0.0,))[0] for error in each] for each in errors])
        self.right = np.array([[error is None for error in each] for each in errors])
        self.counts = bool(self.right.size) and np.allclose(self.right.mean(axis=1), self.scores(self.all))
        self.whole = self.gain(self.all)

    def _both(self) -> Iterator[tuple[Subsets, np.ndarray]]:
        return zip(self.sides, self.places, strict=True)

    def scores(self, rows: np.ndarray) -> list[float]:
        """Returns the score of both models on rows."""
        return [side.metrics(places[rows])[self.score.name] for side, places in self._both()]

    def gain(self, rows: np.ndarray) -> Gain | None:
        """Returns the gain on rows; None for few rows, or scores that are not finite."""
        if len(rows) < FEWEST_EXAMPLES:
            return None
        if self.counts:
            old, new = self.right[:, rows]
            return Gain.of_counts(int((new & ~old).sum()), int((old & ~new).sum()), len(rows))
        changes = np.diff([self.scores(rows[drawn]) for drawn in draws(len(rows), INTERVAL_DRAWS)])
        changes = changes[np.isfinite(changes)]
        old, new = self.scores(rows)
        enough = len(changes) >= MIN_DRAWS
        return Gain(self.sign * (new - old), float(changes.var(ddof=1)), len(rows)) if enough else None

    def results(self, columns: Sequence[str], margin: float) -> list[dict[str, Any]]:
        """Returns scores, gains, intervals and verdicts by column of a table: of all rows, then of the slices."""
        values = self.sides[1].data.rows[SLICES][:]
        parts = [("all rows", self.all), *slices(columns, [values[row] for row in self.places[1]] if columns else [])]
        gains = [self.whole, *(self.gain(rows) for _, rows in parts[1:])]
        ends, found = iter(holm([gain for gain in gains[1:] if gain], -margin)), list[dict[str, Any]]()
        for (name, rows), gain in zip(parts, gains, strict=True):
            low, high = (None, None) if gain is None else next(ends) if found else gain.interval()
            verdict = "few rows" if high is None else "worse" if high < -margin else "not proven worse"
            old, new = self.scores(rows)
            change = {"gain": self.sign * (new - old), "95 % from": low, "95 % to": high, "verdict": verdict}
            found.append({"rows of": name, "rows": len(rows), "old": old, "new": new, **change})
        return found

    def flips(self, names: Sequence[str]) -> Iterator[Section]:
        """Yields the rows that got worse, and those that got better, largest change first."""
        changes = np.diff(self.errors, axis=0).reshape(-1)
        flipped = self.right[0] != self.right[1] if self.right.any() else changes != 0
        for title, change in (("worse", changes), ("better", -changes)):
            found = sorted(np.flatnonzero(flipped & (change > 0)), key=lambda row: -change[row])
            rows = []
            for row in found[:MOST_FLIPS]:
                old, new = (each.task.describe(each.records[places[row]]) for each, places in self._both())
                texts = (new.input, old.prediction, new.prediction, new.expected or "")
                rows.append([int(self.numbers[row]), *map(shorten, texts)])
            table = Table(["row", "input", *names, "expected"], rows, stacked=True)
            yield Section(f"{counted(len(found), 'row')} got {title}", [table] if rows else [])

    def page(self, names: Sequence[str], results: Sequence[Mapping[str, Any]], margin: float) -> Page:
        """Returns the page; its first section is for the terminal, too."""
        worse = ", ".join(each["rows of"] for each in results if each["verdict"] == "worse")
        told = [f"Worse by more than {margin:g}: {worse}." if worse else f"No loss of more than {margin:g} is proven."]
        if gain := self.whole:
            told.append(
                f"If the true loss is {margin + gain.detectable:.3g}, all {gain.rows:,} rows together prove it with a "
                f"probability of {POWER:.0%}. Intervals of slices are corrected for their number (Holm)."
            )
        if self.unmatched:
            told.append(f"Not compared: {counted(self.unmatched, 'row')} that only one of the runs can use.")
        how = "the rows that only one has right" if self.counts else f"{INTERVAL_DRAWS} paired bootstrap samples"
        best = "greater" if self.sign > 0 else "smaller"
        lead = f"{self.score.name} ({best} is better) on the same rows. A positive gain is better; intervals: {how}."
        table = Table(list(results[0]), [list(each.values()) for each in results], sortable=True)
        sections = [Section("Verdict", [*map(Text, told), table]), *(self.flips(names) if self.right.size else ())]
        return Page(f"{names[1]} against {names[0]}", lead, [each for each in sections if each.blocks])


def require_comparable(columns: Sequence[str], old: Task, new: Task) -> None:
    """Raises InputError if two runs differ in task, score or labels, or have no slices by `columns`."""
    _require_sliceable(new, columns)
    kinds = [{"task": {type(each).__name__}, "score": {each.best_metric}, "labels": {*(each.state.get("labels") or ())}}
             for each in (new, old)]  # fmt: skip
    for what, one in kinds[0].items():
        other = kinds[1][what]
        if one != other:
            ours, theirs = (", ".join(sorted(each)) or "nothing" for each in (one - other, other - one))
            raise InputError(f"--against: the runs differ in {what}: {ours} only in RUN, {theirs} only in OLD")


Opened = Mapping[str, Callable[[], TrainedRun]]
"""Functions that open the old run and the new one, by name."""


def gate(runs: Opened, file: str, bad_rows: Path, columns: Sequence[str], margin: float, output: Path) -> bool:
    """Compares two runs on labelled rows, writes the page `gate` into a folder, and prints its first section.

    Scores are also compared by the values of `columns`; rows that the new run skips are written to `bad_rows`. Returns
    whether no loss of more than the margin is proven.
    """
    sides = []
    for opened in runs.values():  # one model at a time is in memory
        run = opened()
        data = read_labelled(run, file, bad_rows, columns)
        sides.append((run.task, run.predictions(data), data))

    def compare() -> bool:
        score = main_score(run.cfg, run.task)
        pair = Pair(score, *(Subsets(*side) for side in sides))
        results = pair.results(columns, margin)
        page = pair.page([*runs], results, margin)
        save_page(output_folder(output, again=True), "gate", page)
        write_json(output / "gate.json", {"score": score.name, "margin": margin, "results": results})
        say(page.lead)
        print_blocks(page.sections[0].blocks)
        say(f"written to {output}/gate.html, .md and .json", blank_line_before=True)
        return all(each["verdict"] != "worse" for each in results)

    return on_main(run.accelerator, compare)
