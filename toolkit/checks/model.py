"""Checks settings against the model's configuration and a copy of the model without weights.

The copy is on the meta device: it has all layers and the names and shapes of all parameters, but takes no memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import modalities
from toolkit.api.task import Task
from toolkit.base.errors import ConfigError, InputError, problems_of
from toolkit.base.files import kind_of
from toolkit.checks.check import CannotCheck
from toolkit.config.paths import source_of
from toolkit.config.sections import Config, ModelConfig
from toolkit.distributed.pipeline.partition import stage_problems
from toolkit.distributed.pipeline.schedules import CHUNKS
from toolkit.distributed.tensor.plans import plan_problems, split_modules
from toolkit.modalities.text import shape_problems
from toolkit.models.activations import spare_activations
from toolkit.models.adapters import adapter_problems, add_adapters, prompt_problems
from toolkit.models.load import (
    attention,
    build_empty,
    head_problems,
    load_model_config,
    lost_override_problems,
    unused_parameter_problems,
)
from toolkit.models.parts import freeze
from toolkit.models.unpadded import families
from toolkit.optim.optimizers import rates
from toolkit.prepare import inputs

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_config.json")
"""Names of weight files; a model's folder contains one of them."""


def config_problems(cfg: Config, task: Task) -> list[str]:
    """Returns why the model's configuration cannot be loaded or created."""
    _require_name(cfg.model)
    return problems_of(lambda: load_model_config(source_of(cfg)))


def weight_problems(cfg: Config, task: Task) -> list[str]:
    """Returns a message if a local folder, or the cache of an offline machine, contains no weights."""
    from huggingface_hub import constants, try_to_load_from_cache

    name, revision = source_of(cfg).name_or_path, cfg.model.revision
    if name is None or config_problems(cfg, task):
        return []
    if kind_of(Path(name)) == "folder":
        place, there = "the folder", [(Path(name) / file).is_file() for file in WEIGHTS]
    elif constants.HF_HUB_OFFLINE:
        place = "the cache, and HF_HUB_OFFLINE=1 disables access to the Hub"
        there = [isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in WEIGHTS]
    else:
        return []
    if any(there):
        return []
    return [f"model.name_or_path: received {name!r}, but there are no safetensors weights in {place}"]


def fit_problems(cfg: Config, task: Task) -> list[str]:
    """Returns why the model and the task do not fit."""
    return inputs.fit_problems(cfg, task, _config(cfg))


def process_problems(cfg: Config, num_processes: int) -> list[str]:
    """Returns why this number of processes cannot train the model."""
    if num_processes == 1 or cfg.train.ddp_find_unused_parameters:
        return []
    return unused_parameter_problems(_config(cfg))


def build_problems(cfg: Config, task: Task) -> list[str]:
    """Returns why the model cannot be built from its configuration."""
    if cfg.model.from_config is None and cfg.model.attn_implementation is None:
        return []
    config = _config(cfg)
    return [] if head_problems(cfg.model, config, task.auto_model(config)) else problems_of(lambda: _build(cfg, task))


def freeze_problems(cfg: Config, task: Task) -> list[str]:
    """Returns which patterns of `model.freeze` and `model.unfreeze` match nothing."""
    if not cfg.model.freeze:
        return []
    model = _without_weights(cfg, task)
    return problems_of(lambda: freeze(model, cfg.model))


def adapter_fit_problems(cfg: Config, task: Task) -> list[str]:
    """Returns why `model.peft` does not fit the model."""
    if cfg.model.peft.method == "none" or adapter_problems(cfg.model):
        return []
    auto_model = task.auto_model(_config(cfg))
    if prompt_problems(cfg.model, auto_model):
        return []
    model = _without_weights(cfg, task)
    return problems_of(lambda: add_adapters(model, cfg.model.peft, auto_model, cfg.seed))


def noise_problems(cfg: Config, task: Task) -> list[str]:
    """Returns why the Trainer cannot add noise to the model's embeddings."""
    if cfg.engine != "trainer" or cfg.trainer.args.get("neftune_noise_alpha") is None:
        return []
    try:
        _without_weights(cfg, task).get_input_embeddings()
    except NotImplementedError:
        kind = _config(cfg).model_type
        return [f"trainer.args.neftune_noise_alpha: noise is added to embeddings, which a {kind} lacks; remove it"]
    return []


