"""Writes the results of a run: model, predictions, report, and the exhibits of trackers."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.api.exhibits import Exhibits
from toolkit.api.run import Evaluation, FitResult, Run
from toolkit.api.task import Task, reads_files
from toolkit.base.console import LOGGER, counted, format_value, print_lines, print_table, say, shorten
from toolkit.base.errors import Interrupted, RunError, ToolkitError
from toolkit.base.files import disk_problem, read_json, read_lines, write_json, write_text, written_whole
from toolkit.base.run_folder import RunFolder
from toolkit.config.paths import former_run
from toolkit.data.findings import EARLIER
from toolkit.data.table import FILE, IDENTIFIER, NUMBER, SLICES
from toolkit.document import plots, render
from toolkit.document.blocks import Block, Cell, Code, Figure, Gallery, Section, Table
from toolkit.document.svg import sheet
from toolkit.footprint.predict import predicted_parts
from toolkit.metrics.score import Quality, without_classes
from toolkit.models.parts import count_parameters, saved_bytes
from toolkit.models.save import push, save_model
from toolkit.prepare.signal import signals
from toolkit.report import card
from toolkit.report.curves import charts
from toolkit.report.examples import Examples, Shown, Worst
from toolkit.report.facts import BEFORE, MODEL, RESULTS, digests, forget, sealed
from toolkit.report.scores import Scores, described, measurements, prefix_of, quality_of
from toolkit.report.sections import EXAMPLES, SAMPLES, WORST, Outcome, holds_all, lead, sections
from toolkit.report.subsets import before_and_after, slice_blocks
from toolkit.report.system import asked_rows
from toolkit.system.phases import named_seconds
from toolkit.tracking.jsonl import readable_lines


def exhibits(outcome: Outcome, parts: Sequence[Section], page: str) -> Exhibits:
    """Returns the results, pictures and tables of a report, and its page, for trackers."""
    drawn = [(chart.title, chart.label, chart.lines) for chart in outcome.charts]
    return Exhibits(
        step=outcome.result.steps,
        results=outcome.result.figures,
        pictures=({"Curves": plots.curves(drawn)} if drawn else {}) | dict(_pictures(parts)),
        tables={part.title: table for part in parts for table in _tables(part)},
        page=page,
    )


def _pictures(parts: Sequence[Section]) -> Iterator[tuple[str, bytes]]:
    """Yields the pictures of a report, and the tables with shades, which are confusion matrices, as pictures."""
    for part in parts:
        for block in part.blocks:
            if isinstance(block, Figure) and block.png:
                yield part.title, block.png
            elif isinstance(block, Table) and (counts := _shaded(block)) is not None:
                yield part.title, plots.confusion(counts, block.header[1:])


def _shaded(table: Table) -> np.ndarray | None:
    """Returns the values of a table whose cells, after the first of each row, all have a shade; otherwise None."""
    cells = [cell for _, *row in table.rows for cell in row]
    if not cells or not all(isinstance(cell, Cell) and cell.shade is not None for cell in cells):
        return None
    return np.array([cell.value for cell in cells]).reshape(len(table.rows), -1)


def _tables(part: Section) -> Iterator[Table]:
    """Yields the predictions, or the generated texts, of a section."""
    if part.title in (WORST, EXAMPLES):
        yield from (block for block in part.blocks if isinstance(block, Table))
    if part.title == SAMPLES:
        yield Table(["sample"], [[block.text] for block in part.blocks if isinstance(block, Code)])


TRAINED_ROWS, TRAINED = 3, 2000
"""Rows whose trained tokens are in the report, and their most characters."""
ANSWERS = 20
"""Generated answers in the report."""
SHOWN_EXAMPLES = 3
"""Number of predictions in the summary."""


def write_results(run: Run, result: FitResult, model_is_kept: Callable[[], None]) -> None:
    """Writes the results of a run, shows a summary and pushes the model. Call it on the main process only.

    It may need no other process, because the processes of a command line have exited. If one step fails, the others are
    still done. Once the model is written, `model_is_kept` is called. Interrupted may be raised by it, or later.

    Raises:
        RunError: if a result could not be written or pushed.
        Interrupted: after a stop signal.
    """
    files, shown, failures = RunFolder(run.output_dir), Shown(), Failures(run.output_dir)
    checkpoints = f"The checkpoints in {files.checkpoints} are intact: rerun with checkpoint.resume=auto."
    with failures.collected("write the model", saved_bytes(run.model, run.cfg.model.peft.method != "none")):
        write_model(run, result)
    failures.raise_any(checkpoints)
    model_is_kept()
    with failures.collected("write the predictions"):
        write_all_predictions(run, result, shown)
    found = None
    with failures.collected("write the report"):
        if run.task.has("samples"):
            run.model.eval()
            shown.samples = run.task.samples(run.model, run.processor)
        found = write_report(run, result, shown)
    with failures.collected("write the results"):  # last: with them, the run is finished
        write_figures(run, result)
    show(run, result, shown)
    if run.cfg.tracking.report_to and found is not None:
        with failures.collected("show the results in the trackers"):
            run.trackers.show(exhibits(*found))
    run.trackers.close()  # other processes wait for this one here
    with failures.collected("push the model"):
        push(run.cfg, files.model)
    failures.raise_any(f"The model in {files.model} is complete.")
    answers = files.predictions("validation")  # there are none without evaluation
    what, more = "Model and report", ""
    if answers.exists():
        what, more = "Model, report and predictions", f", {answers.name}"
    say(f"{what} are in {files.path}/ (report.html, report.md, model/{more})", blank_line_before=True)


class Failures:
    """Collects the errors of independent steps that write a folder, and raises them together."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._messages: list[str] = []
        self._last: Exception | None = None

    @contextmanager
    def collected(self, step: str, needed: int | None = None) -> Iterator[None]:
        """Collects an error inside the block, which writes `needed` bytes, as `cannot <step>: ...`."""
        try:
            yield
        except Interrupted:
            raise
        except ToolkitError as error:
            self._messages.append(str(error))
            self._last = error
        except Exception as error:  # later steps must be done after any error
            LOGGER.debug("cannot %s", step, exc_info=True)
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}, line {place.lineno}"
            why = disk_problem(error, self._folder, needed) or f"{type(error).__name__}: {error} ({where})"
            self._messages.append(f"cannot {step}: {why}")
            self._last = error

    def raise_any(self, advice: str) -> None:
        """Raises a RunError with the messages of all collected errors, if any, and the advice as its last line."""
        if self._messages:
            raise RunError("\n".join([*self._messages, f"  {advice}"])) from self._last


