"""Builds a run's model: on every process, or with the weights on the main process only if it is split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from toolkit.api.mesh import Mesh
from toolkit.config.sections import Config, ModelConfig
from toolkit.distributed.collectives import on_every, on_main
from toolkit.distributed.placement import layout
from toolkit.models.load import attention, build_empty, build_model
from toolkit.models.source import source_of
from toolkit.system.rank_order import local_main_first

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedConfig, PreTrainedModel


def build_for(
    mesh: Mesh, accelerator: Accelerator, cfg: Config, config: PreTrainedConfig, auto_model: str
) -> PreTrainedModel:
    """Builds a run's model; one that is split over processes has its weights on the main process only.

    On the other processes it is on the meta device, unless it could not be built there like on the main process.

    Args:
        mesh: the run's processes.
        accelerator: the run's Accelerator.
        cfg: resolved configuration.
        config: the model's configuration, completed by task and processor.
        auto_model: name of the auto class.

    Raises:
        ConfigError: as for `build_model`; on every process if the model is split.
        InputError: likewise.
    """
    arguments = source_of(cfg), config, auto_model, cfg.seed
    if not mesh.is_split:
        with local_main_first(accelerator):
            return build_model(*arguments)
    build = build_model if accelerator.is_main_process else _build_without_weights
    model: PreTrainedModel | None = on_every(accelerator, build, *arguments)
    expected, generation = on_main(accelerator, _layout_and_generation, model)
    model = on_every(accelerator, lambda: model if model and layout(model) == expected else build_model(*arguments))
    if generation is not None:  # from_pretrained may have read it from a file of its own
        model.generation_config = generation
    return model


def _layout_and_generation(model: PreTrainedModel) -> tuple[Any, Any]:
    return layout(model), getattr(model, "generation_config", None)


def _build_without_weights(
    model: ModelConfig, config: PreTrainedConfig, auto_model: str, seed: int
) -> PreTrainedModel | None:
    """Returns the model of `build_model` on the meta device, or None if it cannot be built there."""
    import transformers

    auto_class = getattr(transformers, auto_model)
    options = {"trust_remote_code": model.trust_remote_code, **attention(model, config, auto_class)}
    try:
        return build_empty(auto_class, config, dtype=torch.float32, **options)
    except Exception:  # the class reads values of its new tensors, or refuses this configuration everywhere
        return None
