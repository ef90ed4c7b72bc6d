"""Adapters: a few new parameters beside a frozen model, made, saved and read by peft.

peft takes seconds to import, so that happens only in runs that ask for it.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from toolkit.config.sections import AdapterConfig, ModelConfig
from toolkit.errors import ConfigError, InputError
from toolkit.parts import head_modules, repeated_linears, suffixes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from toolkit.task import Prepared

FILE = "adapter_config.json"
BASE = "base"
"""Folder, in a run's and then in its model's, of a base model that was built anew."""
PROMPTABLE = {
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
}
"""Heads that still answer for a text once virtual tokens stand before it, and what peft calls their task. Of the others
it is left out: peft's class for question answering loses `token_type_ids` on the way."""


def check_adapters(model: ModelConfig) -> None:
    """Checks before anything is loaded what only the installed libraries and the machine can tell.

    Raises:
        ConfigError: if the method cannot be used here.
    """
    method = model.peft.method
    needed = {"none": (), "qlora": ("peft", "bitsandbytes")}.get(method, ("peft",))
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        extra = "qlora" if method == "qlora" else "peft"
        raise ConfigError([
            f"model.peft.method: {method} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            f"not installed; pip install 'finetune-toolkit[{extra}]'"
        ])  # fmt: skip
    if method == "qlora" and not torch.cuda.is_available():
        raise ConfigError(
            ["model.peft.method: qlora computes with weights of 4 bits on a GPU, and none is visible here; use lora"]
        )


def check_prompts(model: ModelConfig, auto_model: str) -> list[str]:
    """Returns why virtual tokens cannot stand before this task's inputs, as a full message, or nothing."""
    if model.peft.method != "prompt_tuning" or auto_model in PROMPTABLE:
        return []
    reasons = {
        "AutoModelForQuestionAnswering": "an answer is a position in the text, which virtual tokens would shift",
        "AutoModelForMaskedLM": "masked tokens are foreseen where they stand, and virtual tokens would shift them",
    }
    why = reasons.get(auto_model, "virtual tokens stand before a text, and this model sees none")
    return [f"model.peft.method: received 'prompt_tuning', but {why}; use lora"]


def check_room(model: ModelConfig, config: Any, data: Prepared) -> None:
    """Refuses inputs that are too long once virtual tokens stand before them.

    Raises:
        ConfigError: if the model has no positions for them.
    """
    room = getattr(config, "max_position_embeddings", None)
    if model.peft.method != "prompt_tuning" or room is None:
        return
    longest = max(max(rows["length"]) for rows in (data.train, *(data.features for data in data.evals.values())))
    if longest + model.peft.num_virtual_tokens > room:
        raise ConfigError([
            f"model.peft.num_virtual_tokens: received {model.peft.num_virtual_tokens}, but the longest input has "
            f"{longest} tokens and the model {room} positions in all; cut inputs shorter, or use fewer virtual tokens"
        ])  # fmt: skip


def quantization(model: ModelConfig) -> dict[str, Any]:
    """Returns what `from_pretrained` needs besides for weights of 4 bits (Dettmers et al. 2023, arXiv 2305.14314)."""
    if model.peft.method != "qlora":
        return {}
    from transformers import BitsAndBytesConfig

    # Arithmetic as everywhere in the toolkit: float32, and less under train.mixed_precision.
    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )  # fmt: skip
    return {"quantization_config": settings}


def add_adapters(model: PreTrainedModel, settings: AdapterConfig, auto_model: str, seed: int) -> Any:
    """Freezes a model and puts new parameters beside it.

    Args:
        model: complete, as it would be trained whole.
        settings: the YAML's `model.peft`, with a method.
        auto_model: name of the model's auto class.
        seed: seed of the new parameters, the same on all processes.

    Returns:
        A `peft.PeftModel`, whose forward, `generate` and `config` are those of the model.

    Raises:
        ConfigError: if the method does not fit the model.
    """
    from peft import PeftModel, get_peft_model

    shared = {"task_type": PROMPTABLE.get(auto_model), "modules_to_save": _head(model) or None}
    config = METHODS[settings.method](model, settings, shared)
    torch.manual_seed(seed)
    try:
        with _of_another_age():
            adapted: PeftModel = get_peft_model(model, config)
    except ValueError as error:
        raise ConfigError([f"model.peft: peft refuses this for {type(model).__name__}: {error}"]) from error
    return _answering(adapted)


def load_adapters(model: PreTrainedModel, folder: Path) -> Any:
    """Puts the adapters in a peft folder beside their base model; returns a `peft.PeftModel`."""
    from peft import PeftModel

    with _of_another_age():
        return _answering(PeftModel.from_pretrained(model, folder))


