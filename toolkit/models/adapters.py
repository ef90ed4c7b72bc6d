"""Adds adapters to a model, saves, loads and merges them, using peft.

peft takes seconds to import, so it is imported only by runs that use it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from toolkit.base.console import warn
from toolkit.base.errors import ConfigError, InputError
from toolkit.base.files import read_json
from toolkit.config.sections import AdapterConfig, ModelConfig
from toolkit.models.parts import head_modules, repeated_linears, suffixes

if TYPE_CHECKING:
    from transformers import PreTrainedModel


PROMPTABLE = {
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
}
"""Heads that work with a prefix of virtual tokens, and peft's names of their tasks. Other methods omit the task for the
remaining heads, because peft's class for question answering drops `token_type_ids`."""


def adapter_problems(model: ModelConfig) -> list[str]:
    """Returns why the installed libraries or the machine do not support `model.peft.method`, as full messages."""
    method = model.peft.method
    needed = {"none": (), "qlora": ("peft", "bitsandbytes")}.get(method, ("peft",))
    missing = [name for name in needed if find_spec(name) is None]
    if not missing:
        return []
    extra = "qlora" if method == "qlora" else "peft"
    return [
        f"model.peft.method: {method} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
        f"not installed; pip install 'finetune-toolkit[{extra}]'"
    ]


def prompt_problems(model: ModelConfig, auto_model: str) -> list[str]:
    """Returns why this task's inputs cannot be prefixed with virtual tokens, as a full message, or nothing."""
    if model.peft.method != "prompt_tuning" or auto_model in PROMPTABLE:
        return []
    reasons = {
        "AutoModelForTokenClassification": "tags belong to positions in the text, which virtual tokens would shift",
        "AutoModelForQuestionAnswering": "answers are positions in the text, which virtual tokens would shift",
        "AutoModelForMaskedLM": "masked tokens are predicted at their positions, which virtual tokens would shift",
    }
    why = reasons.get(auto_model, "virtual tokens are a prefix of a text, and this model takes no text")
    return [f"model.peft.method: received 'prompt_tuning', but {why}; use lora"]


FILE = "adapter_config.json"
BASE = "base"
"""Folder of a base model that was trained from scratch, first in the run's folder and then in its model folder."""


def quantization(model: ModelConfig, config: Any, auto_class: Any) -> dict[str, Any]:
    """Returns the arguments of `from_pretrained` for 4-bit weights (Dettmers et al. 2023, arXiv 2305.14314)."""
    if model.peft.method != "qlora":
        return {}
    from transformers import BitsAndBytesConfig

    with torch.device("meta"):  # only for its module names; the head is trained, so it is not quantized
        head = head_modules(auto_class.from_config(config))
    # Computed in float32 as everywhere in the toolkit, unless train.mixed_precision is set.
    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32, llm_int8_skip_modules=head or None,
    )  # fmt: skip
    return {"quantization_config": settings}


def add_adapters(model: PreTrainedModel, settings: AdapterConfig, auto_model: str, seed: int) -> Any:
    """Freezes a model and adds the adapters of the section `model.peft`; the `seed` must be the same on all processes.

    Returns:
        A `peft.PeftModel` with the model's `forward`, `generate` and `config`.

    Raises:
        ConfigError: if the method does not fit the model.
    """
    from peft import PeftModel, get_peft_model

    shared = {"task_type": PROMPTABLE.get(auto_model), "modules_to_save": _head(model) or None}
    config = METHODS[settings.method](model, settings, shared)
    torch.manual_seed(seed)
    try:
        with _without_deprecation_warning():
            warnings.filterwarnings("error", "Model has `tie_word_embeddings=True` and a tied layer", UserWarning)
            adapted: PeftModel = get_peft_model(model, config)
    except (ValueError, UserWarning) as error:
        raise ConfigError([f"model.peft: peft rejects this for {type(model).__name__}: {error}"]) from error
    if settings.init_lora_weights != "default":
        _start_principal(adapted, settings.init_lora_weights)
    _fix_statistics(adapted)
    return _without_virtual_logits(adapted)