def write_model(run: Run, result: FitResult) -> None:
    """Writes `model/` with its card, and then its checksums into `run.json`; until then, former results are kept."""
    files, former = RunFolder(run.output_dir), ("result", "memory")
    save_model(run, replacing=partial(forget, files.path, (*MODEL, *RESULTS), former))
    for file in files.results():  # of the former model: one that is not written again would be taken for this one's
        file.unlink(missing_ok=True)
    write_text(files.model_card, card.model_card(card.card_of(run, result, _facts(run))))
    write_json(files.facts, sealed(_facts(run) | {"files": digests(files.path, MODEL)}))


def write_figures(run: Run, result: FitResult) -> None:
    """Adds the results to `run.json`."""
    facts = _facts(run)
    files = {**facts["files"], **digests(run.output_dir, (*RESULTS, *BEFORE))}
    own = {"result": result.figures, "memory": asdict(result.memory), "files": files}
    write_json(RunFolder(run.output_dir).facts, sealed(facts | own))


def write_report(run: Run, result: FitResult, shown: Shown) -> tuple[Outcome, list[Section], str]:
    """Writes `report.html`, `report.md` and its plots; returns the outcome, the report's sections, and the page."""
    files = RunFolder(run.output_dir)
    # Scores per class are shown in the task's own sections.
    history = [without_classes(line, run.task.scores) for line in readable_lines(files.metrics)]
    predicted = predicted_parts(run) if holds_all(run) else None
    own = []
    for name, evaluation in result.evaluations.items():
        found = (evaluation.predictions, run.data.evals[name])
        own.append(Section(f"Slices ({name})", slice_blocks(run.cfg, run.task, *found, run.cfg.eval.slices)))
        own += run.task.report_sections(name, *found, run.output_dir)
    if (found_answers := result.evaluations.get("validation")) is not None and run.cfg.eval.generate:
        own.append(Section("Answers (validation)", answer_blocks(run, found_answers)))
    if run.task.predicts_tokens:
        found_signals = signals(run.task, run.processor, run.data.train, TRAINED_ROWS, run.cfg.seed)
        if any(each.trained < len(each.tokens) - 1 for each in found_signals):
            shown_rows = [Code("\n".join([*each.lines()[:-1], shorten(each.text, TRAINED)])) for each in found_signals]
            own.append(Section("Trained tokens of the first rows, measured by gradients", shown_rows))
    former = former_run(run.cfg.model.name_or_path or "")
    if former is not None and EARLIER in result.evaluations:
        after = zip(named_rows(run.data.evals[EARLIER].rows, ()), result.evaluations[EARLIER].records, strict=True)
        blocks = before_and_after(run.task, read_lines(former.predictions("validation")), after)
        own.append(Section(f"Before and after, on the validation rows of {former.path}", blocks))
    outcome = Outcome(result, _facts(run), charts(history, run.best.name), shown, own, predicted)
    title, below, parts = run.output_dir.name, lead(run, outcome.facts), sections(run, outcome)
    html = render.render_html(title, below, parts)
    write_text(files.report_html, html)
    write_text(files.report_md, render.render_markdown(title, below, parts))
    galleries = [block for part in parts for block in part.blocks if isinstance(block, Gallery)]
    drawn = [figure.drawing for gallery in galleries for figure in gallery.figures if figure.drawing]
    write_text(files.curves, sheet(drawn))
    return outcome, parts, html