def activation_problems(cfg: Config, task: Task) -> list[str]:
    """Returns why activations of this model cannot be recomputed."""
    if cfg.train.activation_checkpointing == "none" and cfg.train.activation_compression == "none":
        return []
    model = _without_weights(cfg, task)
    return problems_of(lambda: spare_activations(model, cfg.train))


def padding_problems(cfg: Config, task: Task) -> list[str]:
    """Returns why the model cannot leave out the padding of its batches, or is too short for it."""
    multiple, peft = cfg.train.pad_to_multiple_of, cfg.model.peft
    if multiple is not None:
        virtual = peft.num_virtual_tokens if peft.method == "prompt_tuning" else 0
        return shape_problems(_config(cfg), task.options, multiple, virtual)
    return families.problems(cfg, _config(cfg)) if cfg.train.unpadded is True else []


def tensor_problems(cfg: Config, task: Task) -> list[str]:
    """Returns why the model's layers cannot be split over `parallel.tensor` processes."""
    size = cfg.parallel.tensor
    problems = plan_problems(_config(cfg), size) if size > 1 else []
    if size == 1 or problems:
        return problems
    model = _without_weights(cfg, task)
    return problems_of(lambda: split_modules(model, size))


def pipeline_problems(cfg: Config, task: Task) -> list[str]:
    """Returns why the model cannot be split into `parallel.pipeline` stages."""
    parallel = cfg.parallel
    if parallel.pipeline == 1:
        return []
    return stage_problems(_config(cfg), parallel.pipeline, CHUNKS.get(parallel.schedule, 1))


def rate_problems(cfg: Config, task: Task) -> list[str]:
    """Returns which parameters with their own learning rate do not exist."""
    if cfg.train.layerwise_lr_decay == 1 and cfg.train.head_learning_rate is None:
        return []
    model = _without_weights(cfg, task)
    return problems_of(lambda: rates(model, cfg.train, cfg.train.learning_rate))


def processor_problems(cfg: Config, task: Task) -> list[str]:
    """Returns why the tokenizer, image processor or feature extractor of a pretrained model cannot be loaded."""
    model = source_of(cfg)
    source = model.name_or_path
    if source is None or config_problems(cfg, task):
        return []
    modality = modalities.load(task.modality)
    return problems_of(lambda: modality.load_processor(source, model, task.options))


def override_problems(cfg: Config, task: Task) -> list[str]:
    """Returns which of `model.config_overrides` would be replaced by the processor or the task.

    Fields that a task sets from what it learned from the rows are known only to the run, which refuses them itself.
    """
    if not cfg.model.config_overrides or fit_problems(cfg, task) or processor_problems(cfg, task):
        return []
    config, modality, model = _config(cfg), modalities.load(task.modality), source_of(cfg)
    source = model.name_or_path
    if source is not None:
        processor = modality.load_processor(source, model, task.options)
    else:  # a tokenizer of no text has the same special tokens
        processor = modality.new_processor(iter(()), config, task.options)
    modality.configure(config, processor, new=source is None)
    must_learn = task.has("learn") and None in task.state.values()
    if task.has("configure") and not must_learn:
        task.configure(config)
    return lost_override_problems(cfg.model, config)


def _require_name(model: ModelConfig) -> None:
    new = model.from_config
    if (model.name_or_path is None) == (new is None):
        raise CannotCheck("either model.name_or_path or model.from_config must name a model")
    if new is not None and not isinstance(new.get("model_type"), str):
        raise CannotCheck("no model is given")


def _config(cfg: Config) -> PreTrainedConfig:
    _require_name(cfg.model)
    try:
        return load_model_config(source_of(cfg))
    except InputError as error:
        raise CannotCheck("the model's configuration is wrong") from error


def _build(cfg: Config, task: Task) -> Any:
    import transformers

    config = _config(cfg)
    auto_model = task.auto_model(config)
    auto_class = getattr(transformers, auto_model)
    attention(
        cfg.model, config, auto_class
    )  # refuses what the model's class does not support; the machine is checked separately
    try:
        return build_empty(auto_class, config, trust_remote_code=cfg.model.trust_remote_code)
    except Exception as error:  # each model class has its own checks and exception types
        key = "model.from_config" if cfg.model.from_config is not None else "model.name_or_path"
        raise ConfigError([f"{key}: cannot build {auto_model}: {error}"]) from error


def _without_weights(cfg: Config, task: Task) -> Any:
    """Returns the model on the meta device."""
    try:
        return _build(cfg, task)
    except ConfigError as error:
        raise CannotCheck("the model cannot be built") from error