@torch.no_grad()
def _start_principal(adapted: Any, kind: str) -> None:
    """Moves the principal part of each weight into its adapter, by peft in float32; layers keep the initial one."""
    from peft.tuners.lora.layer import Linear

    for name, layer in [pair for pair in adapted.base_model.model.named_modules() if hasattr(pair[1], "lora_A")]:
        base, rank = layer.get_base_layer(), layer.r["default"]
        weight = base.weight.data
        if type(layer) not in {Linear} or rank > min(weight.shape) or (kind == "olora" and layer.fan_in_fan_out):
            why = f"{kind!r} needs linear layers of at least {rank} rows and columns, and {name} is none"
            raise ConfigError([f"model.peft.init_lora_weights: {why}"])
        base.weight.data = weight.to(torch.float32, copy=True)
        layer.olora_init("default") if kind == "olora" else layer.pissa_init("default", kind)
        layer.to(weight.dtype)
        base.weight.data = weight - layer.get_delta_weight("default")
        parts = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        layer.initial = nn.ParameterList(nn.Parameter(part.clone(), requires_grad=False) for part in parts)


def _fix_statistics(adapted: Any) -> None:
    """Keeps the running statistics of frozen batch norms as they are: a peft folder has no place for them."""
    for name, module in adapted.named_modules():
        if isinstance(module, _BatchNorm) and "modules_to_save" not in name:
            module.train = MethodType(_in_evaluation, module)  # type: ignore[method-assign]
            module.eval()


def _in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
    return nn.Module.train(module, False)


def load_adapters(model: Any, folder: Path, name: str = "default") -> Any:
    """Loads the adapters in a peft folder into their base model, or by another `name` into a `peft.PeftModel` of it.

    Raises InputError if they name code, which peft would import.
    """
    from peft import PeftModel

    if read_json(folder / FILE).get("megatron_config"):
        raise InputError(f"{folder / FILE}: megatron_config names code to import, which is not supported; remove it")
    with _without_deprecation_warning():
        if name != "default":
            return model.load_adapter(folder, name)
        return _without_virtual_logits(PeftModel.from_pretrained(model, folder))


@torch.no_grad()
def combine(adapted: Any, folders: Sequence[Path], weights: Sequence[float], **how: Any) -> None:
    """Adds the adapters in peft folders to a model's by peft, times `weights`, its own first; averages new heads."""
    from peft.utils import ModulesToSaveWrapper

    names = ["default", *map(str, range(len(folders)))]
    for name, folder in zip(names[1:], folders, strict=True):
        load_adapters(adapted, folder, name)
    for module in adapted.modules():
        if isinstance(module, ModulesToSaveWrapper):
            heads = [module.modules_to_save.pop(name) for name in names]
            for own, *more in zip(*(head.parameters() for head in heads), strict=True):
                own.copy_(sum(w * each for w, each in zip(weights, (own, *more), strict=True)) / sum(weights))
            module.modules_to_save["default"] = heads[0]
    torch.manual_seed(0)  # some kinds drop values at random
    adapted.peft_config["default"].use_rslora = False  # the sum has no scale
    try:
        adapted.base_model.add_weighted_adapter(names, [*weights], "sum", **how)
    except ValueError as error:
        raise InputError(f"--with: peft cannot combine these adapters: {error}") from error
    for module in (module for module in adapted.modules() if hasattr(module, "lora_A")):
        module.set_adapter("sum")


