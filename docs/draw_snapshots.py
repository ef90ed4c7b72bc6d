"""Draws a snapshot ensemble: the models at the ends of the cycles of a schedule, and their mean prediction.

python docs/draw_snapshots.py --output snapshots.svg

Trains the small classifier of the configuration `smoke` of `reviews` with cosine restarts, on
a fifth of the rows, so that the models differ.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from drawing import curve, write
from drawing import parser as parser_of

from toolkit.document.charts import line_chart
from toolkit.document.svg import Drawing

CYCLES, STEPS = 5, 60
"""Cycles of the schedule, and steps of each."""
SETTINGS = ("train.snapshot_ensemble=true", "train.lr_scheduler_type=cosine_with_restarts", "train.warmup_steps=0",
            "train.learning_rate=3.0e-3", "data.train_fraction=0.2", "tracking.logging_steps=1",
            "checkpoint.save_steps=null", "eval.eval_on_start=false")  # fmt: skip


def drawn(run: Path, ensemble: float, steps: int) -> list[Drawing]:
    """Draws rates, and the validation accuracy with that of the ensemble, of a run with cycles of `steps`."""
    evaluated, scores = curve(run, "eval_accuracy")
    ends = [(step, score) for step, score in zip(evaluated, scores, strict=True) if step % steps == 0]
    models = [step for step, _ in ends], [score for _, score in ends]
    lines = {
        "every evaluation": (evaluated, scores),
        "ends of cycles": models,
        "mean of their predictions": ([evaluated[0], evaluated[-1]], [ensemble] * 2),
    }
    words = {"x_label": "optimizer step"}
    rates = line_chart({"rate": curve(run, "learning_rate")}, title="Rates", y_label="learning rate", **words)
    title = "Validation accuracy of the models and of their ensemble"
    return [rates, line_chart(lines, title=title, y_label="validation accuracy", **words)]


def main(target: Path, cycles: int = CYCLES, steps: int = STEPS) -> None:
    """Trains, and draws."""
    import toolkit

    with tempfile.TemporaryDirectory() as name:
        own = [f"train.lr_scheduler_kwargs.num_cycles={cycles}", f"train.max_steps={cycles * steps}",
               f"eval.eval_steps={max(1, steps // 4)}", f"output_dir={name}/run"]  # fmt: skip
        run = toolkit.train("reviews", "smoke", [*SETTINGS, *own])
        write(target, drawn(run.output_dir, run.metrics["ensemble_accuracy"], steps))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    return parser_of(__doc__)


if __name__ == "__main__":
    main(parser().parse_args().output)
