"""Runs one training of a certificate, by the toolkit or by the plain Trainer, and traces its steps."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from toolkit.api.batch import IGNORE_INDEX, Batch
from toolkit.api.random import RowRandom
from toolkit.api.run import Run
from toolkit.base.run_folder import RunFolder
from toolkit.config.keys import written
from toolkit.config.paths import source_of
from toolkit.config.sections import Config
from toolkit.lab.certify.trace import Trace
from toolkit.lab.certify.trainings import WINDOW
from toolkit.models.load import load_model_config
from toolkit.recipe import load_settings, load_task_type


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
        output_dir=str(Path(run.cfg.output_dir) / "trainer"), max_steps=1,
        per_device_train_batch_size=train.micro_batch, gradient_accumulation_steps=train.accumulation,
        max_grad_norm=0.0, use_cpu=True, save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True,
        remove_unused_columns=False, accelerator_config={"use_configured_state": True},
    )  # fmt: skip
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


DROPOUT_FIELDS = ("dropout", "drop_path", "drop_rate", "_pdrop", "layerdrop", "_drop")
"""Parts of the names of fields of model configurations that are dropout probabilities."""
LAYER_FIELDS = frozenset({
    "num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers", "n_layer", "n_layers",
})  # fmt: skip
"""Fields of model configurations that are numbers of layers."""
MASKING_FIELDS = ("mask_time_prob", "mask_feature_prob")
"""Fields of model configurations that are probabilities of masking inputs."""


def train(job: Mapping[str, Any]) -> None:
    """Runs a training and writes its trace; the job has its fields, the run, all trainings' folder and `kill`."""
    from toolkit.run import prepared_run, run

    task_type, recipe, folder = load_task_type(job["recipe"]), Path(job["recipe"]), Path(job["folder"])
    output_dir = folder / (job["resumes"] or job["name"])
    overrides = [*job["overrides"], f"output_dir={output_dir}"]
    if job["model_of"]:
        model = str(RunFolder(folder / job["model_of"]).model)
        overrides += written({"model.from_config": None, "model.revision": None, "model.name_or_path": model})

    def load(*more: str) -> Config:
        return load_settings(task_type, job["config"], [*overrides, *more]).config

    if job["checkpoint_of"]:
        name, step = job["checkpoint_of"]
        overrides += written({"checkpoint.resume": str(RunFolder(folder / name).checkpoint(step).path)})
    changes = _changes(load(), job["no_dropout"], job["max_layers"])
    cfg = load(*written({f"model.config_overrides.{name}": value for name, value in changes.items()}))
    (folder / job["name"]).mkdir(exist_ok=True)
    # Traces have a separate folder: the output folder of a run must be empty.
    with Trace(folder / "traces" / job["name"], job["gradients"], job["kill"]) as trace:
        if job["plain"]:
            with prepared_run(cfg, task_type(cfg), recipe) as prepared:
                one_update(prepared, trace)
        else:
            run(cfg, task_type(cfg), recipe, [trace], float64=job["float64"])


def _changes(cfg: Config, no_dropout: bool, max_layers: int | None) -> dict[str, float]:
    """Returns the fields of the model's configuration that remove random numbers and layers, with their new values."""
    found: dict[str, float] = {}
    for name, value in load_model_config(source_of(cfg)).to_dict().items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        random = any(part in name for part in DROPOUT_FIELDS) or name in MASKING_FIELDS
        if no_dropout and random and 0 < value < 1:
            found[name] = 0.0
        if max_layers is not None and name in LAYER_FIELDS and value > max_layers:
            found[name] = max_layers
    return found
