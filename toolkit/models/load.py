"""Loads or builds a model and its configuration, and rejects settings or weights that would be lost."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from toolkit.base.console import say, warn
from toolkit.base.errors import ConfigError, InputError, pretrained_error
from toolkit.base.files import kind_of, read_json
from toolkit.base.offline import prepare_download
from toolkit.base.package import replaced
from toolkit.config.messages import did_you_mean
from toolkit.config.sections import ModelConfig
from toolkit.models.adapters import quantization
from toolkit.models.parts import is_bare
from toolkit.models.unpadded.families import LAYERDROP

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


FIXED = {
    **dict.fromkeys(
        ("num_labels", "id2label", "label2id", "problem_type"), "set by the task from its options and the training rows"
    ),
    "architectures": "set from the class of the model",
    **dict.fromkeys(
        ("return_dict", "output_attentions", "output_hidden_states", "torchscript", "dtype"),
        "left at its default, which tasks rely on",
    ),
}
"""Fields of a model's configuration that cannot be configured, and the reasons."""


def _check_fields(config: PreTrainedConfig, fields: dict[str, Any], key: str) -> None:
    known = sorted({*config.to_dict(), *config.attribute_map} - {"model_type", "transformers_version"})
    problems = []
    for name, value in fields.items():
        if name in FIXED:
            problems.append(f"{key}.{name}: received {value!r}, but this is {FIXED[name]}; remove it")
        elif name not in known:
            hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
            problems.append(f"{key}.{name}: received {value!r}, but {type(config).__name__} has no such field{hint}")
    if problems:
        raise ConfigError(problems)


MOST_LAYERS = 2**14
"""Most layers of a model, or experts in a layer; building more takes hours or all memory, and is a typing error or a
damaged file. The largest default of a configuration class is 16384."""
_COUNTS = re.compile("^(?!.*(size|dim|channel|theta)).*(layer|depth|block|expert|stage)")
"""Names of the fields that say how many modules are built."""


def _reject_endless(values: Mapping[str, Any], key: str) -> None:
    """Raises ConfigError if fields of a configuration ask for a number of layers that no model has."""
    problems: list[str] = []
    waiting: list[tuple[str, Any, bool]] = [(key, values, False)]
    while waiting:
        name, value, counts = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{name}.{each}", inner, bool(_COUNTS.match(str(each)))) for each, inner in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(name, inner, counts) for inner in value]
        elif counts and type(value) is int and value > MOST_LAYERS:
            problems.append(f"{name}: received {value}, expected at most {MOST_LAYERS}")
    if problems:
        raise ConfigError(problems)


def _new_config(fields: dict[str, Any]) -> PreTrainedConfig:
    from transformers import CONFIG_MAPPING, AutoConfig

    model_type = fields["model_type"]
    if model_type not in CONFIG_MAPPING:  # with the types that a recipe registers
        hint = did_you_mean(model_type, list(CONFIG_MAPPING), most=3)
        raise ConfigError(
            [f"model.from_config.model_type: received {model_type!r}, not a model type of transformers{hint}"]
        )
    sizes = {name: value for name, value in fields.items() if name != "model_type"}
    known = AutoConfig.for_model(model_type)
    _check_fields(known, sizes, "model.from_config")
    _reject_endless(sizes, "model.from_config")
    if getattr(known, "vocab_size", 0) is None:  # some classes leave the size to the processor, and cannot be built
        sizes.setdefault("vocab_size", 1)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        # Of the published vocabulary; a smaller one may not have it, and the processor sets its own.
        if (getattr(known, name, None) or 0) >= sizes.get("vocab_size", math.inf):
            sizes.setdefault(name, 0)
    try:
        return AutoConfig.for_model(model_type, **sizes)
    except Exception as error:  # each configuration class has its own checks and exception types
        raise ConfigError([f"model.from_config: {model_type} rejects these sizes: {error}"]) from error


def _reject_special_files(folder: Path) -> None:
    """Rejects a folder with a pipe or a device, because reading it may wait for ever."""
    entries = folder.iterdir() if kind_of(folder) == "folder" else ()
    if found := [path.name for path in entries if path.exists() and not (path.is_file() or path.is_dir())]:
        raise InputError(
            f"model.name_or_path: {folder.absolute()} holds {', '.join(sorted(found))}, not a regular file; remove it"
        )


