"""Draws the losses of a run that overfits, and where early stopping ends it.

python docs/draw_early_stopping.py --output early_stopping.svg

Trains the small language model of the configuration `smoke` for many epochs, once to the end and once with
`train.early_stopping_patience`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from drawing import curve, write
from drawing import parser as parser_of

from toolkit.document.charts import Line, line_chart
from toolkit.document.svg import Drawing

EPOCHS, PATIENCE = 20, 3
SETTINGS = ("train.lr_scheduler_type=constant_with_warmup", "eval.metric_for_best_model=loss", "task.prompts=[]",
            "checkpoint.save_total_limit=1")  # fmt: skip


def trained(folder: Path, patience: int | None, epochs: int) -> Path:
    """Trains with a patience, or to the end; returns the run's folder."""
    import toolkit

    stop = f"train.early_stopping_patience={'null' if patience is None else patience}"
    own = [stop, f"train.num_train_epochs={epochs}", f"output_dir={folder / stop}"]
    return toolkit.train("language_modeling", "smoke", [*SETTINGS, *own]).output_dir


def drawn(training: Line, validation: Line, stopped: Line) -> Drawing:
    """Draws the losses of the whole run, and the evaluations at which the other was best and at which it stopped."""
    steps, losses = stopped
    best = min(range(len(losses)), key=lambda place: losses[place])
    ends = {f"best: step {steps[best]}": best, f"stop: step {steps[-1]}": len(steps) - 1}
    low, high = min(training[1]), max(training[1])
    marks = {name: ([steps[place]] * 2, [low, high]) for name, place in ends.items()}
    lines = {"training": training, "validation": validation, **marks}
    title = "Training and validation loss, and where early stopping ends the run"
    return line_chart(lines, title=title, x_label="optimizer step", y_label="mean loss per token")


def main(target: Path, epochs: int = EPOCHS) -> None:
    """Trains twice, and draws."""
    with tempfile.TemporaryDirectory() as name:
        whole, stopped = (trained(Path(name), patience, epochs) for patience in (None, PATIENCE))
        lines = curve(whole, "loss"), curve(whole, "eval_loss"), curve(stopped, "eval_loss")
    write(target, [drawn(*lines)])


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    return parser_of(__doc__)


if __name__ == "__main__":
    main(parser().parse_args().output)