def save_adapters(adapted: Any, folder: Path, base: Path, name: str | None) -> None:
    """Writes a peft folder, which says where its base model is.

    Args:
        adapted: the model.
        folder: where to.
        base: folder of a base model that was built anew; it moves into the peft folder.
        name: hub id or folder of a pretrained base model, None for a new one.
    """
    if name is None:
        shutil.rmtree(folder / BASE, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        base.rename(folder / BASE)
        name = str(folder / BASE)
    if Path(name).is_dir():  # wherever it is loaded from
        name = str(Path(name).absolute())
    adapted.peft_config["default"].base_model_name_or_path = name
    adapted.save_pretrained(folder, save_embedding_layers=False)
    adapted.config.save_pretrained(folder)  # a base model of another task has another head: the task's labels are here


def merged(adapted: Any) -> PreTrainedModel:
    """Adds adapters to the weights they stand beside, in place; returns the model without them."""
    from peft.utils import ModulesToSaveWrapper

    # peft itself would put trained heads back last, which it cannot do for those of several layers (under IA3).
    model = adapted.get_base_model()
    for name, module in list(model.named_modules()):
        if isinstance(module, ModulesToSaveWrapper):
            model.set_submodule(name, module.modules_to_save["default"])
    result: PreTrainedModel = adapted.merge_and_unload()
    return result


def base_of(folder: Path, key: str) -> str:
    """Returns the hub id or folder of the model that the adapters in a peft folder were trained beside.

    Raises:
        InputError: if the folder does not say.
    """
    if (folder / BASE).is_dir():
        return str(folder / BASE)
    try:
        return str(json.loads((folder / FILE).read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{key}: {folder / FILE} does not name a base model ({type(error).__name__})") from error


def _low_rank(model: PreTrainedModel, settings: AdapterConfig, shared: dict[str, Any]) -> Any:
    from peft import LoraConfig

    targets = _targets(model, settings)
    return LoraConfig(
        r=settings.r, lora_alpha=settings.lora_alpha, lora_dropout=settings.lora_dropout, target_modules=targets,
        use_dora=settings.method == "dora", use_rslora=settings.method == "rslora",
        fan_in_fan_out=_transposed(model, targets), **shared,
    )  # fmt: skip


def _ia3(model: PreTrainedModel, settings: AdapterConfig, shared: dict[str, Any]) -> Any:
    """Factors of keys, values and the MLP's inner activations where peft knows them; else of what layers return."""
    from peft import IA3Config
    from peft.utils import TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING as KNOWN

    if settings.target_modules == "auto" and model.config.model_type in KNOWN:
        return IA3Config(fan_in_fan_out=_transposed(model, KNOWN[model.config.model_type]), **shared)
    targets = _targets(model, settings)
    return IA3Config(
        target_modules=targets, feedforward_modules=[], fan_in_fan_out=_transposed(model, targets), **shared
    )


def _prompt_tuning(model: PreTrainedModel, settings: AdapterConfig, shared: dict[str, Any]) -> Any:
    """Virtual tokens begin as tokens drawn from the vocabulary (Lester et al. 2021, arXiv 2104.08691)."""
    from peft import PromptTuningConfig

    if "score" in dict(model.named_children()):
        raise ConfigError([
            f"model.peft.method: received 'prompt_tuning', but {type(model).__name__} answers at the last token that "
            "is no padding, which it cannot find behind virtual tokens; use lora"
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
"""What makes peft's configuration of each method: of a model, the settings, and what all methods share."""


def _head(model: PreTrainedModel) -> list[str]:
    """The modules that are trained and saved whole."""
    parameters = [name for name, _ in model.named_parameters(recurse=False)]
    if parameters:
        raise ConfigError([
            f"model.peft.method: {type(model).__name__} has parameters outside of any layer ({', '.join(parameters)}), "
            "which peft would neither train nor save; switch them off in model.config_overrides"
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
    """Whether the layers keep their weights the other way round, as GPT-2's do."""
    from transformers.pytorch_utils import Conv1D

    ends = tuple(f".{target}" for target in targets)
    return any(isinstance(module, Conv1D) for name, module in model.named_modules() if f".{name}".endswith(ends))


def _answering(adapted: Any) -> Any:
    """Leaves what a causal model foresees at virtual tokens out of its answer, which is compared with the text's."""
    config = adapted.peft_config["default"]
    if config.is_prompt_learning and config.task_type == "CAUSAL_LM":
        count = config.num_virtual_tokens

        def text_only(module: nn.Module, arguments: Any, output: Any) -> Any:
            output.logits = output.logits[:, count:]
            return output

        adapted.register_forward_hook(text_only)
    return adapted


@contextmanager
def _of_another_age() -> Iterator[None]:
    """Leaves out what peft, asking for a field by its former name, makes transformers say."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield
