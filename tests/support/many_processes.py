"""Runs on several processes to compare with one process: `accelerate launch many_processes.py OUTPUT_DIR [further]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import layouts
import local_sgd_runs
import reference_schedules
from finishing import finish
from runs import SGD, few_rows, train

C1_SPLITS = {1: [(8, 1), (2, 4)], 2: [(2, 2)], 3: []}
"""By number of processes: batch sizes and accumulations, all with windows of 8 rows."""
FURTHER_SPLITS = {1: [(8, 1)], 2: [(2, 2)], 3: []}
C1_RUN = (
    *SGD,
    "data.max_train_samples=21",
    "data.max_eval_samples=5",
    "train.num_train_epochs=2",
    "eval.eval_steps=null",
    "checkpoint.save_steps=null",
)
C2_SPLIT = ("train.per_device_train_batch_size=2", "train.gradient_accumulation_steps=2")
"""The split on two processes that both engines train with."""
C4_RUN = ("train.max_steps=1", "data.max_train_samples=24", "train.gradient_accumulation_steps=1",
          "checkpoint.save_steps=null", "eval.eval_steps=null", "data.max_eval_samples=41")  # fmt: skip
C4_BATCHES = (1, 7)
C4_SPLITS = {"qa": ("data.validation_file=null", "data.validation_split=0.3")}
"""Tasks whose evaluation rows are a grouped split of the training file: questions by their contexts."""
OPTIM_RUN = ("train.max_steps=4", "data.max_train_samples=24", "train.per_device_train_batch_size=2",
             "train.gradient_accumulation_steps=1", "train.optim=muon", "train.lr_scheduler_type=reduce_lr_on_plateau",
             "train.lr_scheduler_kwargs={patience: 0, threshold: 10.0}", "eval.eval_steps=1",
             "train.warmup_steps=0", "checkpoint.save_steps=null")  # fmt: skip
TRANSFER = {
    "lora": ("reviews", "model.peft.method=lora"),
    "pissa": ("reviews", "model.peft.method=rslora", "model.peft.init_lora_weights=pissa_niter_4"),
    "lora-speech": ("reviews/smoke_audio", "model.peft.method=lora"),
    "prompt": ("translation", "model.peft.method=prompt_tuning", "model.peft.num_virtual_tokens=4"),
    "gradual": ("reviews", "model.freeze=backbone", "model.unfreeze.step_2=[bert.encoder.layer.1.*]",
                "model.unfreeze.epoch_1=[bert.*]", "train.weight_decay=0.1", "train.optim_args.momentum=0.9"),
}  # fmt: skip
"""Runs with adapters and with frozen layers."""
TASKS = ("reviews", "qa", "translation", "language_modeling", "reviews/smoke_image", "reviews/smoke_audio")
FURTHER = ("token_classification", "summarization", "language_modeling/smoke_chat")
"""Tasks of slow tests, which share code with those: one split for each number of processes, with one engine."""


def train_tasks(output: Path, world: int, tasks: Iterable[str]) -> None:
    """Trains the runs of some tasks for this number of processes."""
    for task in tasks:
        further = task in FURTHER
        rows = few_rows(task, 21)
        for batch, accumulation in (FURTHER_SPLITS if further else C1_SPLITS)[world]:
            split = (f"train.per_device_train_batch_size={batch}", f"train.gradient_accumulation_steps={accumulation}")
            train(task, output / f"c1-{task}-{world}x{batch}x{accumulation}", *C1_RUN, rows, *split, double=True)
        if world == 2 and not further:
            train(task, output / f"trainer-{task}-2", *C1_RUN, rows, *C2_SPLIT, "engine=trainer", double=True)
        for size in C4_BATCHES if world == 1 and not further else C4_BATCHES[1:2]:
            # One step with the same window for any number of processes, then the evaluation to compare.
            split = (f"train.per_device_train_batch_size={12 // world}", f"eval.per_device_eval_batch_size={size}")
            train(task, output / f"c4-{task}-{world}-{size}", *C4_RUN, *C4_SPLITS.get(task, ()), *split)


def main(output: Path, world: int) -> None:
    """Trains all runs for this number of processes."""
    train_tasks(output, world, TASKS)
    if world == 2:
        reference_schedules.write(output)
        for engine in ("loop", "trainer"):
            train("reviews", output / f"optim-{engine}-2", *OPTIM_RUN, f"engine={engine}")
        # With three rows in windows of 8, the second process has no rows.
        few = ("data.max_train_samples=3", "train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=1")
        train("reviews", output / "c1-empty-2", *C1_RUN, *few, double=True)
        train("reviews", output / "tracked-2", *C1_RUN, "tracking.report_to=[tensorboard]", "train.max_steps=2")
        balanced = ("task.class_weights=balanced", "train.per_device_train_batch_size=2")
        train("reviews", output / "weights-2", *C1_RUN, *balanced, double=True)
        masked = ("train.per_device_train_batch_size=2", "train.gradient_accumulation_steps=2")
        train("language_modeling/smoke_masked", output / "masked-2", *C1_RUN, *masked, double=True)
        layouts.save(output, "reviews", "fsdp2", "checkpoint.format=sharded")
        local_sgd_runs.main(output)
        transfer(output)
        small_memory_on_the_second_process(output)


def transfer(output: Path) -> None:
    """Trains adapters and partly frozen models with both engines."""
    for name, (task, *settings) in TRANSFER.items():
        for engine in ("loop", "trainer"):
            train(task, output / f"{name}-{engine}-2", *C1_RUN, *C2_SPLIT, *settings, f"engine={engine}", double=True)


def small_memory_on_the_second_process(output: Path) -> None:
    """Trains runs in which only the second process runs out of memory, in the forward or the backward pass."""
    import pytest
    from small_memory import AUTO, RUN, small_memory

    limit = 1 if os.environ["RANK"] == "1" else 99
    split = ("train.per_device_train_batch_size=3", "train.gradient_accumulation_steps=2")
    for when in ("forward", "backward"):
        for engine in ("loop", "trainer"):
            with pytest.MonkeyPatch.context() as patch:
                small_memory(patch, lambda: limit, when)
                folder = output / f"memory-{when}-{engine}-2"
                train("reviews", folder, *RUN, *split, AUTO, f"engine={engine}", double=True)


if __name__ == "__main__":
    folder, number = Path(sys.argv[1]), int(os.environ.get("WORLD_SIZE", "1"))
    train_tasks(folder, number, FURTHER) if sys.argv[2:] == ["further"] else main(folder, number)
    finish()