def show(run: Run, result: FitResult, shown: Shown) -> None:
    """Shows scores, measurements and a few predictions, in fewer lines than a terminal has."""
    scores = Scores.of(result, run.task)
    best = "" if result.best_step in (None, result.steps) else f", best at step {result.best_step:,}"
    print_table(
        f"{run.output_dir.name}: {counted(result.steps, 'step')}{best}",
        scores.lines() | measurements(result) | asked_rows(result.figures, run.system.source, run.cfg),
    )
    for hint in scores.hints:
        say(hint)
    if scores.rows and run.task.has("baselines") and not (reads_files(run.task) or "baseline`" in str(scores.hints)):
        say("`toolkit baseline` scores answers without a neural network on the same rows.")
    if shown.examples:
        lines = [described(run.task.describe(record)) for _, record in shown.examples.chosen(SHOWN_EXAMPLES)]
        print_lines("Predictions on rows that were not used for training", lines)
    if shown.samples:
        print_lines("Samples", map(shorten, shown.samples))


def qualities(run: Run, result: FitResult) -> dict[str, Quality]:
    """Returns how far the scores of each evaluation set can be trusted; call it on the main process."""
    found = {name: quality_of(run.task, each, run.data.evals[name]) for name, each in result.evaluations.items()}
    simple = _simple_answers(run, result.train_seconds) if found else []
    return {
        name: replace(each, hints=(*each.hints, *_beside(run.task, name, each, simple))) for name, each in found.items()
    }


BRIEF, SHARE, SAMPLE = 10.0, 0.1, 200
"""Seconds of trainings that are too short to compare with answers without a neural network. In others, these take at
most this share of the time, as about so many rows tell."""


