"""Checks settings against the model's configuration and a copy of the model without weights.

The copy is on the meta device: it has all layers and the names and shapes of all parameters, but takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import modalities
from toolkit.base.errors import ConfigError, InputError, problems_of
from toolkit.base.files import kind_of
from toolkit.checks import first_rows
from toolkit.checks.check import Case
from toolkit.config.paths import source_of
from toolkit.config.problems import CannotCheck
from toolkit.config.sections import ModelConfig
from toolkit.distributed import context
from toolkit.distributed.experts import expert_layers
from toolkit.distributed.pipeline.partition import stage_problems
from toolkit.distributed.pipeline.schedules import CHUNKS
from toolkit.distributed.routing import BALANCED, COEFFICIENT, ON
from toolkit.distributed.tensor.plans import plan_problems, split_modules
from toolkit.distributed.tensor.sequence import sequence_problems
from toolkit.modalities.text import prefix_problems, shape_problems
from toolkit.models.activations import spare_activations
from toolkit.models.adapters import adapter_problems, add_adapters, prompt_problems
from toolkit.models.load import attention, build_empty, head_problems, lost_override_problems, unused_parameter_problems
from toolkit.models.parts import freeze
from toolkit.models.unpadded import families
from toolkit.optim.optimizers import rates
from toolkit.prepare.processor import configure_model, processor_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
"""Names of weight files; a model's folder contains one of them."""


def config_problems(case: Case) -> list[str]:
    """Returns why the model's configuration cannot be loaded or created."""
    _require_name(case.cfg.model)
    return problems_of(case.load_config)


def weight_problems(case: Case) -> list[str]:
    """Returns a message if a local folder, or the cache of an offline machine, contains no weights."""
    from huggingface_hub import constants, try_to_load_from_cache

    if config_problems(case) or (name := source_of(case.cfg).name_or_path) is None:
        return []
    if kind_of(Path(name)) == "folder":
        place, there = "the folder", [(Path(name) / file).is_file() for file in WEIGHTS]
    elif constants.HF_HUB_OFFLINE:
        place, revision = "the cache, and HF_HUB_OFFLINE=1 disables access to the Hub", case.cfg.model.revision
        there = [isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in WEIGHTS]
    else:
        return []
    if any(there):
        return []
    if (Path(name) / "adapter_config.json").is_file():
        return [f"model.name_or_path: received {name!r}, which has adapters only; merge them (`toolkit merge RUN`), "
                "and name RUN/merged"]  # fmt: skip
    return [f"model.name_or_path: received {name!r}, but there are no safetensors weights in {place}"]


def fit_problems(case: Case) -> list[str]:
    """Returns why the model, the task and a prefix of virtual tokens do not fit together."""
    cfg, task, config = case.cfg, case.task, _config(case)
    auto_model, peft = task.auto_model(config), cfg.model.peft
    problems = [
        *modalities.load(task.modality).check_model(config, task.options),
        *head_problems(cfg.model, config, auto_model),
        *prompt_problems(cfg.model, auto_model),
    ]
    if peft.method == "prompt_tuning" and not problems:
        return prefix_problems(config, task.options, peft.num_virtual_tokens)
    return problems


def build_problems(case: Case) -> list[str]:
    """Returns why the model cannot be built from its configuration."""
    model = case.cfg.model
    if model.from_config is None and model.attn_implementation is None:
        return []
    config = _config(case)
    if head_problems(model, config, case.task.auto_model(config)):
        return []
    return problems_of(lambda: setattr(case, "empty", _build(case)))


def freeze_problems(case: Case) -> list[str]:
    """Returns which patterns of `model.freeze` and `model.unfreeze` match nothing."""
    return _of_empty(case, lambda model: freeze(model, case.cfg.model)) if case.cfg.model.freeze else []


def adapter_fit_problems(case: Case) -> list[str]:
    """Returns why `model.peft` does not fit the model."""
    cfg = case.cfg
    if cfg.model.peft.method == "none" or adapter_problems(cfg.model):
        return []
    auto_model = case.task.auto_model(_config(case))
    if prompt_problems(cfg.model, auto_model):
        return []
    return _of_empty(case, lambda model: add_adapters(model, cfg.model.peft, auto_model, cfg.seed))