def save_adapters(adapted: Any, folder: Path, base: Path, name: str | None, final: Path) -> None:
    """Writes a peft folder, which will be at `final`; a new base model (without a `name`) moves into it from `base`."""
    if name is None:
        folder.mkdir(parents=True, exist_ok=True)
        base.rename(folder / BASE)
        name = str(final.absolute() / BASE)
    elif Path(name).is_dir():  # whatever folder it is loaded from
        name = str(Path(name).absolute())
    state, own = adapted.state_dict(), adapted.peft_config["default"]
    saved = adapted.peft_config["default"] = copy.copy(own)
    saved.base_model_name_or_path = name
    for layer in [key.removesuffix("initial.0") for key in state if key.endswith(".initial.0")]:
        down, up = f"{layer}lora_A.default.weight", f"{layer}lora_B.default.weight"
        state[down] = torch.cat([state[down], state[f"{layer}initial.0"]])  # minus the initial update
        state[up] = torch.cat([state[up], -state[f"{layer}initial.1"]], dim=1)
        saved.r, saved.lora_alpha = 2 * own.r, own.lora_alpha * (2**0.5 if own.use_rslora else 2)
    adapted.save_pretrained(folder, state_dict=state, save_embedding_layers=False)
    adapted.peft_config["default"] = own
    # The base model may have another head, so the task's labels are saved here. The weights are not quantized.
    config = copy.deepcopy(adapted.config)
    vars(config).pop("quantization_config", None)
    config.save_pretrained(folder)


def merged(adapted: Any) -> PreTrainedModel:
    """Merges adapters into the base model's weights (4-bit ones are dequantized), and returns it without them."""
    from peft.utils import ModulesToSaveWrapper

    # peft restores trained heads last, which fails for heads with several layers (under IA3).
    model = adapted.get_base_model()
    for name, module in list(model.named_modules()):
        if isinstance(module, ModulesToSaveWrapper):
            model.set_submodule(name, module.modules_to_save["default"])
    if quantized := getattr(model, "hf_quantizer", None) is not None:
        model.dequantize()
        for module in (module for module in model.modules() if hasattr(module, "lora_A")):
            module.get_base_layer().weight.data += module.get_delta_weight("default")
    result: PreTrainedModel = adapted.unload() if quantized else adapted.merge_and_unload()
    return result