def _simple_answers(run: Run, seconds: float) -> list[tuple[str, dict[str, dict[str, float]]]]:
    """Returns the scores of answers without a neural network; none if they would take too long."""
    if run.data.rows is None or seconds < BRIEF:
        return []
    sets = {"train": run.data.rows} | {name: each.rows for name, each in run.data.evals.items()}
    step, took = -(-max(map(len, sets.values())) // SAMPLE), 0.0
    try:
        for _ in range(2):  # the first time, libraries are imported
            some = {name: rows.select(range(0, len(rows), step)) for name, rows in sets.items()}
            began = time.monotonic()
            list(run.task.baselines(some.pop("train"), some))
            took = time.monotonic() - began
        return list(run.task.baselines(sets.pop("train"), sets)) if took * step < SHARE * seconds else []
    except Exception as error:  # of any library; a finished training can do without
        LOGGER.debug("no answers without a neural network: %s", error)
        return []


def _beside(task: Task, name: str, quality: Quality, simple: Sequence[tuple[str, Any]]) -> Iterator[str]:
    """Yields a sentence about each answer without a neural network but the constant one, which is beside the scores."""
    wanted = dict.fromkeys((quality.trusted or task.best_metric, task.best_metric))
    for answer, scores in simple[bool(quality.constant) :]:
        values = [f"{metric} {format_value(scores[name][metric])}" for metric in wanted if metric in scores[name]]
        yield f"On the {name} rows, {answer} gets {', '.join(values)} (`toolkit baseline`)."


def summary_figures(run: Run, result: FitResult) -> dict[str, Any]:
    """Returns the metrics and measurements of a run by name."""
    metrics = {
        f"{prefix_of(name)}{key}": value
        for name, evaluation in result.evaluations.items()
        for key, value in evaluation.metrics.items()
    }
    metrics |= Scores.of(result, run.task).figures
    trained, total = count_parameters(run.model)
    return {
        "steps": result.steps,
        "train_loss": result.train_loss,
        **metrics,
        **result.further,
        **result.costs,
        "best_step": result.best_step,
        "best_metric": result.best,
        "train_seconds": result.train_seconds,
        "train_items_per_second": result.items_per_second,
        **named_seconds(result.phases),
        "peak_memory_bytes": result.memory.peak,
        "optimizer_state_bytes": result.memory.optimizer_state,
        "optimizer_state_bytes_per_parameter": result.memory.optimizer_state / trained if trained else 0.0,
        "trainable_parameters": trained,
        "trainable_fraction": trained / total,
    }


def write_all_predictions(run: Run, result: FitResult, shown: Shown) -> None:
    """Writes the predictions of every evaluation set as JSON lines; adds those of the first set to `shown`."""
    for place, (name, evaluation) in enumerate(result.evaluations.items()):
        if place == 0:
            shown.examples = Examples(run.task)
            shown.worst = Worst(run.task) if run.task.has("error") else None
        with written_whole(RunFolder(run.output_dir).predictions(name)) as file:
            rows = named_rows(run.data.evals[name].rows, run.cfg.eval.slices)
            for line, (record, source) in enumerate(zip(evaluation.records, rows, strict=True), start=1):
                if place == 0:
                    shown.see(line, record)
                file.write(json.dumps(source | record, ensure_ascii=False) + "\n")
        if (prompts := run.data.evals[name].prompts) is not None:
            with written_whole(RunFolder(run.output_dir).generated(name)) as file:
                for record, source in zip(evaluation.generated, named_rows(prompts.rows, ()), strict=True):
                    file.write(json.dumps(source | record, ensure_ascii=False) + "\n")


def answer_blocks(run: Run, evaluation: Evaluation) -> list[Block]:
    """Returns the first generated answers of the validation rows, beside the given ones and those before training."""
    start = RunFolder(run.output_dir).generated("start")
    before = [run.task.describe(record).prediction for record in read_lines(start)] if start.exists() else []
    after = [run.task.describe(record) for record in islice(evaluation.generated, ANSWERS)]
    header = ["prompt", "given", *(["before training"] if before else []), "after training"]
    rows = [[each.input, each.expected, *before[place : place + 1], each.prediction]
            for place, each in enumerate(after)]  # fmt: skip
    return [Table(header, rows)]


def named_rows(rows: Any, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields `row`, the number in the `file` (of several), `id` with `data.id_column`, and `slices` by `columns`."""
    given = {"row": rows[NUMBER][:], "file": rows[FILE][:], "id": rows[IDENTIFIER][:]}
    for *known, values in zip(*given.values(), rows[SLICES][:], strict=True):
        sliced = {"slices": dict(zip(columns, values, strict=True))} if columns else {}
        yield {name: value for name, value in zip(given, known, strict=True) if value is not None} | sliced


def _facts(run: Run) -> dict[str, Any]:
    facts: dict[str, Any] = read_json(RunFolder(run.output_dir).facts)
    return facts
