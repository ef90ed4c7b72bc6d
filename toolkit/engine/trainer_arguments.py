"""Builds the arguments and callbacks of `transformers.Trainer`, which are checked before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.api.run import Run
from toolkit.api.state import Milestones
from toolkit.base.errors import ConfigError
from toolkit.base.package import import_object
from toolkit.config.messages import show
from toolkit.config.sections import TrainerConfig

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainingArguments


def training_arguments(run: Run, milestones: Milestones) -> TrainingArguments:
    """Returns the Trainer's arguments: the run's settings that callbacks may read, and `trainer.args`."""
    from transformers import TrainingArguments

    cfg, train = run.cfg, run.cfg.train
    evaluates = milestones.eval_every is not None and "validation" in run.data.evals
    precision = run.accelerator.mixed_precision
    try:
        return TrainingArguments(
            output_dir=str(run.output_dir),
            seed=cfg.seed,
            use_cpu=run.accelerator.device.type == "cpu",
            bf16=precision == "bf16",
            fp16=precision == "fp16",
            per_device_train_batch_size=train.micro_batch,
            per_device_eval_batch_size=cfg.eval.per_device_eval_batch_size,
            # With a token budget, a window is one item for the Trainer.
            gradient_accumulation_steps=1 if train.max_tokens_per_batch else train.accumulation,
            max_steps=milestones.total_steps,
            learning_rate=train.learning_rate,
            weight_decay=train.weight_decay,
            max_grad_norm=train.max_grad_norm,
            logging_steps=milestones.log_every,
            eval_strategy="steps" if evaluates else "no",
            eval_steps=milestones.eval_every if evaluates else None,
            metric_for_best_model=run.best.name,
            greater_is_better=run.best.greater_is_better,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_nan_inf_filter=False,
            use_cache=getattr(run.model.config, "use_cache", False),
            accelerator_config={"use_configured_state": True},
            **cfg.trainer.args,
        )
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError([f"trainer.args: transformers rejects {show(cfg.trainer.args)}: {error}"]) from error


def trainer_callback(name: str) -> TrainerCallback:
    """Imports a callback of the Trainer by `package.module.Name`, of it or of what returns one without arguments.

    Raises ImportError if the name cannot be imported; TypeError if it is neither.
    """
    from transformers import TrainerCallback

    found = import_object(name)
    callback = found if isinstance(found, TrainerCallback) else found()
    if not isinstance(callback, TrainerCallback):
        raise TypeError(f"it returns a {type(callback).__name__}, not a TrainerCallback")
    return callback


def callbacks(trainer: TrainerConfig) -> dict[str, TrainerCallback]:
    """Returns the configured callbacks by name, in the order of the YAML."""
    return {name: trainer_callback(name) for name in trainer.callbacks}
