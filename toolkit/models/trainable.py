"""What of a model a run trains: all of it, what is not frozen, or adapters beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.base.console import say
from toolkit.base.run_folder import RunFolder
from toolkit.config.sections import Config
from toolkit.distributed.collectives import on_main
from toolkit.models.adapters import add_adapters
from toolkit.models.freezing import freeze
from toolkit.models.parts import count_parameters

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel


def make_trainable(
    model: PreTrainedModel, cfg: Config, auto_model: str, accelerator: Accelerator, output_dir: Path
) -> PreTrainedModel:
    """Freezes what the YAML says, or adds its adapters, and says how much is left to train.

    Raises:
        ConfigError: if that does not fit the model.
    """
    if cfg.model.peft.method != "none":
        if cfg.model.from_config is not None:
            # What adapters are trained beside must be there to load them; from here it moves into the result.
            on_main(accelerator, model.save_pretrained, RunFolder(output_dir).base)
        model = add_adapters(model, cfg.model.peft, auto_model, cfg.seed)
    freeze(model, cfg.model)
    trained, total = count_parameters(model)
    if trained < total:
        say(f"training {trained:,} of {total:,} parameters ({trained / total:.2%})")
    return model
