"""Merges a run's adapters into the model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from toolkit.config.sections import Config
    from toolkit.deploy.trained import TrainedRun


def refuse_unmergeable(cfg: Config) -> None:
    """Refuses a run whose adapters are not part of weights.

    Raises:
        InputError: with the reason.
    """
    from toolkit.base.errors import InputError

    reasons = {
        "none": "it trained the full model, which is in its folder model/",
        "prompt_tuning": "virtual tokens are inputs, not weights; load its folder model/ with peft",
        "qlora": "4-bit weights cannot hold the sum, and others would change the outputs; load its folder "
        "model/ with peft",
    }
    if why := reasons.get(cfg.model.peft.method):
        raise InputError(f"this run (model.peft.method={cfg.model.peft.method}) has nothing to merge: {why}.")


def write_merged(run: TrainedRun, folder: Path) -> None:
    """Merges the adapters of a run in place, and writes the model and its processor."""
    from toolkit.models.adapters import merged

    merged(run.accelerator.unwrap_model(run.model)).save_pretrained(folder)
    run.processor.save_pretrained(folder)


def reloaded(run: TrainedRun, folder: Path) -> PreTrainedModel:
    """Loads a model of a run with transformers alone, as users will, in float32."""
    import torch
    import transformers

    auto_class = getattr(transformers, run.task.auto_model(run.accelerator.unwrap_model(run.model).config))
    remote = run.cfg.model.trust_remote_code
    model = auto_class.from_pretrained(folder, trust_remote_code=remote, dtype=torch.float32)
    return model.to(run.accelerator.device).eval()
