"""Prepares a loaded model for training: frozen parameters, adapters, activation memory and compilation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.console import say, warn
from toolkit.base.files import written_folder
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import Config
from toolkit.distributed.collectives import on_main
from toolkit.models.activations import spare_activations
from toolkit.models.adapters import add_adapters
from toolkit.models.compilation import compile_training
from toolkit.models.fast_dropout import recomputing, use_fast_dropout
from toolkit.models.freezing import freeze
from toolkit.models.labelled_logits import head_at_labels
from toolkit.models.load import batch_dependence
from toolkit.models.parts import count_parameters
from toolkit.models.unpadded.install import install

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel


def make_trainable(
    model: PreTrainedModel,
    cfg: Config,
    auto_model: str,
    accelerator: Accelerator,
    output_dir: Path,
    resolved: Mapping[str, bool | int],
) -> PreTrainedModel:
    """Takes out padding, freezes parameters or adds adapters; sets up dropout, activation memory and compilation.

    Args:
        model: the model with its weights.
        cfg: resolved configuration.
        auto_model: name of the model's auto class in transformers.
        accelerator: the run's.
        output_dir: folder in which a new base model is saved for its adapters.
        resolved: what settings of `auto` became, by dotted key.

    Returns:
        The model to train.

    Raises:
        ConfigError: if a setting does not fit the model.
    """
    if resolved["train.unpadded"]:
        # Compressed activations differ between both ways to compute a row.
        install(model, always=cfg.train.max_tokens_per_batch is not None or cfg.train.activation_compression != "none")
    if cfg.model.peft.method != "none":
        if cfg.model.from_config is not None:
            # Adapters can only be loaded with their base model, so it is saved and later moved into the result.
            on_main(accelerator, _save, model, RunFolder(output_dir).base)
        model = add_adapters(model, cfg.model.peft, auto_model, cfg.seed)
    freeze(model, cfg.model)
    trained, total = count_parameters(model)
    if trained < total:
        say(f"training {trained:,} of {total:,} parameters ({trained / total:.2%})")
    for reason in batch_dependence(model):
        warn(f"results of this model depend on the batch size and the number of processes: {reason}.")
    if not cfg.train.torch_compile:  # compiled passes have fixed shapes
        head_at_labels(model)
    fast_dropout = resolved["train.fast_dropout"] and use_fast_dropout(model)
    spare_activations(model, cfg.train, recomputing if fast_dropout else None)
    compile_training(model, cfg.train)
    return model


def _save(model: PreTrainedModel, folder: Path) -> None:
    with written_folder(folder) as new:
        model.save_pretrained(new)