def noise_problems(case: Case) -> list[str]:
    """Returns why the Trainer cannot add noise to the model's embeddings."""
    if case.cfg.engine != "trainer" or case.cfg.trainer.args.get("neftune_noise_alpha") is None:
        return []
    try:
        _empty_model(case).get_input_embeddings()
    except NotImplementedError:
        kind = _config(case).model_type
        return [f"trainer.args.neftune_noise_alpha: noise is added to embeddings, which a {kind} lacks; remove it"]
    return []


def activation_problems(case: Case) -> list[str]:
    """Returns why activations of this model cannot be recomputed."""
    train = case.cfg.train
    if train.activation_checkpointing == "none" and train.activation_compression == "none":
        return []
    return _of_empty(case, lambda model: spare_activations(model, train))


def padding_problems(case: Case) -> list[str]:
    """Returns why the model cannot run without padding, or is too short for `train.pad_to_multiple_of`."""
    multiple, peft, found = case.cfg.train.pad_to_multiple_of, case.cfg.model.peft, list[str]()
    if multiple is not None and case.cfg.train.unpadded is not True:
        virtual = peft.num_virtual_tokens if peft.method == "prompt_tuning" else 0
        found = shape_problems(_config(case), case.task.options, multiple, virtual)
    if case.cfg.train.unpadded in (True, families.PACKED):
        found += families.problems(case.cfg, _config(case))
    return found


def tensor_problems(case: Case) -> list[str]:
    """Returns why the model's layers cannot be split over `parallel.tensor` processes."""
    size = case.cfg.parallel.tensor
    if size == 1:
        return []
    problems = plan_problems(_config(case), size)
    if case.cfg.parallel.sequence:
        problems += sequence_problems(_config(case))
    return problems or problems_of(lambda: split_modules(_unchanged(case), size))


def context_problems(case: Case) -> list[str]:
    """Returns why the positions of the model's inputs cannot be split over `parallel.context` processes."""
    cfg, size = case.cfg, case.cfg.parallel.context
    if size == 1:
        return []
    if case.task.has("window_loss"):
        return [f"parallel.context: received {size}, but the loss compares whole rows of a window; set parallel.fsdp"]
    return context.context_problems(_config(case), size, cfg.model.attn_implementation)


def pipeline_problems(case: Case) -> list[str]:
    """Returns why the model cannot be split into `parallel.pipeline` stages."""
    parallel = case.cfg.parallel
    if parallel.pipeline == 1:
        return []
    return stage_problems(_config(case), parallel.pipeline, CHUNKS.get(parallel.schedule, 1))


def expert_problems(case: Case) -> list[str]:
    """Returns why the model's experts cannot be split over `parallel.expert` processes."""
    size = case.cfg.parallel.expert
    return _of_empty(case, lambda model: expert_layers(model, size)) if size > 1 else []


def router_problems(case: Case) -> list[str]:
    """Returns why the loss that balances the load of experts would not count, or not as configured."""
    cfg, config = case.cfg, _config(case)
    given = {**(cfg.model.from_config or {}), **cfg.model.config_overrides}
    section = "model.from_config" if cfg.model.from_config is not None else "model.config_overrides"
    if not getattr(config, ON, False):
        unused = f"{section}.{COEFFICIENT}: has no effect without {section}.{ON}=true; set it, or remove {COEFFICIENT}"
        return [unused] if COEFFICIENT in given else []
    reasons = {
        f"the loss of a {config.model_type}'s routers has not been compared": config.model_type not in BALANCED,
        f"{type(case.task).__name__} has its own forward pass, whose rows may be others": case.task.has("forward"),
        "train.torch_compile leaves out what records routers": cfg.train.torch_compile,
        "prompt_tuning (model.peft.method) adds tokens that no row has": cfg.model.peft.method == "prompt_tuning",
    }
    loss = "so the loss that balances experts would not count; set it to false"
    return [f"{section}.{ON}: received true, but {why}, {loss}" for why, applies in reasons.items() if applies]


