"""Trains the same window with the plain `transformers.Trainer`, for comparison."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from toolkit.api.batch import IGNORE_INDEX, Batch
from toolkit.api.random import RowRandom
from toolkit.api.run import Run
from toolkit.lab.certify.trainings import WINDOW

if TYPE_CHECKING:
    from toolkit.lab.certify.trace import Trace


def one_update(run: Run, trace: Trace) -> None:
    """Trains one step on the first rows with the model's own loss, and records its gradient in the trace."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            trace.gradient(1, model)

    train = run.cfg.train
    rows = [run.data.train[i] for i in range(min(WINDOW, len(run.data.train)))]
    random = RowRandom(run.cfg.seed, epoch=0)
    arguments = TrainingArguments(
        output_dir=str(Path(run.cfg.output_dir) / "trainer"),
        max_steps=1,
        per_device_train_batch_size=train.per_device_train_batch_size,
        gradient_accumulation_steps=train.gradient_accumulation_steps or 1,
        max_grad_norm=0.0,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        accelerator_config={"use_configured_state": True},
    )
    Trainer(
        model=run.model,
        args=arguments,
        train_dataset=rows,
        data_collator=lambda part: with_labels(run.model, run.task.collate(part, run.processor, random)),
        callbacks=[Keep()],
    ).train()


def with_labels(model: torch.nn.Module, batch: Batch) -> dict[str, Any]:
    """Returns the arguments with which a model computes its own loss."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    labels = batch["labels"]
    if "start_positions" in inspect.signature(model.forward).parameters:
        start, end = labels.unbind(-1)
        return {**batch["inputs"], "start_positions": start, "end_positions": end}
    if type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():  # the model shifts labels itself
        labels = torch.cat([torch.full_like(labels[:, :1], IGNORE_INDEX), labels[:, :-1]], dim=1)
    return {**batch["inputs"], "labels": labels}
