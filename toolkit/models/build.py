"""Builds a run's model and makes it trainable: precision, adapters, frozen parts, compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from toolkit.api.mesh import Mesh
from toolkit.base.console import say, warn
from toolkit.base.files import written_folder
from toolkit.base.run_folder import RunFolder
from toolkit.config.paths import source_of
from toolkit.config.sections import Config, ModelConfig, TrainConfig
from toolkit.distributed.collectives import on_every, on_main
from toolkit.distributed.placement import layout
from toolkit.models.activations import spare_activations
from toolkit.models.adapters import add_adapters
from toolkit.models.chunked import chunk_head
from toolkit.models.fast_dropout import recomputing, use_fast_dropout
from toolkit.models.load import attention, batch_dependence, build_empty, build_model
from toolkit.models.parts import count_parameters, freeze, head_at_labels
from toolkit.models.unpadded.families import PACKED
from toolkit.models.unpadded.layers import install, stacks
from toolkit.system.rank_order import local_main_first

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedConfig, PreTrainedModel


def compile_training(model: nn.Module, train: TrainConfig, layers: Iterable[nn.Module] = ()) -> None:
    """Compiles the training passes of a model, or of its `layers` alone, in place.

    Evaluation and generation vary more in shape and run less.
    """
    if not train.torch_compile:
        return
    import torch._inductor.config as inductor

    # Dropout draws the same random numbers as without compilation, so that only rounding differs.
    inductor.fallback_random = True
    compiled = partial(torch.compile, backend=train.torch_compile_backend or "inductor", mode=train.torch_compile_mode)
    if not (parts := [*layers]):
        model._compiled_call_impl = _in_training(model, compiled(model._call_impl), model._call_impl)
    # Layers are compiled without their hooks, by which tokens leave and enter the padded batch, and share their code,
    # with a constant of their own perhaps. A deep copy would call these layers: models that are split are not compiled.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 3 * len(parts))
    for layer in parts:
        layer.forward = _in_training(layer, compiled(layer.forward), layer.forward)


def _in_training(module: nn.Module, compiled: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **named: (compiled if module.training else own)(*arguments, **named)


def make_trainable(
    model: PreTrainedModel,
    cfg: Config,
    auto_model: str,
    accelerator: Accelerator,
    output_dir: Path,
    resolved: Mapping[str, bool | int | str],
) -> PreTrainedModel:
    """Removes padding, freezes parameters or adds adapters; sets up dropout, activation memory and compilation.

    A new base model is saved for its adapters in `output_dir`. Values chosen for settings that were `auto` are added to
    `resolved`, by dotted key.

    Raises:
        ConfigError: if a setting does not fit the model.
    """
    if unpadded := resolved["train.unpadded"]:
        # Compressed activations differ between both ways to compute a row.
        always = cfg.train.max_tokens_per_batch is not None or cfg.train.activation_compression != "none"
        install(model, always, packed=unpadded == PACKED, compiled=cfg.train.torch_compile,
                multiple=cfg.train.pad_to_multiple_of)  # fmt: skip
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
    if unpadded or not cfg.train.torch_compile:  # compiled heads have fixed shapes
        head_at_labels(model)
    if resolved["train.chunked_loss"]:
        chunk_head(model)
    fast_dropout = resolved["train.fast_dropout"] and use_fast_dropout(model)
    spare_activations(model, cfg.train, recomputing if fast_dropout else None)
    compile_training(model, cfg.train, chain.from_iterable(stacks(model)) if unpadded else ())
    return model


def _save(model: PreTrainedModel, folder: Path) -> None:
    with written_folder(folder) as new:
        model.save_pretrained(new)


def build_for(
    mesh: Mesh,
    accelerator: Accelerator,
    cfg: Config,
    config: PreTrainedConfig,
    auto_model: str,
    further: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """Builds a run's model; one that is split over processes has its weights on the main process only.

    On the other processes it is on the meta device, unless it could not be built there like on the main process.
    `further` are arguments of `build_model`.

    Raises:
        ConfigError: as for `build_model`; on every process if the model is split.
        InputError: likewise.
    """
    arguments = source_of(cfg), config, auto_model, cfg.seed, further
    if not mesh.is_split:
        with local_main_first(accelerator):
            return build_model(*arguments)
    build = build_model if accelerator.is_main_process else _build_without_weights
    model: PreTrainedModel | None = on_every(accelerator, build, *arguments)
    expected, generation = on_main(accelerator, lambda m: (layout(m), getattr(m, "generation_config", None)), model)
    model = on_every(accelerator, lambda: model if model and layout(model) == expected else build_model(*arguments))
    if generation is not None:  # from_pretrained may have read it from a file of its own
        model.generation_config = generation
    return model


def _build_without_weights(
    model: ModelConfig, config: PreTrainedConfig, auto_model: str, seed: int, further: Mapping[str, Any] | None
) -> PreTrainedModel | None:
    """Returns the model of `build_model` on the meta device, or None if it cannot be built there."""
    auto_class = getattr(transformers, auto_model)
    options = {"trust_remote_code": model.trust_remote_code, **attention(model, config, auto_class)}
    try:
        return build_empty(auto_class, config, dtype=torch.float32, **options)
    except Exception:  # the class reads values of its new tensors, or rejects this configuration everywhere
        return None


def in_float64(model: PreTrainedModel) -> PreTrainedModel:
    """Converts a model's parameters and buffers, and from then on its inputs, to float64."""

    def convert(module: nn.Module, arguments: tuple[Any, ...], inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        return arguments, inputs | {name: t.double() for name, t in tensors.items() if t.is_floating_point()}

    model.register_forward_pre_hook(convert, with_kwargs=True)
    if any(hasattr(module, "_is_expert_parallel") for module in model.modules()):
        model.set_experts_implementation("eager")  # other kernels have no float64
    return model.double()