def rate_problems(case: Case) -> list[str]:
    """Returns which parameters with their own learning rate do not exist."""
    train = case.cfg.train
    if train.layerwise_lr_decay == 1 and train.head_learning_rate is None:
        return []
    return _of_empty(case, lambda model: rates(model, train, train.learning_rate))


def processor_problems(case: Case) -> list[str]:
    """Returns why the tokenizer, image processor or feature extractor cannot be loaded, or not be used by the task."""
    if config_problems(case):
        return []
    new = source_of(case.cfg).name_or_path is None
    if new and not case.task.has("processor_problems"):
        return []
    if problems := problems_of(lambda: _processor(case)):
        return problems
    processor, modality = _processor(case), modalities.load(case.task.modality)
    problems = [] if new else problems_of(lambda: modality.configure(_config(case), processor, new))
    return problems or case.task.processor_problems(processor)


def lost_row_problems(case: Case) -> list[str]:
    """Returns which of the first training rows a pretrained model's tokenizer would leave nothing of."""
    if not case.task.has("lost") or config_problems(case) or processor_problems(case):
        return []
    model = source_of(case.cfg)
    if model.name_or_path is None or modalities.completes_processor(case.task.modality, model, case.task.options):
        return []
    processor, config = _processor(case), _config(case)
    configure_model(config, case.task, processor, new=False)
    return first_rows.lost_row_problems(case.cfg.data, case.task, processor)


def _processor(case: Case) -> Any:
    """Returns the model's processor, or a new one of no text, which has the same special tokens."""
    return processor_of(case.cfg, case.task, _config(case), iter(()))


def override_problems(case: Case) -> list[str]:
    """Returns which of `model.config_overrides` would be replaced by the processor or the task.

    Fields that a task sets from what it learned from the rows are known only to the run, which asks again itself.
    """
    cfg, task = case.cfg, case.task
    if not cfg.model.config_overrides or fit_problems(case) or processor_problems(case):
        return []
    config, new = _config(case), source_of(cfg).name_or_path is None
    modalities.load(task.modality).configure(config, _processor(case), new)
    must_learn = task.has("learn") and None in task.state.values()
    if task.has("configure") and not must_learn:
        task.configure(config)
    return lost_override_problems(cfg.model, config)


def process_problems(case: Case) -> list[str]:
    """Returns why several processes cannot train the model."""
    if case.processes in (None, 1) or case.cfg.train.ddp_find_unused_parameters:
        return []
    return unused_parameter_problems(_config(case))


def _require_name(model: ModelConfig) -> None:
    new = model.from_config
    if (model.name_or_path is None) == (new is None):
        raise CannotCheck("either model.name_or_path or model.from_config must name a model")
    if new is not None and not isinstance(new.get("model_type"), str):
        raise CannotCheck("no model is given")


def _config(case: Case) -> PreTrainedConfig:
    _require_name(case.cfg.model)
    try:
        return case.load_config()
    except InputError as error:
        raise CannotCheck("the model's configuration is wrong") from error


def _build(case: Case) -> PreTrainedModel:
    import transformers

    model, config = case.cfg.model, _config(case)
    auto_model = case.task.auto_model(config)
    auto_class = getattr(transformers, auto_model)
    attention(model, config, auto_class)  # what the model's class supports; the machine is checked separately
    try:
        return build_empty(auto_class, config, trust_remote_code=model.trust_remote_code)
    except Exception as error:  # each model class has its own checks and exception types
        key = "model.from_config" if model.from_config is not None else "model.name_or_path"
        raise ConfigError([f"{key}: cannot build {auto_model}: {error}"]) from error


def _empty_model(case: Case) -> PreTrainedModel:
    try:
        return _build(case)
    except ConfigError as error:
        raise CannotCheck("the model cannot be built") from error


def _unchanged(case: Case) -> PreTrainedModel:
    """Returns the model without weights for checks that do not change it; it is built once."""
    case.empty = case.empty or _empty_model(case)
    return case.empty


def _of_empty(case: Case, change: Callable[[PreTrainedModel], object]) -> list[str]:
    """Returns the problems of changing a new copy of the model without weights."""
    model = _empty_model(case)
    return problems_of(lambda: change(model))