def load_model_config(model: ModelConfig) -> PreTrainedConfig:
    """Loads or creates the model's configuration and applies `model.config_overrides`.

    Raises ConfigError if the configuration class does not have a field or rejects a value; InputError if the model does
    not exist or its configuration cannot be loaded.
    """
    from transformers import AutoConfig, PreTrainedConfig

    if model.from_config is not None:
        config = _new_config(model.from_config)
    else:
        name = str(model.name_or_path)
        _reject_special_files(Path(name))
        prepare_download(name)
        try:
            fields, _ = PreTrainedConfig.get_config_dict(name, revision=model.revision or "main")
            _reject_endless(fields, "model.name_or_path")  # some classes make a list with an entry for each layer
            config = AutoConfig.from_pretrained(
                name, revision=model.revision or "main", trust_remote_code=model.trust_remote_code
            )
        except ConfigError:
            raise
        except Exception as error:  # Hub, JSON and configuration errors are all caused by this setting
            raise pretrained_error("model.name_or_path", name, error) from error
    _check_fields(config, model.config_overrides, "model.config_overrides")
    _reject_endless(model.config_overrides, "model.config_overrides")
    try:
        for name, value in model.config_overrides.items():
            setattr(config, name, value)
        return type(config).from_dict(config.to_dict())  # runs the class's own checks on the new values
    except Exception as error:
        rejected = f"{type(config).__name__} rejects {model.config_overrides}: {error}"
        raise ConfigError([f"model.config_overrides: {rejected}"]) from error


def lost_override_problems(model: ModelConfig, config: PreTrainedConfig) -> list[str]:
    """Returns which overrides were replaced by the task or the processor, as full messages."""
    lost = [(name, value) for name, value in model.config_overrides.items() if getattr(config, name) != value]
    why = "but this is set by the task or from its processor"
    return [f"model.config_overrides.{name}: received {value!r}, {why}; remove it" for name, value in lost]


def head_problems(model: ModelConfig, config: PreTrainedConfig, auto_model: str) -> list[str]:
    """Returns a full message if transformers has no such head for this model type, or nothing."""
    import transformers

    known = getattr(transformers, auto_model)._model_mapping
    if type(config) in known or auto_model in getattr(config, "auto_map", {}):
        return []
    key = "model.name_or_path" if model.from_config is None else "model.from_config.model_type"
    received = model.name_or_path or config.model_type
    return [f"{key}: received {received!r}, but transformers has no {auto_model} for the type {config.model_type}"]


def load_code(config: PreTrainedConfig, auto_model: str) -> None:
    """Imports a model's class and its libraries before something that the imports would disturb."""
    import transformers

    getattr(transformers, auto_model)._model_mapping.get(type(config), None)


def build_empty(auto_class: Any, config: PreTrainedConfig, **options: Any) -> PreTrainedModel:
    """Returns a model whose tensors are on the meta device; arguments are those of `from_config`.

    Its code is imported before, because values that libraries compute during their import must be real.
    """
    load_code(config, auto_class.__name__)
    with torch.device("meta"):
        model: PreTrainedModel = auto_class.from_config(config, **options)
    return _without_router_outputs(model)


def build_model(
    model: ModelConfig, config: PreTrainedConfig, auto_model: str, seed: int, further: Mapping[str, Any] | None = None
) -> PreTrainedModel:
    """Loads pretrained weights, or creates new ones, in float32; the `seed` must be the same on all processes.

    The configuration was completed by task and processor; `auto_model` names an auto class, for example
    `AutoModelForQuestionAnswering`, and `further` are more arguments of its `from_pretrained`.

    Raises:
        ConfigError: if `model.from_config` is invalid, or the model does not support the attention implementation.
        InputError: if the weights cannot be loaded, or weights other than the head's are missing or mismatched.
    """
    import transformers

    torch.manual_seed(seed)
    auto_class = getattr(transformers, auto_model)
    attending = attention(model, config, auto_class)
    if model.from_config is not None:
        try:
            built = auto_class.from_config(config, dtype=torch.float32, **attending)
        except Exception as error:  # each model class has its own checks and exception types
            raise ConfigError([f"model.from_config: cannot build {auto_model}: {error}"]) from error
        if model.initializer != "default":
            initialize(built, model.initializer)
        return _without_router_outputs(built)
    name = str(model.name_or_path)
    if config.dtype == torch.float64:
        warn(f"{name} has float64 weights, which the toolkit reads, trains and saves in float32")
    load = partial(
        auto_class.from_pretrained, name, config=config, revision=model.revision or "main", use_safetensors=True,
        dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True,
        trust_remote_code=model.trust_remote_code, **quantization(model, config, auto_class), **attending,
        **(further or {}),
    )  # fmt: skip
    files: list[str] = []
    try:
        with replaced(transformers.modeling_utils, "safe_open", partial(_in_memory, files)):
            loaded, info = load()
    except Exception as error:
        raise pretrained_error("model.name_or_path", name, error) from error
    for module in (part for part in loaded.modules() if hasattr(part, "support_avx512bf16_for_cpu")):
        module.support_avx512bf16_for_cpu = False  # in evaluation on CPUs, 4-bit weights would get rounded scales
    _reject_lost_weights(loaded, info, name)
    _keep_labels(loaded, model, files)
    if auto_model == "AutoModelForSequenceClassification" and getattr(config, "classifier_pooling", "cls") != "mean":
        _note_pooling(name)
    return _without_router_outputs(loaded)


def initialize(model: nn.Module, name: str) -> None:
    """Gives the weights of linear and convolutional layers, and of experts, new values by `torch.nn.init`."""
    from transformers.pytorch_utils import Conv1D

    fill = getattr(nn.init, f"{name}_")
    if name.startswith("kaiming"):
        fill = partial(fill, nonlinearity="relu")
    tied = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    done = set[int]()
    for module in model.modules():
        experts = hasattr(module, "_is_expert_parallel")
        if not experts and not isinstance(module, nn.Linear | nn.modules.conv._ConvNd | Conv1D):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.dim() < 2 + experts or id(parameter) in tied | done:
                continue
            done.add(id(parameter))
            for matrix in parameter.unbind() if experts else [parameter]:
                fill(matrix.T if isinstance(module, Conv1D) else matrix)  # of which `Conv1D` holds [inputs, outputs]


def _without_router_outputs(model: PreTrainedModel) -> PreTrainedModel:
    """Ignores `output_router_logits` in forward passes: the loss needs no outputs, and `generate` fails with them."""
    if getattr(model.config, "output_router_logits", False):
        off = {"output_router_logits": False}
        model.register_forward_pre_hook(lambda module, given, inputs: (given, inputs | off), with_kwargs=True)
    return model


def _keep_labels(loaded: PreTrainedModel, model: ModelConfig, files: Sequence[str]) -> None:
    """Gives each row of a head the weights that its label, by name, has in the `files`; those of others are new."""
    from transformers import PreTrainedConfig

    name, labels = str(model.name_or_path), list((loaded.config.id2label or {}).values())
    fields, _ = PreTrainedConfig.get_config_dict(name, revision=model.revision or "main")
    before = {str(label): int(place) for place, label in (fields.get("id2label") or {}).items()}
    outside = [(key, part) for key, part in loaded.named_modules() if isinstance(part, nn.Linear)
               and part.out_features == len(labels) and not key.startswith(f"{loaded.base_model_prefix}.")]  # fmt: skip
    unnamed = all(re.fullmatch(r"LABEL_\d+", label) for label in before)
    if unnamed or not outside or sorted(before, key=before.__getitem__) == labels:
        return
    key, head = outside[-1]
    stored = {part: found for part, _ in head.named_parameters()
              if (found := _stored(files, f"{key}.{part}")) is not None}  # fmt: skip
    kept = [label for label in labels if label in before and stored]
    fresh = nn.Linear(head.in_features, len(labels), bias=head.bias is not None)
    loaded._init_weights(fresh)
    with torch.no_grad():
        for part, values in fresh.named_parameters():
            for label in kept:
                values[labels.index(label)] = stored[part][before[label]]
        head.load_state_dict(fresh.state_dict())
    both = {"new": labels, "dropped": [*before]}
    others = {what: [repr(each) for each in names if each not in kept] for what, names in both.items()}
    said = [f"{what}: {', '.join(each)}" for what, each in others.items() if each]
    say(f"The head of {name} keeps its weights for {len(kept)} of {len(labels)} labels{'; '.join(['', *said])}.")


def _stored(files: Sequence[str], name: str) -> torch.Tensor | None:
    """Returns a tensor of the first of the files that has it."""
    for file in dict.fromkeys(files):
        with _in_memory([], file, framework="pt") as weights:
            if name in weights.keys():  # noqa: SIM118
                tensor: torch.Tensor = weights.get_tensor(name)
                return tensor
    return None


def _in_memory(opened: list[str], file: str, *arguments: Any, **settings: Any) -> Any:
    """Opens weights as transformers does, but not as a map, in which they would change with the file.

    The file is added to `opened`. Raises InputError with the file if it is truncated.
    """
    from safetensors import SafetensorError, safe_open

    opened.append(file)
    try:
        return safe_open(file, *arguments, **settings | {"backend": "pread"})
    except SafetensorError as error:
        raise InputError(f"{file} is damaged: {error}") from error


def _note_pooling(name: str) -> None:
    """Says that a head reads one token of an encoder whose sentence-transformers folder says that it averages all."""
    from huggingface_hub import try_to_load_from_cache

    place = "1_Pooling/config.json"
    file = Path(name) / place if Path(name).is_dir() else try_to_load_from_cache(name, place)
    with suppress(OSError, ValueError):  # there is none, or none that can be read
        found = read_json(Path(str(file)))
        if found.get("pooling_mode_mean_tokens") or found.get("pooling_mode") == "mean":
            say(f"{name} was trained to average its tokens. A classification head reads one, which takes more rows to "
                "learn; ModernBERT can average: model.config_overrides.classifier_pooling=mean")  # fmt: skip


def with_generation(model: PreTrainedModel, fields: Mapping[str, Any]) -> PreTrainedModel:
    """Returns a model after setting fields of its generation config, which is saved with it; None removes a value."""
    for name, value in fields.items():
        setattr(model.generation_config, name, value)
    if fields:  # else fields of a single family, such as Whisper's languages, are dropped when it is loaded
        model.generation_config._from_model_config = False
    return model


ATTENTION_FLAGS = {"sdpa": "_supports_sdpa", "flex_attention": "_supports_flex_attn"}
"""Attributes of model classes that say which attention implementations they support; all support `eager`."""


def attention(model: ModelConfig, config: PreTrainedConfig, auto_class: Any) -> dict[str, str]:
    """Returns the argument of `from_pretrained` that selects the attention; a model without it is a ConfigError."""
    name = model.attn_implementation
    if name is None:
        return {}
    # Classes that come with the model (trust_remote_code) are checked by the library.
    model_class = auto_class._model_mapping.get(type(config), None)
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    if name != "eager" and model_class and not getattr(model_class, ATTENTION_FLAGS.get(name, "_supports_flash_attn")):
        others = [other for other, flag in ATTENTION_FLAGS.items() if getattr(model_class, flag)]
        raise ConfigError([
            f"model.attn_implementation: received {name!r}, which {model_class.__name__} does not support; use "
            f"{' or '.join(['eager', *others])}"
        ])  # fmt: skip
    return {"attn_implementation": name}


def _reject_lost_weights(model: PreTrainedModel, info: dict[str, Any], name: str) -> None:
    """Rejects missing or mismatched weights, except the head's, which is newly initialised for other labels."""
    mismatched = [entry[0] if isinstance(entry, tuple) else entry for entry in info["mismatched_keys"]]
    missing = sorted(info["missing_keys"])
    prefix = "" if is_bare(model) else f"{model.base_model_prefix}."
    lost = [key for key in (*mismatched, *missing) if key.startswith(prefix) and not key.startswith(f"{prefix}pooler")]
    if lost:
        shown = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
        raise InputError(
            f"model.name_or_path: the weights of {name!r} do not fit {type(model).__name__}: {shown} would be newly "
            "initialised.\n  Check model.config_overrides (sizes cannot change) and that the weights are of this type."
        )


def unused_parameter_problems(config: PreTrainedConfig) -> list[str]:
    """Returns a full message if a model skips layers at random, which differ between processes, or nothing."""
    names = [name for name in LAYERDROP if (getattr(config, name, None) or 0) > 0]
    if not names:
        return []
    instead = " and ".join(f"model.config_overrides.{name}=0" for name in names)
    return [
        f"train.ddp_find_unused_parameters: received false, but this {config.model_type} skips layers at "
        f"random ({', '.join(names)}), so the set of gradients differs between processes; set it to "
        f"true, or set {instead}"
    ]


def batch_dependence(model: nn.Module) -> list[str]:
    """Returns why a row's result depends on the other rows of its batch, so that results depend on the split."""
    reasons, config = [], getattr(model, "config", None)
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        reasons.append("batch normalisation computes its statistics per micro-batch")
    groups = any(isinstance(module, nn.GroupNorm) for module in model.modules())
    read = getattr(model, "main_input_name", None)
    if groups and read == "input_values":  # waveforms
        reasons.append("group normalisation over time includes padding in its statistics")
    if read == "input_features" and len(getattr(config, "conv_kernel_sizes", None) or ()) > 1:  # Speech2Text
        reasons.append("the second of its convolutions over time reads padding as sound")
    if getattr(config, "summary_type", None) == "last":
        reasons.append("it classifies by the last position, which is padding in all but the longest rows")
    return reasons