def base_of(folder: Path, key: str) -> str:
    """Returns the Hub id or folder of the base model of the adapters in a peft folder.

    Raises InputError if the folder does not name a base model.
    """
    if (folder / BASE).is_dir():
        return str(folder / BASE)
    try:
        return str(read_json(folder / FILE)["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{key}: {folder / FILE} does not name a base model ({type(error).__name__})") from error


def _low_rank(model: PreTrainedModel, settings: AdapterConfig, shared: dict[str, Any]) -> Any:
    from peft import LoraConfig

    targets, ids = _targets(model, settings), settings.trainable_token_indices
    embedding: Any = (model.get_input_embeddings(), model.get_output_embeddings()) if ids else ()
    if ids and max(ids) >= (count := len(embedding[0].weight)):
        raise ConfigError([f"model.peft.trainable_token_indices: received {max(ids)}, but there are {count} tokens"])
    rows = {name: ids for name, module in model.named_modules() if module in embedding}
    return LoraConfig(
        r=settings.r, lora_alpha=settings.lora_alpha, lora_dropout=settings.lora_dropout, target_modules=targets,
        use_dora=settings.method == "dora", use_rslora=settings.method == "rslora",
        fan_in_fan_out=_transposed(model, targets), trainable_token_indices=rows or None, **shared,
    )  # fmt: skip


def warn_of_untrained(model: Any, processor: Any, peft: AdapterConfig) -> None:
    """Warns of frozen tokens of the chat template that are as tokens are added: at the mean of embeddings, or zero."""
    template = getattr(processor, "chat_template", None) if peft.method != "none" else None
    ids = {i for token, i in processor.get_added_vocab().items() if token in str(template)} if template else set()
    if not ids or (rows := model.get_input_embeddings().weight.detach()).is_meta:
        return
    mean, near = rows.mean(0), (rows[:4096] - rows.mean(0)).norm(dim=-1).median() / 100
    ids -= {*peft.trainable_token_indices}
    if new := sorted(i for i in ids if min((rows[i] - mean).norm(), rows[i].norm()) < near):
        names = ", ".join(processor.convert_ids_to_tokens(new))
        warn(f"the model has not learned {names} of the chat template, and embeddings are frozen; set "
             f"model.peft.trainable_token_indices={new} to train them")  # fmt: skip


def _ia3(model: PreTrainedModel, settings: AdapterConfig, shared: dict[str, Any]) -> Any:
    """Scales keys, values and inner MLP activations where peft knows them, otherwise the outputs of layers."""
    from peft import IA3Config
    from peft.utils import TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING as KNOWN

    if settings.target_modules == "auto" and model.config.model_type in KNOWN:
        return IA3Config(fan_in_fan_out=_transposed(model, KNOWN[model.config.model_type]), **shared)
    targets = _targets(model, settings)
    return IA3Config(
        target_modules=targets, feedforward_modules=[], fan_in_fan_out=_transposed(model, targets), **shared
    )


def _prompt_tuning(model: PreTrainedModel, settings: AdapterConfig, shared: dict[str, Any]) -> Any:
    """Initialises virtual tokens with random tokens of the vocabulary (Lester et al. 2021, arXiv 2104.08691)."""
    from peft import PromptTuningConfig

    if "score" in dict(model.named_children()):
        raise ConfigError([
            f"model.peft.method: received 'prompt_tuning', but {type(model).__name__} classifies by the last token "
            "that is not padding, which it cannot find after virtual tokens; use lora"
        ])  # fmt: skip
    return PromptTuningConfig(
        num_virtual_tokens=settings.num_virtual_tokens, prompt_tuning_init="SAMPLE_VOCAB",
        num_transformer_submodules=1, **shared,
    )  # fmt: skip


METHODS: Mapping[str, Callable[[Any, AdapterConfig, dict[str, Any]], Any]] = {
    "lora": _low_rank,
    "dora": _low_rank,
    "rslora": _low_rank,
    "qlora": _low_rank,
    "ia3": _ia3,
    "prompt_tuning": _prompt_tuning,
}
"""Functions that build each method's peft configuration from a model, the settings and the shared arguments."""


def _head(model: PreTrainedModel) -> list[str]:
    """Returns the names of the modules that are trained and saved without adapters."""
    if parameters := [name for name, _ in model.named_parameters(recurse=False)]:
        raise ConfigError([
            f"model.peft.method: {type(model).__name__} has parameters outside of any layer ({', '.join(parameters)}), "
            "which peft would neither train nor save; disable them in model.config_overrides"
        ])  # fmt: skip
    return head_modules(model)


def _targets(model: PreTrainedModel, settings: AdapterConfig) -> list[str]:
    names = [name for name, _ in model.named_modules()]
    if settings.target_modules == "auto":
        linears = repeated_linears(model)
        if not linears:
            raise ConfigError([
                f"model.peft.target_modules: auto finds no linear layers inside the repeated layers of "
                f"{type(model).__name__}; name the layers to adapt"
            ])  # fmt: skip
        return suffixes(linears, names)
    from toolkit.config.messages import did_you_mean

    ends = sorted({name.rsplit(".", 1)[-1] for name in names if name})
    lost = [end for end in settings.target_modules if not any(f".{name}".endswith(f".{end}") for name in names)]
    if lost:
        raise ConfigError([
            f"model.peft.target_modules: {type(model).__name__} has no layer whose name ends in {end!r}"
            f"{did_you_mean(end, ends)}"
            for end in lost
        ])  # fmt: skip
    return list(settings.target_modules)


def _transposed(model: PreTrainedModel, targets: list[str]) -> bool:
    """Returns whether the layers store transposed weights, as GPT-2's do."""
    from transformers.pytorch_utils import Conv1D

    ends = tuple(f".{target}" for target in targets)
    return any(isinstance(module, Conv1D) for name, module in model.named_modules() if f".{name}".endswith(ends))


def _without_virtual_logits(adapted: Any) -> Any:
    """Removes the logits of virtual tokens from the output, so that it aligns with the text's labels."""
    config = adapted.peft_config["default"]
    if config.is_prompt_learning and config.task_type == "CAUSAL_LM":
        count = config.num_virtual_tokens

        def text_only(module: nn.Module, arguments: Any, output: Any) -> Any:
            output.logits = output.logits[:, count:]
            return output

        adapted.register_forward_hook(text_only)
    return adapted


@contextmanager
def _without_deprecation_warning() -> Iterator[None]:
    """Suppresses transformers' warning about a deprecated attribute that peft reads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield
