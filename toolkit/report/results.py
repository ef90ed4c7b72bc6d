"""What came out of a run: the model, its predictions, the report."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolkit.adapters import BASE, save_adapters
from toolkit.console import print_lines, print_table, say, shorten
from toolkit.engine.run import FitResult, Run, best_metric
from toolkit.hub import push
from toolkit.parts import count_parameters
from toolkit.report import card, plots, text
from toolkit.report.facts import write_json
from toolkit.task import Predictions, Reports, Samples, Task
from toolkit.tracking import read_metrics

SHOWN_EXAMPLES = 3


def write_results(run: Run, result: FitResult) -> None:
    """Writes `model/`, `predictions.jsonl`, `report.md`, `loss.png` and the results in `run.json`; prints a summary."""
    output_dir = run.output_dir
    history = read_metrics(output_dir / "metrics.jsonl")
    figures = summary_figures(run, result)
    records = _write_all_predictions(run, result)
    facts = json.loads((output_dir / "run.json").read_text(encoding="utf-8"))
    write_json(output_dir / "run.json", facts | {"result": figures, "memory": asdict(result.memory)})
    plots.loss_and_metric(history, best_metric(run.cfg, run.task)[0], output_dir / "loss.png")
    examples = [run.task.summary(record) for record in records]
    samples = _samples(run)
    page = text.report(run, facts, figures, examples, _sections(run, result), samples)
    (output_dir / "report.md").write_text(page, encoding="utf-8")
    save_model(run, figures)
    print_table(f"{Path(run.cfg.output_dir).name}: {result.steps} steps", text.readable(figures))
    if records:
        print_lines("Predictions on rows it was not trained on", examples)
    if samples:
        print_lines("Samples", map(shorten, samples))
    push(run.cfg, output_dir / "model")
    say(f"\nModel, report and predictions are in {output_dir}/ (report.md, model/, predictions.jsonl)")


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


def write_predictions(task: Task, predictions: Predictions, data: Any, path: Path) -> list[dict[str, Any]]:
    """Writes one JSON line per example, in row order, and returns the first few records."""
    records = task.records(predictions, data)
    first: list[dict[str, Any]] = []
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            if len(first) < SHOWN_EXAMPLES:
                first.append(record)
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return first


def save_model(run: Run, figures: dict[str, Any]) -> None:
    """Writes `model/`: weights, configuration, processor and model card, loadable by transformers (or peft) alone."""
    folder, settings = run.output_dir / "model", run.cfg.model
    if settings.peft.method == "none":
        run.model.save_pretrained(folder)
    else:
        save_adapters(run.model, folder, run.output_dir / BASE, settings.name_or_path)
    run.processor.save_pretrained(folder)
    (folder / "README.md").write_text(card.model_card(run, figures), encoding="utf-8")
    for weights in folder.rglob(
        "*.safetensors"
    ):  # safetensors lets only the owner read; a result is for colleagues too
        weights.chmod((folder / "README.md").stat().st_mode)


def _write_all_predictions(run: Run, result: FitResult) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for name, evaluation in result.evaluations.items():
        file = "predictions.jsonl" if name == "validation" else f"predictions_{name}.jsonl"
        first = write_predictions(run.task, evaluation.predictions, run.data.evals[name], run.output_dir / file)
        shown = shown or first
    return shown


def _samples(run: Run) -> list[str]:
    if not isinstance(run.task, Samples):
        return []
    run.model.eval()
    return run.task.samples(run.model, run.processor)


def _sections(run: Run, result: FitResult) -> list[str]:
    if not isinstance(run.task, Reports):
        return []
    return [
        block
        for name, evaluation in result.evaluations.items()
        for block in run.task.report_sections(name, evaluation.predictions, run.data.evals[name], run.output_dir)
    ]
