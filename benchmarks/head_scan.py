"""Compares updates on eight rows as 2 x 4 and as 8 x 1 for many model heads, by a plain Trainer and by the toolkit.

    python benchmarks/head_scan.py [--write]

Prints a table; `--write` writes it to docs/heads.md, which explains it.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from head_cases import CASES, Case
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.utils import logging

from toolkit.api.mesh import Mesh
from toolkit.distributed.window import accumulate
from toolkit.models.load import batch_dependence

PAGE = Path(__file__).resolve().parents[1] / "docs/heads.md"
BEGIN, END = "<!-- head scan: written by benchmarks/head_scan.py -->", "<!-- end of the head scan -->"
COLUMNS = ("model", "head", "Trainer", "cosine", "toolkit", "cosine", "batch-dependent")
WIDTHS = (14, 20, 7, 7, 7, 7, 15)
LEARNING_RATE = 0.01
SPLITS = ((8, 1), (2, 4))
"""Micro-batch size and accumulation: the same eight rows as one micro-batch, and as four."""


@dataclass(frozen=True)
class Change:
    """The difference between an update and its reference.

    Args:
        ratio: norm of the update divided by the norm of the reference.
        cosine: cosine of the angle between the two.
    """

    ratio: float
    cosine: float


@dataclass(frozen=True)
class Result:
    """Measurements of a case: updates as 2 x 4 compared with 8 x 1.

    Args:
        case: the model and its head.
        trainer: the plain Trainer's updates.
        toolkit: the toolkit's updates.
        unsplit: the toolkit's 8 x 1 compared with the Trainer's 8 x 1.
        reasons: why rows depend on other rows of their batch, so that the splits cannot be equal.
    """

    case: Case
    trainer: Change
    toolkit: Change
    unsplit: Change
    reasons: list[str]

    def cells(self) -> list[str]:
        """Returns the row of the table."""
        numbers = [part for change in (self.trainer, self.toolkit) for part in _shown(change)]
        why = ", ".join(" ".join(reason.split()[:2]).replace("normalisation", "norm") for reason in self.reasons)
        return [self.case.model, self.case.head, *numbers, why]


def _shown(change: Change) -> tuple[str, str]:
    return f"{change.ratio:.3f}", f"{change.cosine:.5f}"


def measure(case: Case) -> Result:
    """Trains one update from the same weights with each split, by the plain Trainer and by the toolkit."""
    task = case.problem.task()
    model = case.build(task)
    trainer, toolkit = (
        [_update(model, step, case, task, *split) for split in SPLITS] for step in (trainer_step, toolkit_step)
    )
    pairs = (trainer, toolkit, (trainer[0], toolkit[0]))
    return Result(case, *(compare(*pair) for pair in pairs), batch_dependence(model))


def compare(reference: Tensor, found: Tensor) -> Change:
    """Compares two updates, each a vector of all parameters."""
    cosine = torch.dot(reference, found) / (reference.norm() * found.norm())
    return Change(float(found.norm() / reference.norm()), float(cosine))


def _update(model: nn.Module, step: Callable[..., None], case: Case, task: Any, size: int, accumulation: int) -> Tensor:
    """Returns the change of all parameters by a step, as one vector."""
    trained = copy.deepcopy(model)
    step(trained, case, task, size, accumulation)
    pairs = zip(trained.parameters(), model.parameters(), strict=True)
    return torch.cat([(after - before).detach().flatten() for after, before in pairs])


def trainer_step(model: Any, case: Case, task: Any, size: int, accumulation: int) -> None:
    """Trains one update with a plain `transformers.Trainer`, with the model's own loss."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            optim="sgd",
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            arguments,
            data_collator=lambda rows: case.problem.plain_batch(task, rows),
            train_dataset=case.problem.features(),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def toolkit_step(model: nn.Module, case: Case, task: Any, size: int, accumulation: int) -> None:
    """Trains one update with the toolkit's loop, with the task's loss."""
    rows = case.problem.features()
    window = [case.problem.batch(task, rows[i : i + size]) for i in range(0, size * accumulation, size)]
    items = sum(float(task.count_items(batch)) for batch in window)
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    prepared = accelerator.prepare(model)
    replica = SimpleNamespace(task=task, beat=lambda: None)
    strategy: Any = SimpleNamespace(accelerator=accelerator, mesh=Mesh(), replica=replica)
    accumulate(strategy, prepared, window, 1 / items)
    optimizer.step()


def scan() -> Iterator[Result]:
    """Measures all cases."""
    return map(measure, CASES)


def line(cells: list[str] | tuple[str, ...]) -> str:
    """Returns a row of the table, padded to the columns' widths."""
    numbers = range(2, 6)
    padded = [
        cell.rjust(width) if column in numbers else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def heading() -> list[str]:
    """Returns the two header lines of the table."""
    rules = [f"{'-' * (width - 1)}{':' if column in range(2, 6) else '-'}" for column, width in enumerate(WIDTHS)]
    return [line(COLUMNS), line(rules)]


def write(table: list[str]) -> None:
    """Writes the table into the page, between its two markers."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    versions = " and ".join(
        f"{library.__name__} {library.__version__.split('+')[0]}" for library in (torch, transformers)
    )
    made = ["", f"Measured with {versions}, on a CPU.", "", *table, ""]
    PAGE.write_text("\n".join([f"{before}{BEGIN}", *made, f"{END}{after}"]), encoding="utf-8")


def main() -> None:
    """Measures all cases and prints the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/heads.md")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    table = heading()
    print(*table, sep="\n")
    for result in scan():
        table.append(line(result.cells()))
        print(table[-1], flush=True)
    if arguments.write:
        write(table)


if __name__ == "__main__":
    main()
