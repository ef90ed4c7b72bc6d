"""Runs with a token budget on two processes: `accelerate launch budget_runs.py OUTPUT_DIR`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from finishing import finish
from runs import SGD, few_rows, train

from toolkit.data.batching.budget import Budget

RUN = (*SGD, "data.max_train_samples=37", "data.max_eval_samples=9", "train.num_train_epochs=1",
       "eval.eval_steps=null", "checkpoint.save_steps=null", "train.max_grad_norm=0.3")  # fmt: skip
ONE = ("train.per_device_train_batch_size=12", "train.gradient_accumulation_steps=1")
"""Windows of 12 rows on one process."""
TWO = ("train.per_device_train_batch_size=3", "train.gradient_accumulation_steps=2")
"""Windows of 12 rows on two data ranks."""
SAME_RANK = ("train.per_device_train_batch_size=6", "train.gradient_accumulation_steps=2")
"""Windows of 12 rows where two processes share one data rank."""
TASKS = {"reviews": 150, "qa": 300, "translation": 110, "language_modeling": 100}
"""Tasks and budgets with several micro-batches in a step."""
STRATEGIES: dict[str, tuple[str, ...]] = {
    "fsdp": (*TWO, "parallel.fsdp=2"),
    "zero1": (*TWO, "parallel.zero_stage=1"),
    "1f1b": (*SAME_RANK, "parallel.pipeline=2"),
    "interleaved_1f1b": (*SAME_RANK, "parallel.pipeline=2", "parallel.schedule=interleaved_1f1b",
                         "model.from_config.num_hidden_layers=4"),
    "zero_bubble": (*SAME_RANK, "parallel.pipeline=2", "parallel.schedule=zero_bubble"),
}  # fmt: skip
"""Settings of strategies, which all train `reviews`."""
BUDGET = "train.max_tokens_per_batch"
UNEVEN_ROWS = 12
UNEVEN = (*SGD, "train.train_sampling_strategy=sequential", "train.num_train_epochs=1", "eval.eval_steps=null",
          "checkpoint.save_steps=null")  # fmt: skip


def uneven_rows(folder: Path) -> str:
    """Writes rows of which every fourth is as long as the three after it, and returns the override that reads them."""
    texts = [" ".join(["good" if i % 3 else "bad"] * (40 if i % 4 == 0 else 8)) for i in range(UNEVEN_ROWS)]
    rows = [{"text": text, "label": "negative" if "bad" in text else "positive"} for text in texts]
    file = folder / f"rows-{os.environ.get('RANK', 'one')}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.train_file={file}"


def settings_of(task: str) -> tuple[str, ...]:
    """Returns the settings of a task's run, apart from its split and budget."""
    return (*RUN, few_rows(task, 37))


def main(output: Path) -> None:
    """Trains all runs, and notes how many micro-batches this process had in each step of each run."""
    cut, counts = Budget.micro_batches, dict[str, list[int]]()

    def noting(self: Budget, *arguments: Any) -> list[list[int]]:
        made = cut(self, *arguments)
        counts[name].append(len(made))
        return made

    def run(task: str, folder: str, *settings: str) -> None:
        nonlocal name
        name = folder
        counts[name] = []
        train(task, output / folder, *settings, double=True)

    name = ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "micro_batches", noting)
        for task, tokens in TASKS.items():
            run(task, task, *settings_of(task), *TWO, f"{BUDGET}={tokens}")
        for name_of, settings in STRATEGIES.items():
            run("reviews", name_of, *RUN, *settings, f"{BUDGET}={TASKS['reviews']}")
        run("reviews", "trainer", *RUN, *TWO, f"{BUDGET}={TASKS['reviews']}", "engine=trainer")
        local = ("train.strategy=local_sgd", "train.local_sgd_steps=2")
        for engine in ("loop", "trainer"):
            run("reviews", f"local-{engine}", *RUN, *local, *TWO, f"{BUDGET}={TASKS['reviews']}", f"engine={engine}")
        uneven = (*UNEVEN, uneven_rows(output), "train.per_device_train_batch_size=2",
                  "train.gradient_accumulation_steps=1", f"{BUDGET}=16")  # fmt: skip
        run("reviews", "uneven", *uneven)
        run("reviews", "uneven-trainer", *uneven, "engine=trainer")
        run("reviews", "uneven-fsdp", *uneven, "parallel.fsdp=2")
        small_memory_on_the_second_process(run)
    (output / f"counts-{os.environ['RANK']}.json").write_text(json.dumps(counts))


def small_memory_on_the_second_process(run: Any) -> None:
    """Trains with a budget that only the second process has too little memory for."""
    from small_memory import AUTO, small_memory

    limit = 1 if os.environ["RANK"] == "1" else 99
    with pytest.MonkeyPatch.context() as patch:
        small_memory(patch, lambda: limit)
        run("reviews", "memory", *RUN, *TWO, AUTO, f"{BUDGET}=400")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    finish()
