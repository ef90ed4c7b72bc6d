"""What came out of a run: the model, its predictions, the report."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolkit.api.run import FitResult, Run
from toolkit.api.supports import SupportsErrorRanking, SupportsReport, SupportsSamples
from toolkit.api.task import Record
from toolkit.base.console import print_lines, print_table, say, shorten
from toolkit.base.files import write_json
from toolkit.document import markdown, page
from toolkit.document.blocks import Gallery, Section
from toolkit.document.svg import sheet
from toolkit.footprint.predict import predicted_parts
from toolkit.metrics.score import without_classes
from toolkit.models.hub import push
from toolkit.models.parts import count_parameters
from toolkit.models.save import save_model
from toolkit.report import card, text
from toolkit.report.sections import CURVES, Outcome, lead, predictions_file, sections
from toolkit.report.worst import Worst
from toolkit.tracking.jsonl import read_metrics

SHOWN_EXAMPLES = 3


def write_results(run: Run, result: FitResult) -> None:
    """Writes `model/`, predictions, the report with its curves, and the results in `run.json`; prints a summary."""
    output_dir = run.output_dir
    figures = summary_figures(run, result)
    examples, worst = _write_all_predictions(run, result)
    facts = json.loads((output_dir / "run.json").read_text(encoding="utf-8"))
    write_json(output_dir / "run.json", facts | {"result": figures, "memory": asdict(result.memory)})
    save_model(run)  # before whatever may fail in making a page
    (output_dir / "model" / "README.md").write_text(card.model_card(run, figures), encoding="utf-8")
    history = read_metrics(output_dir / "metrics.jsonl")
    own, samples = _sections(run, result), _samples(run)
    write_report(run, Outcome(result, facts, figures, history, examples, worst, own, samples, predicted_parts(run)))
    overall = without_classes(figures, run.task.scores)
    print_table(f"{Path(run.cfg.output_dir).name}: {result.steps} steps", text.readable(overall))
    if examples:
        lines = [text.described(run.task.describe(record)) for record in examples]
        print_lines("Predictions on rows it was not trained on", lines)
    if samples:
        print_lines("Samples", map(shorten, samples))
    push(run.cfg, output_dir / "model")
    say(f"\nModel, report and predictions are in {output_dir}/ (report.html, report.md, model/, predictions.jsonl)")


def write_report(run: Run, outcome: Outcome) -> None:
    """Writes `report.html`, `report.md` and the curves that the latter shows."""
    title, below, parts = run.output_dir.name, lead(run, outcome.facts), sections(run, outcome)
    (run.output_dir / "report.html").write_text(page.render(title, below, parts), encoding="utf-8")
    (run.output_dir / "report.md").write_text(markdown.render(title, below, parts), encoding="utf-8")
    galleries = [block for part in parts for block in part.blocks if isinstance(block, Gallery)]
    drawn = [figure.drawing for gallery in galleries for figure in gallery.figures if figure.drawing]
    (run.output_dir / CURVES).write_text(sheet(drawn), encoding="utf-8")


def summary_figures(run: Run, result: FitResult) -> dict[str, Any]:
    """Returns the figures of a run by name."""
    metrics = {
        f"{'eval' if name == 'validation' else name}_{key}": value
        for name, evaluation in result.evaluations.items()
        for key, value in evaluation.metrics.items()
    }
    trained, total = count_parameters(run.model)
    return {
        "steps": result.steps,
        "train_loss": result.train_loss,
        **metrics,
        **result.further,
        "best_step": result.best_step,
        "best_metric": result.best,
        "train_seconds": result.train_seconds,
        "train_items_per_second": result.items_per_second,
        "peak_memory_bytes": result.memory.peak,
        "optimizer_state_bytes": result.memory.optimizer_state,
        "optimizer_state_bytes_per_parameter": result.memory.optimizer_state / trained if trained else 0.0,
        "trainable_parameters": trained,
        "trainable_fraction": trained / total,
    }


def write_predictions(records: Iterable[Record], path: Path, worst: Worst | None = None) -> list[Record]:
    """Writes one JSON line per record, in order, and returns the first few; `worst` sees them all."""
    first: list[Record] = []
    with path.open("w", encoding="utf-8") as file:
        for line, record in enumerate(records, start=1):
            if len(first) < SHOWN_EXAMPLES:
                first.append(record)
            if worst is not None:
                worst.see(line, record)
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return first


def _write_all_predictions(run: Run, result: FitResult) -> tuple[list[Record], Worst | None]:
    """Writes the predictions of every evaluation set; returns the first and the worst records of the first one."""
    shown: list[Record] | None = None
    worst = Worst(run.task) if isinstance(run.task, SupportsErrorRanking) else None
    for name, evaluation in result.evaluations.items():
        file = run.output_dir / predictions_file(name)
        first = write_predictions(evaluation.records, file, worst if shown is None else None)
        shown = first if shown is None else shown
    return shown or [], worst


def _samples(run: Run) -> list[str]:
    if not isinstance(run.task, SupportsSamples):
        return []
    run.model.eval()
    return run.task.samples(run.model, run.processor)


def _sections(run: Run, result: FitResult) -> list[Section]:
    if not isinstance(run.task, SupportsReport):
        return []
    return [
        part
        for name, evaluation in result.evaluations.items()
        for part in run.task.report_sections(name, evaluation.predictions, run.data.evals[name], run.output_dir)
    ]
